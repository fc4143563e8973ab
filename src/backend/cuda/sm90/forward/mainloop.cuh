// The consumer warpgroups: 64 query rows each, scores and O in registers.
//
// One key block j: wait K | my turn | issue S = Q K_j | wait V | issue O += P V_(j+1) | pass turn |
//                    wait S, free K | mask | wait O, free V | exponentials, sums, pack P |
//                    where a row's reference was too low: raise it, rescale O, again
// so that softmax runs under the product of block j + 1 and under the others' products. With
// several Q buffers nothing drains between tiles: the next tile's first product goes with this
// one's last.
#pragma once

#include "backend/cuda/sm90/forward/block.cuh"
#include "backend/cuda/tile/softmax.cuh"
#include "backend/cuda/tile/trace.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
class Consumer {
 public:
  using T = Traits<Row>;

  ROWMAX_DEVICE Consumer(const ForwardParams& params, const SharedMap<Row>& shared, int warpgroup)
      : params_(params),
        shared_(shared),
        lane_(threadIdx.x % 32),
        row_(warpgroup * 64 + (threadIdx.x / 32) % 4 * 16 + lane_ / 4),
        trace_(params.trace, warpgroup, threadIdx.x % 128 == 0) {}

  ROWMAX_DEVICE void run() {
    ptx::mbarrier_wait(shared_.barrier(kQFull, 0), 0);
    tile_ = load_tile(0);
    if (tile_.block_end == 0) {
      return;
    }
    if (T::kTurns && warpgroup() == T::kWarpgroups - 1) {
      pass_turn();  // warpgroup 0 has the first turn
    }
    if constexpr (T::kQBuffers > 1) {
      run_overlapped();
    } else {
      run_drained();
    }
  }

 private:
  ROWMAX_DEVICE const TileInfo& slot(uint32_t count) const {
    return shared_.slots[count % kTileSlots];
  }
  ROWMAX_DEVICE LoopTile load_tile(uint32_t count) const {
    return own_blocks<Row>(slot(count), warpgroup());
  }

  // This warpgroup, from the row: a register less to keep.
  ROWMAX_DEVICE int warpgroup() const { return ptx::opaque(row_) >> 6; }
  ROWMAX_DEVICE void take_turn() const {
    if constexpr (T::kTurns) {
      ptx::bar_sync(kTurnBarrier + warpgroup(), 256);
    }
  }
  ROWMAX_DEVICE void pass_turn() const {
    if constexpr (T::kTurns) {
      const int own = warpgroup();
      ptx::bar_arrive(kTurnBarrier + (own + 1 == T::kWarpgroups ? 0 : own + 1), 256);
    }
  }
  // K or V of block number `block` of this CTA, counted over all tiles; full: kKFull or kVFull.
  ROWMAX_DEVICE void wait(Barrier full, uint32_t block) const {
    const uint32_t stage = ring_index<T::kStages>(block);
    ptx::mbarrier_wait(shared_.barrier(full, stage), ring_parity<T::kStages>(block));
  }
  ROWMAX_DEVICE void release(Barrier empty, uint32_t block) const {
    if (lane_ == 0) {
      ptx::mbarrier_arrive(shared_.barrier(empty, ring_index<T::kStages>(block)));
    }
  }
  // One Q buffer: warp 2 may load the next tile once all consumer warps have read this one.
  ROWMAX_DEVICE void free_q() const {
    if (T::kQBuffers == 1 && lane_ == 0) {
      ptx::mbarrier_arrive(shared_.barrier(kQEmpty, 0));
    }
  }
  // Low word of the descriptor of this warpgroup's Q rows. Made anew for every block: kept, it
  // would become one descriptor for each 16 columns in vector registers.
  ROWMAX_DEVICE uint32_t q_descriptor(uint32_t count) const {
    return ptx::uniform(ptx::descriptor_k_major(shared_.base, T::kShared.q) +
                        warpgroup() * (64 * kPanelRowBytes / 16) +
                        ring_index<T::kQBuffers>(count) * (T::kQBytes / 16));
  }

  // Low words of the descriptors of K and V of a block. The compiler takes block numbers for
  // divergent once blocks are skipped.
  ROWMAX_DEVICE uint32_t k_descriptor(uint32_t block) const {
    const uint32_t low = ptx::descriptor_k_major(shared_.base, T::kShared.k) +
                         ring_index<T::kStages>(block) * (T::kKBytes / 16);
    return T::kSkips ? ptx::uniform(low) : low;
  }
  ROWMAX_DEVICE uint32_t v_descriptor(uint32_t block) const {
    const uint32_t low = ptx::descriptor_mn_major(shared_.base, T::kShared.v, T::kKeyPanelBytes) +
                         ring_index<T::kStages>(block) * (T::kVBytes / 16);
    return T::kSkips ? ptx::uniform(low) : low;
  }

  // S = Q K^T, from the descriptors' low words.
  ROWMAX_DEVICE void issue_scores(uint32_t q, uint32_t k) {
    const uint64_t a = ptx::descriptor(q);
    const uint64_t b = ptx::descriptor(k);
    ptx::discard(s_);
#pragma unroll
    for (int i = 0; i < T::kHeadDim / 16; ++i) {
      ptx::Wgmma<T::kTileK>::template ss<T::kMma>(
          s_, a + (i / 4) * (T::kQPanelBytes / 16) + (i % 4) * 2,
          b + (i / 4) * (T::kKeyPanelBytes / 16) + (i % 4) * 2, i != 0);
    }
    ptx::wgmma_commit();
  }
  // O (+)= P V. The turn passes with the last products: the next warpgroup needs a while to begin.
  ROWMAX_DEVICE void issue_out(uint32_t v, int accumulate) {
    const uint64_t b = ptx::descriptor(v);
#pragma unroll
    for (int i = 0; i < T::kTileK / 16; ++i) {
      ptx::Wgmma<T::kHeadDimV>::template rs<T::kMma>(o_, p_[4 * i], p_[4 * i + 1], p_[4 * i + 2],
                                                     p_[4 * i + 3], b + i * 128,
                                                     i != 0 ? 1 : accumulate);
      if (i == T::kTileK / 16 - 1 - T::kConfig.early_turn) {
        pass_turn();
      }
    }
    ptx::wgmma_commit();
  }

  ROWMAX_DEVICE void mask(int j, uint32_t count) {
    mask_scores<Row>(params_, slot(count), j, ptx::opaque(row_), ptx::opaque(lane_), s_);
  }

  // P of a tile's first block, and its sums.
  ROWMAX_DEVICE void first_exponentials() {
    tile::block_exponentials<T>(s_, p_, state_, params_.score.exponent_scale);
  }

  // References of a tile's first block; its product with V is issued by the next step.
  ROWMAX_DEVICE void first_softmax(int j, uint32_t count) {
    if (T::kAlibi && params_.score.slopes != nullptr) {
      alibi_ = alibi_rows<Row>(params_, slot(count), row_, lane_);
    }
    change_scores<Row>(params_, alibi_, j, s_, state_.offset);
    mask(j, count);
    tile::first_references(s_, state_, params_.score.exponent_scale);
  }

  // Skipped blocks: their stages are freed in order, and every warpgroup takes as many turns.
  template <bool kTakeTurns>
  ROWMAX_DEVICE void skip_keys(int blocks) {
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) {
      wait(kKFull, blocks_ + i);
      if constexpr (kTakeTurns) {
        take_turn();
        pass_turn();
      }
      release(kKEmpty, blocks_ + i);
    }
    blocks_ += blocks;
  }
  // After the first block: V of the skipped ones.
  ROWMAX_DEVICE void skip_values(int blocks) {
#pragma unroll 1
    for (uint32_t block = blocks_ - 1 - blocks; block != blocks_ - 1; ++block) {
      wait(kVFull, block);
      release(kVEmpty, block);
    }
  }

  // Blocks skipped at the end of the last tile, after its last product: its V may be in the stage
  // that another warpgroup's last V comes to. No copy is under way when the CTA ends.
  ROWMAX_DEVICE void finish_skipped(int blocks) {
    skip_keys<true>(blocks);
#pragma unroll 1
    for (int i = blocks; i > 0; --i) {
      wait(kVFull, blocks_ - i);
    }
  }

  // Scores of a tile's first block with nothing beside them.
  ROWMAX_DEVICE void first_block(uint32_t count) {
    skip_keys<false>(tile_.skipped);
    const uint32_t q = q_descriptor(count);
    const uint32_t k = k_descriptor(blocks_);
    wait(kKFull, blocks_);
    ptx::wgmma_fence();
    issue_scores(q, k);
    ptx::wgmma_wait<0>();
    ptx::pin(s_);
    release(kKEmpty, blocks_);
    ++blocks_;
    if (tile_.block_end - 1 == tile_.block_begin) {
      free_q();
    }
    first_softmax(tile_.block_end - 1, count);
    first_exponentials();
    if constexpr (T::kSkips) {
#pragma unroll 1
      for (int i = 0; i < tile_.skipped; ++i) {
        take_turn();
        pass_turn();
      }
    }
  }

  // Key block j; accumulate is 0 when the product of block j + 1 is the tile's first.
  template <bool kMasked>
  ROWMAX_DEVICE void step(int j, uint32_t count, int accumulate) {
    const uint32_t q = q_descriptor(count);
    const uint32_t k = k_descriptor(blocks_);
    const uint32_t v = v_descriptor(blocks_ - 1);
    trace_.mark(TraceState::kWaitKeys, j);
    wait(kKFull, blocks_);
    trace_.mark(TraceState::kWaitTurn, j);
    take_turn();
    trace_.mark(TraceState::kIssue, j);
    ptx::wgmma_fence();
    issue_scores(q, k);
    wait(kVFull, blocks_ - 1);
    ptx::wgmma_fence();
    issue_out(v, accumulate);
    trace_.mark(TraceState::kWaitScores, j);
    ptx::wgmma_wait<1>();
    ptx::pin(s_);
    trace_.mark(TraceState::kMaximum, j);
    release(kKEmpty, blocks_);
    if (T::kQBuffers == 1 && j == tile_.block_begin) {
      free_q();
    }
    change_scores<Row>(params_, alibi_, j, s_, state_.offset);
    if constexpr (kMasked) {
      mask(j, count);
    }
    trace_.mark(TraceState::kWaitOut, j);
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    ptx::pin(p_);
    trace_.mark(TraceState::kExponentials, j);
    release(kVEmpty, blocks_ - 1);
    ++blocks_;
    if (T::kAlibi && params_.score.slopes != nullptr &&
        has_keys_to_the_right(alibi_, (j + 1) * T::kTileK)) {
      tile::raise_grown_references(s_, state_, o_, params_.score.exponent_scale);
    }
    tile::later_exponentials<T>(s_, p_, o_, state_, params_.score.exponent_scale);
  }

  // The tile's key blocks but the first. Returns whether a product has gone into O.
  ROWMAX_DEVICE int loop(uint32_t count) {
    int accumulate = 0;
    int j = tile_.block_end - 2;
    skip_values(tile_.skipped);
    if constexpr (T::kBanded && T::kOptions) {  // one copy of the long step, looks at every block
#pragma unroll 1
      for (; j >= tile_.block_begin; --j) {
        step<true>(j, count, accumulate);
        accumulate = 1;
      }
    } else if constexpr (T::kBanded) {
      const LoopBlocks& blocks = slot(count).loops[warpgroup()];
      const int clean_end = ptx::uniform(blocks.clean_end);
      const int clean_begin = ptx::uniform(blocks.clean_begin);
#pragma unroll 1
      for (; j >= clean_end; --j) {
        step<true>(j, count, accumulate);
        accumulate = 1;
      }
#pragma unroll 1
      for (; j >= clean_begin; --j) {
        step<false>(j, count, accumulate);
        accumulate = 1;
      }
#pragma unroll 1
      for (; j >= tile_.block_begin; --j) {
        step<true>(j, count, accumulate);
        accumulate = 1;
      }
    } else {
#pragma unroll 1
      for (; j >= tile_.block_begin; --j) {
        step<false>(j, count, accumulate);
        accumulate = 1;
      }
    }
    return accumulate;
  }

  // The last product of a tile with nothing beside it.
  ROWMAX_DEVICE void last_block(int accumulate) {
    const uint32_t v = v_descriptor(blocks_ - 1);
    wait(kVFull, blocks_ - 1);
    take_turn();
    ptx::wgmma_fence();
    issue_out(v, accumulate);
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    release(kVEmpty, blocks_ - 1);
  }

  ROWMAX_DEVICE void run_overlapped() {
    first_block(0);
    for (uint32_t count = 0;; ++count) {
      const int accumulate = loop(count);
      const uint32_t next = count + 1;
      ptx::mbarrier_wait(shared_.barrier(kQFull, ring_index<T::kQBuffers>(next)),
                         ring_parity<T::kQBuffers>(next));
      LoopTile next_tile = load_tile(next);
      if (next_tile.block_end == 0) {
        last_block(accumulate);
        finish_skipped(left_blocks<Row>(slot(count), warpgroup()));
        // Every warp of this warpgroup has read Q before O overwrites it.
        ptx::bar_sync(kGroupBarrier + warpgroup(), 128);
        store_staged<Row>(params_, shared_, o_, state_, row_, count);
        return;
      }
      const uint32_t last = blocks_ - 1;  // of this tile
      if constexpr (T::kSkips) {
        next_tile.skipped += left_blocks<Row>(slot(count), warpgroup());
        skip_keys<true>(next_tile.skipped);
      }
      const uint32_t q = q_descriptor(next);
      const uint32_t k = k_descriptor(blocks_);
      const uint32_t v = v_descriptor(last);
      const int first = next_tile.block_end - 1;
      trace_.mark(TraceState::kWaitKeys, first);
      wait(kKFull, blocks_);
      trace_.mark(TraceState::kWaitTurn, first);
      take_turn();  // also: all warps of this warpgroup have read this tile's Q
      trace_.mark(TraceState::kIssue, first);
      ptx::wgmma_fence();
      issue_scores(q, k);
      wait(kVFull, last);
      ptx::wgmma_fence();
      issue_out(v, accumulate);
      trace_.mark(TraceState::kWaitScores, first);
      ptx::wgmma_wait<1>();
      ptx::pin(s_);
      trace_.mark(TraceState::kMaximum, first);
      release(kKEmpty, blocks_);
      RowStateOf<Row> done = state_;
      first_softmax(first, next);
      trace_.mark(TraceState::kWaitOut, first);
      ptx::wgmma_wait<0>();
      ptx::pin(o_);
      ptx::pin(p_);
      trace_.mark(TraceState::kExponentials, first);
      release(kVEmpty, last);
      ++blocks_;
      first_exponentials();
      if constexpr (!T::kTurns) {
        ptx::bar_sync(kGroupBarrier + warpgroup(), 128);
      }
      trace_.mark(TraceState::kStore, static_cast<int>(count));
      store_staged<Row>(params_, shared_, o_, done, row_, count);
      tile_ = next_tile;
    }
  }

  ROWMAX_DEVICE void run_drained() {
    for (uint32_t count = 0;;) {
      first_block(count);
      last_block(loop(count));
      trace_.mark(TraceState::kStore, static_cast<int>(count));
      store_direct<Row>(params_, slot(count), o_, state_, row_);
      ++count;
      ptx::mbarrier_wait(shared_.barrier(kQFull, 0), ring_parity<1>(count));
      const int left = left_blocks<Row>(slot(count - 1), warpgroup());
      tile_ = load_tile(count);
      if (tile_.block_end == 0) {
        finish_skipped(left);
        return;
      }
      tile_.skipped += left;
    }
  }

  const ForwardParams& params_;
  const SharedMap<Row>& shared_;
  const int lane_;
  const int row_;        // first of this thread's two rows in the tile, the other is + 8
  uint32_t blocks_ = 0;  // K blocks used so far
  LoopTile tile_;
  RowStateOf<Row> state_;
  AlibiRows alibi_;
  tile::Trace trace_;
  float s_[T::kScores];
  float o_[T::kOut];
  uint32_t p_[T::kPacked];
};

}  // namespace rowmax::cuda::sm90
