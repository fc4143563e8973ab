// The consumer warpgroups: 64 query rows each, scores and O in registers.
//
// One key block j:   wait K | my turn | issue S = Q K_j | wait V | issue O += P V_(j+1) | pass turn
// |
//                    wait S, free K | mask, row maxima | wait O, free V | rescale O if needed |
//                    exponentials, sums | pack P
// so that the softmax of block j runs under the product of block j + 1 and under the other
// warpgroups' products. With two Q buffers the loop does not drain between tiles: the first product
// of the next tile is issued together with this tile's last one.
#pragma once

#include "backend/cuda/sm90/forward/epilogue.cuh"
#include "backend/cuda/tile/mask.cuh"
#include "backend/cuda/tile/score.cuh"
#include "backend/cuda/tile/softmax.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
class Consumer {
 public:
  using T = Traits<Row>;

  ROWMAX_DEVICE Consumer(const ForwardParams& params, const SharedMap<Row>& shared, int warpgroup)
      : params_(params),
        shared_(shared),
        warpgroup_(warpgroup),
        lane_(threadIdx.x % 32),
        row_(warpgroup * 64 + (threadIdx.x / 32) % 4 * 16 + lane_ / 4),
        q_offset_(shared.base + T::kShared.q + warpgroup * 64 * kPanelRowBytes) {}

  ROWMAX_DEVICE void run() {
    ptx::mbarrier_wait(shared_.barrier(kQFull, 0), 0);
    tile_ = load_tile(0);
    if (tile_.block_end == 0) {
      return;
    }
    if (T::kTurns && warpgroup_ == T::kWarpgroups - 1) {
      pass_turn();  // warpgroup 0 has the first turn
    }
    if constexpr (T::kQBuffers == 2) {
      run_overlapped();
    } else {
      run_drained();
    }
  }

 private:
  // The fields of a tile that the loop needs.
  struct LoopTile {
    int position;
    int block_begin;
    int block_end;
    int k_len;
    int hi;
    int lo;
  };

  ROWMAX_DEVICE LoopTile load_tile(uint32_t count) const {
    const TileInfo& slot = shared_.slots[count % kTileSlots];
    LoopTile tile;
    tile.position = ptx::uniform(slot.position);
    tile.block_begin = ptx::uniform(slot.block_begin);
    tile.block_end = ptx::uniform(slot.block_end);
    tile.k_len = ptx::uniform(slot.k_len);
    tile.hi = ptx::uniform(slot.hi);
    tile.lo = ptx::uniform(slot.lo);
    return tile;
  }

  ROWMAX_DEVICE void take_turn() const {
    if constexpr (T::kTurns) {
      ptx::bar_sync(kTurnBarrier + warpgroup_, 256);
    }
  }
  ROWMAX_DEVICE void pass_turn() const {
    if constexpr (T::kTurns) {
      const int next = warpgroup_ + 1 == T::kWarpgroups ? 0 : warpgroup_ + 1;
      ptx::bar_arrive(kTurnBarrier + next, 256);
    }
  }
  ROWMAX_DEVICE void wait_k() const {
    ptx::mbarrier_wait(shared_.barrier(kKFull, ring_index<T::kStages>(k_count_)),
                       ring_parity<T::kStages>(k_count_));
  }
  ROWMAX_DEVICE void wait_v() const {
    ptx::mbarrier_wait(shared_.barrier(kVFull, ring_index<T::kStages>(v_count_)),
                       ring_parity<T::kStages>(v_count_));
  }
  ROWMAX_DEVICE void free_k() {
    if (lane_ == 0) {
      ptx::mbarrier_arrive(shared_.barrier(kKEmpty, ring_index<T::kStages>(k_count_)));
    }
    ++k_count_;
  }
  ROWMAX_DEVICE void free_v() {
    if (lane_ == 0) {
      ptx::mbarrier_arrive(shared_.barrier(kVEmpty, ring_index<T::kStages>(v_count_)));
    }
    ++v_count_;
  }
  // One Q buffer: warp 0 may load the next tile once all consumer warps have read this one.
  ROWMAX_DEVICE void free_q() const {
    if (T::kQBuffers == 1 && lane_ == 0) {
      ptx::mbarrier_arrive(shared_.barrier(kQEmpty, 0));
    }
  }
  ROWMAX_DEVICE uint32_t q_address(uint32_t count) const {
    return ptx::uniform(q_offset_ + ring_index<T::kQBuffers>(count) * T::kQBytes);
  }

  // S = Q K^T of the current K stage.
  ROWMAX_DEVICE void issue_scores(uint32_t q) {
    const uint64_t a = ptx::descriptor_at(ptx::kDescriptorKMajor, q);
    const uint64_t b =
        ptx::descriptor_at(ptx::kDescriptorKMajor, shared_.k(ring_index<T::kStages>(k_count_)));
#pragma unroll
    for (int k = 0; k < T::kHeadDim / 16; ++k) {
      ptx::Wgmma<T::kTileK>::template ss<T::kMma>(
          s_, a + (k / 4) * (T::kQPanelBytes / 16) + (k % 4) * 2,
          b + (k / 4) * (T::kKeyPanelBytes / 16) + (k % 4) * 2, k != 0);
    }
    ptx::wgmma_commit();
  }
  // O (+)= P V of the current V stage.
  ROWMAX_DEVICE void issue_out(int accumulate) {
    const uint64_t b = ptx::descriptor_at(ptx::descriptor_mn_major(T::kKeyPanelBytes),
                                          shared_.v(ring_index<T::kStages>(v_count_)));
#pragma unroll
    for (int k = 0; k < T::kTileK / 16; ++k) {
      ptx::Wgmma<T::kHeadDimV>::template rs<T::kMma>(o_, p_[4 * k], p_[4 * k + 1], p_[4 * k + 2],
                                                     p_[4 * k + 3], b + k * 128,
                                                     k != 0 ? 1 : accumulate);
    }
    ptx::wgmma_commit();
  }

  ROWMAX_DEVICE void pack_p() {
#pragma unroll
    for (int i = 0; i < T::kPacked; ++i) {
      p_[i] = T::pack(s_[2 * i], s_[2 * i + 1]);
    }
  }
  ROWMAX_DEVICE void rescale_out() {
#pragma unroll
    for (int i = 0; i < T::kOut; ++i) {
      o_[i] *= state_.rescale[(i >> 1) & 1];
    }
  }

  // Position of this thread's row r in its tile.
  ROWMAX_DEVICE int row_position(int r) const {
    return position_in_tile(params_.order, row_ + 8 * r);
  }

  // Sign of the scale, softcap, ALiBi: run-time options, all behind one uniform branch.
  ROWMAX_DEVICE void change_scores(const LoopTile& tile, int j, uint32_t count) {
    const ScoreParams& score = params_.score;
    if (score.multiply != 1.f) {
      tile::multiply(s_, score.multiply);
    }
    if (score.softcap != 0.f) {
      tile::softcap(s_, score.softcap);
    }
    if (score.slopes != nullptr) {
      const TileInfo& slot = shared_.slots[count % kTileSlots];
      float slope[2];
      float distance[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int position = row_position(r);
        const int head = slot.head + row_ + 8 * r - position * params_.order.pack;
        slope[r] = 0.f;
        if (position < slot.rows) {
          slope[r] = score.slope_scale *
                     score.slopes[slot.batch * score.slope_batch + head * score.slope_head];
        }
        distance[r] = static_cast<float>(tile.position + position + slot.shift - j * T::kTileK -
                                         2 * (lane_ & 3));
      }
      tile::add_alibi(s_, slope, distance);
    }
  }

  // Masks key block j where some row of this warpgroup needs it: a branch uniform in the warpgroup.
  ROWMAX_DEVICE void mask_scores(const LoopTile& tile, int j) {
    const int key = j * T::kTileK;
    int above = tile.k_len;  // first key that no row of the warpgroup may see ...
    if constexpr (T::kBanded) {
      const int first_row = tile.position + position_in_tile(params_.order, warpgroup_ * 64);
      const int end = first_row + tile.hi + 1;  // ... or that its first row may not see
      above = end < above ? end : above;
    }
    if (key + T::kTileK > above) {
      int limit[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        limit[r] = tile.k_len - 1;
        if constexpr (T::kBanded) {
          const int last = tile.position + row_position(r) + tile.hi;
          limit[r] = last < limit[r] ? last : limit[r];
        }
        limit[r] -= key + 2 * (lane_ & 3);
      }
      tile::mask_above(s_, limit);
    }
    if constexpr (T::kBanded) {
      const int last_row = tile.position + position_in_tile(params_.order, warpgroup_ * 64 + 63);
      if (key < last_row + tile.lo) {
        int limit[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          limit[r] = tile.position + row_position(r) + tile.lo - key - 2 * (lane_ & 3);
        }
        tile::mask_below(s_, limit);
      }
    }
  }

  // Softmax of a tile's first block; its product with V is issued by the next step.
  ROWMAX_DEVICE void first_softmax(const LoopTile& tile, uint32_t count) {
    if (params_.score.changes) {
      change_scores(tile, tile.block_end - 1, count);
    }
    mask_scores(tile, tile.block_end - 1);
    tile::first_max(s_, state_, params_.score.exponent_scale);
  }

  // Scores of a tile's first block with nothing beside them.
  ROWMAX_DEVICE void first_block(uint32_t count) {
    const uint32_t q = q_address(count);
    wait_k();
    ptx::wgmma_fence();
    issue_scores(q);
    ptx::wgmma_wait<0>();
    ptx::pin(s_);
    free_k();
    if (tile_.block_end - 1 == tile_.block_begin) {
      free_q();
    }
    first_softmax(tile_, count);
    tile::exponentials(s_, state_, params_.score.exponent_scale);
    pack_p();
  }

  // Key block j; accumulate is 0 when the product of block j + 1 is the tile's first.
  template <bool kMasked>
  ROWMAX_DEVICE void step(int j, uint32_t q, uint32_t count, int accumulate) {
    const float scale = params_.score.exponent_scale;
    wait_k();
    take_turn();
    ptx::wgmma_fence();
    issue_scores(q);
    wait_v();
    issue_out(accumulate);
    pass_turn();
    ptx::wgmma_wait<1>();
    ptx::pin(s_);
    free_k();
    if (T::kQBuffers == 1 && j == tile_.block_begin) {
      free_q();
    }
    if (params_.score.changes) {
      change_scores(tile_, j, count);
    }
    if constexpr (kMasked) {
      mask_scores(tile_, j);
    }
    constexpr bool kSelect = T::kConfig.rescale == Rescale::kRow;
    const bool rescale = tile::next_max<kSelect>(s_, state_, scale);
    // The product of block j + 1 has run under the row maxima. Waiting for it here, before the
    // exponentials, frees V early and lets packing and rescaling hide among them.
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    ptx::pin(p_);
    free_v();
    if (!kSelect && rescale) {
      rescale_out();
    }
    tile::exponentials(s_, state_, scale);
    pack_p();
    if (kSelect && rescale) {
      rescale_out();
    }
  }

  // The tile's key blocks but the first. Returns whether a product has gone into O.
  ROWMAX_DEVICE int loop(uint32_t count) {
    const uint32_t q = q_address(count);
    int accumulate = 0;
    int j = tile_.block_end - 2;
    if constexpr (T::kBanded) {
      // Blocks in [clean_begin, clean_end) are visible to every row of the tile.
      const int first = tile_.position;
      const int last = tile_.position + params_.order.positions - 1;
      const int clean_end = (first + tile_.hi + 1) / T::kTileK;
      const int clean_begin = (last + tile_.lo + T::kTileK - 1) / T::kTileK;
      const int end = clean_end > tile_.block_begin ? clean_end : tile_.block_begin;
      const int begin = clean_begin > tile_.block_begin ? clean_begin : tile_.block_begin;
#pragma unroll 1
      for (; j >= end; --j) {
        step<true>(j, q, count, accumulate);
        accumulate = 1;
      }
#pragma unroll 1
      for (; j >= begin; --j) {
        step<false>(j, q, count, accumulate);
        accumulate = 1;
      }
#pragma unroll 1
      for (; j >= tile_.block_begin; --j) {
        step<true>(j, q, count, accumulate);
        accumulate = 1;
      }
    } else {
#pragma unroll 1
      for (; j >= 0; --j) {
        step<false>(j, q, count, accumulate);
        accumulate = 1;
      }
    }
    return accumulate;
  }

  // The last product of a tile with nothing beside it.
  ROWMAX_DEVICE void last_block(int accumulate) {
    wait_v();
    take_turn();
    ptx::wgmma_fence();
    issue_out(accumulate);
    pass_turn();
    ptx::wgmma_wait<0>();
    ptx::pin(o_);
    free_v();
  }

  ROWMAX_DEVICE void run_overlapped() {
    first_block(0);
    for (uint32_t count = 0;; ++count) {
      const int accumulate = loop(count);
      const uint32_t next = count + 1;
      ptx::mbarrier_wait(shared_.barrier(kQFull, ring_index<T::kQBuffers>(next)),
                         ring_parity<T::kQBuffers>(next));
      const LoopTile next_tile = load_tile(next);
      if (next_tile.block_end == 0) {
        last_block(accumulate);
        // Every warp of this warpgroup has read Q before O overwrites it.
        ptx::bar_sync(kGroupBarrier + warpgroup_, 128);
        store_staged<Row>(params_, shared_, o_, state_, row_, count);
        return;
      }
      const uint32_t q = q_address(next);
      wait_k();
      take_turn();  // also: all warps of this warpgroup have read this tile's Q
      ptx::wgmma_fence();
      issue_scores(q);
      wait_v();
      issue_out(accumulate);
      pass_turn();
      ptx::wgmma_wait<1>();
      ptx::pin(s_);
      free_k();
      tile::RowState done = state_;
      first_softmax(next_tile, next);
      ptx::wgmma_wait<0>();
      ptx::pin(o_);
      ptx::pin(p_);
      free_v();
      tile::exponentials(s_, state_, params_.score.exponent_scale);
      pack_p();
      if constexpr (!T::kTurns) {
        ptx::bar_sync(kGroupBarrier + warpgroup_, 128);
      }
      store_staged<Row>(params_, shared_, o_, done, row_, count);
      tile_ = next_tile;
    }
  }

  ROWMAX_DEVICE void run_drained() {
    for (uint32_t count = 0;;) {
      // The slot may be overwritten once Q is free: what the epilogue needs is read before.
      const OutputTile out = output_tile(shared_.slots[count % kTileSlots]);
      first_block(count);
      last_block(loop(count));
      store_rows<Row>(params_, out, o_, state_, row_);
      ++count;
      ptx::mbarrier_wait(shared_.barrier(kQFull, 0), ring_parity<1>(count));
      tile_ = load_tile(count);
      if (tile_.block_end == 0) {
        return;
      }
    }
  }

  const ForwardParams& params_;
  const SharedMap<Row>& shared_;
  const int warpgroup_;
  const int lane_;
  const int row_;  // first of this thread's two rows in the tile, the other is + 8
  const uint32_t q_offset_;
  uint32_t k_count_ = 0;
  uint32_t v_count_ = 0;
  LoopTile tile_;
  tile::RowState state_;
  float s_[T::kScores];
  float o_[T::kOut];
  uint32_t p_[T::kPacked];
};

}  // namespace rowmax::cuda::sm90
