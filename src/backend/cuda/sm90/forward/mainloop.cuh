// The consumer warpgroups: 64 query rows each, scores and O in registers.
//
// One key block j: wait K | my turn | issue S = Q K_j | wait V | issue O += P V_(j+1) | pass turn |
//                    wait S, free K | mask | wait O, free V | exponentials, sums, pack P |
//                    where a row's reference was too low: raise it, rescale O, again
// so that softmax runs under the product of block j + 1 and under the others' products. With
// several Q buffers nothing drains between tiles: the next tile's first product goes with this
// one's last.
#pragma once

#include "backend/cuda/sm90/forward/stages.cuh"
#include "backend/cuda/tile/softmax.cuh"
#include "backend/cuda/tile/trace.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
class Consumer : ConsumerStages<Row> {
  using Stages = ConsumerStages<Row>;
  using Stages::blocks_;
  using Stages::finish_skipped, Stages::free_q, Stages::k_descriptor, Stages::load_tile;
  using Stages::lane_;
  using Stages::params_;
  using Stages::pass_turn, Stages::q_descriptor, Stages::release, Stages::skip_keys;
  using Stages::row_;
  using Stages::shared_;
  using Stages::skip_values, Stages::slot, Stages::take_turn, Stages::v_descriptor;
  using Stages::wait, Stages::wait_q, Stages::warpgroup;

 public:
  using T = Traits<Row>;

  ROWMAX_DEVICE Consumer(const ForwardParams& params, const SharedMap<Row>& shared, int warpgroup)
      : Stages(params, shared, warpgroup),
        trace_(params.trace, warpgroup, threadIdx.x % 128 == 0) {}

  ROWMAX_DEVICE void run() {
    wait_q(0);
    tile_ = load_tile(0);
    if (tile_.block_end == 0) {
      return;
    }
    if (T::kTurns && warpgroup() == T::kWarpgroups - 1) {
      pass_turn();  // warpgroup 0 has the first turn
    }
    run_tiles();
  }

 private:
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
    if (j == tile_.block_begin) {
      free_q();
    }
    change_scores<Row>(params_, alibi_, j, s_, state_.offset);
    if constexpr (kMasked) {
      mask(j, count);
    }
    const float scale = params_.score.exponent_scale;
    if constexpr (T::kHeld > 0) {
      float factor[2];
      const bool grown = raise_grown(j, factor);
      uint32_t p[T::kPacked];
      tile::BlockSum block = tile::begin_block(state_, scale);
      tile::exponentials<T>(s_, p, block, scale);
      hold(p);
      await_out(j);
#pragma unroll
      for (int i = 0; i < T::kPacked; ++i) {
        p_[i] = p[i];
      }
      if (grown) {
        tile::multiply_rows(o_, factor);
      }
      tile::check_exponentials<T>(block, s_, p_, o_, state_, scale);
    } else {
      await_out(j);
      float factor[2];
      if (raise_grown(j, factor)) {
        tile::multiply_rows(o_, factor);
      }
      tile::later_exponentials<T>(s_, p_, o_, state_, scale);
    }
  }

  // Raises references before block j's exponentials where ALiBi's bias grows; true: O is to be
  // multiplied by `factor`.
  ROWMAX_DEVICE bool raise_grown(int j, float (&factor)[2]) {
    return T::kAlibi && params_.score.slopes != nullptr &&
           has_keys_to_the_right(alibi_, (j + 1) * T::kTileK) &&
           tile::raise_grown_references(s_, state_, factor, params_.score.exponent_scale);
  }

  // The product of the block before is in O, and has read P.
  ROWMAX_DEVICE void await_out(int j) {
    trace_.mark(TraceState::kWaitOut, j);
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    ptx::pin(p_);
    trace_.mark(TraceState::kExponentials, j);
    release(kVEmpty, blocks_ - 1);
    ++blocks_;
  }

  // The first kHeld words of P come before what follows. With two warpgroups the exponentials after
  // a product are otherwise longer than the other's turn.
  ROWMAX_DEVICE void hold(const uint32_t (&p)[T::kPacked]) {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < T::kHeld; ++i) {
      all ^= p[i];
    }
    ptx::order_after(__uint_as_float(all), shared_.base + T::kShared.scratch);
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

  // Tile `count` + 1, when its Q is there.
  ROWMAX_DEVICE LoopTile next(uint32_t count) const {
    wait_q(count + 1);
    return load_tile(count + 1);
  }

  // O and LSE of tile `count`.
  ROWMAX_DEVICE void store(RowStateOf<Row>& state, uint32_t count) {
    trace_.mark(TraceState::kStore, static_cast<int>(count));
    if constexpr (T::kQBuffers > 1) {
      store_staged<Row>(params_, shared_, o_, state, row_, count);
    } else {
      store_direct<Row>(params_, slot(count), o_, state, row_);
    }
  }

  // From the last product of tile `count`, with the next tile's first one beside it, to its store.
  ROWMAX_DEVICE void pass_boundary(const LoopTile& next_tile, uint32_t count, int accumulate) {
    const uint32_t next = count + 1;
    const uint32_t last = blocks_ - 1;  // of this tile
    skip_keys<true>(next_tile.skipped);
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
    if (first == next_tile.block_begin) {
      free_q();
    }
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
    if constexpr (!T::kTurns && T::kQBuffers > 1) {
      ptx::bar_sync(kGroupBarrier + warpgroup(), 128);
    }
    store(done, count);
    tile_ = next_tile;
  }

  // A tile's last product goes with the next tile's first one, unless this warpgroup skips blocks
  // at the tile's end: it would keep V from warpgroups whose turn comes before its next one.
  ROWMAX_DEVICE void run_tiles() {
    first_block(0);
    for (uint32_t count = 0;; ++count) {
      const int accumulate = loop(count);
      const int left = left_blocks<Row>(slot(count), warpgroup());
      const LoopTile next_tile = next(count);
      if (left == 0 && next_tile.block_end != 0) {
        pass_boundary(next_tile, count, accumulate);
        continue;
      }
      last_block(accumulate);
      if (next_tile.block_end == 0) {
        finish_skipped(left);
      }
      if constexpr (T::kQBuffers > 1) {  // all warps of this warpgroup have read Q: O overwrites it
        ptx::bar_sync(kGroupBarrier + warpgroup(), 128);
      }
      store(state_, count);
      if (next_tile.block_end == 0) {
        return;
      }
      tile_ = next_tile;
      tile_.skipped += left;
      first_block(count + 1);
    }
  }

  LoopTile tile_;
  RowStateOf<Row> state_;
  AlibiRows alibi_;
  tile::Trace trace_;
  float s_[T::kScores];
  float o_[T::kOut];
  uint32_t p_[T::kPacked];
};

}  // namespace rowmax::cuda::sm90
