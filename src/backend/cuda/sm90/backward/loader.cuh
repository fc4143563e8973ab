// Warp 0: tickets; K and V of a key tile, then Q, dO and the row statistics of each step.
#pragma once

#include "backend/cuda/sm90/backward/scheduler.cuh"

namespace rowmax::cuda::sm90 {

// All methods are called by all lanes of warp 0 together.
template <class Row>
class Loader {
 public:
  using T = BackwardTraits<Row>;

  ROWMAX_DEVICE Loader(const BackwardParams& params, const BackwardMap<Row>& shared)
      : params_(params), shared_(shared) {}

  ROWMAX_DEVICE void run() {
#pragma unroll 1
    for (uint32_t count = 0;; ++count) {
      KeyTile& slot = shared_.tiles[ring_index<kKeyTileSlots>(count)];
      if (threadIdx.x == 0) {
        next_key_tile<Row>(params_, slot);
        ptx::mbarrier_arrive(shared_.barrier(kTileFull, ring_index<kKeyTileSlots>(count)));
      }
      __syncwarp();
      const int steps = ptx::uniform(slot.steps);
      if (steps < 0) {
        return;
      }
      start(slot, count);
#pragma unroll 1
      for (int left = steps; left > 0; --left) {
        load(slot);
      }
    }
  }

 private:
  // Key tile number `count` of this CTA.
  ROWMAX_DEVICE void start(const KeyTile& tile, uint32_t count) {
    walk_.start(tile, params_.group);
    ptx::mbarrier_wait(shared_.barrier(kKeysEmpty), (count & 1) ^ 1);
    const bool zero = tile.store_rows != 0;
    const uint32_t full = shared_.barrier(kKeysFull);
    const uint32_t arrived = zero ? shared_.barrier(kKeysLoaded) : full;
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expect_tx(arrived, 2 * T::kKeyBytes);
      const int seq = tile.k_begin + tile.first_key;
      load_panels<T::kPanels>(
          shared_.k(), T::kKeyPanelBytes, &params_.k, arrived,
          {0, tile.kv_head * params_.k_steps.head, seq, tile.batch * params_.k_steps.batch},
          ptx::kEvictFirst);
      load_panels<T::kPanels>(
          shared_.v(), T::kKeyPanelBytes, &params_.v, arrived,
          {0, tile.kv_head * params_.v_steps.head, seq, tile.batch * params_.v_steps.batch},
          ptx::kEvictFirst);
    }
    if (zero) {  // dS is 0 in keys past the end, but 0 x NaN of a neighbouring sequence is not
      wait_loaded();
      zero_rows<T::kTileK, T::kPanels>(shared_.k(), tile.rows);
      zero_rows<T::kTileK, T::kPanels>(shared_.v(), tile.rows);
      arrive(full);
    }
  }

  ROWMAX_DEVICE void arrive(uint32_t barrier) {
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive(barrier);
    }
  }

  ROWMAX_DEVICE void wait_loaded() {
    __syncwarp();
    ptx::mbarrier_wait(shared_.barrier(kKeysLoaded), zeroed_ & 1);
    ++zeroed_;
  }

  // First row of a query tile, and which key warpgroups have scores to mask.
  ROWMAX_DEVICE int step_info(const KeyTile& tile, int row) const {
    int info = row;
#pragma unroll
    for (int warpgroup = 0; warpgroup < kKeyWarpgroups; ++warpgroup) {
      const int first = 64 * warpgroup;
      bool masked = first + 64 > tile.rows;
      if constexpr (T::kBanded) {
        const int key = tile.first_key + first;
        masked =
            masked || key + 63 > row + tile.band_end || key < row + T::kTileQ - 1 + tile.band_begin;
      }
      info |= masked ? 1 << warpgroup : 0;
    }
    return info;
  }

  ROWMAX_DEVICE void load(const KeyTile& tile) {
    const uint32_t stage = ring_index<T::kStages>(loads_);
    ptx::mbarrier_wait(shared_.barrier(kEmpty, stage), ring_parity<T::kStages>(loads_) ^ 1);
    ++loads_;
    const int row = walk_.tile * T::kTileQ;
    const bool zero = params_.lengths.any && row + T::kTileQ > tile.q_len;
    const uint32_t full = shared_.barrier(kFull, stage);
    const uint32_t arrived = zero ? shared_.barrier(kKeysLoaded) : full;
    if (threadIdx.x == 0) {
      ptx::store_shared_int(shared_.step_info(stage), step_info(tile, row));
      ptx::mbarrier_arrive_expect_tx(arrived, 2 * T::kQueryBytes + T::kStatsBytes);
      const int seq = tile.q_begin + row;
      const int64_t number =
          tile.first_query_tile + walk_.head * params_.query_tiles.head_step + walk_.tile;
      load_panels<T::kPanels>(
          shared_.q(stage), T::kQueryPanelBytes, &params_.q, arrived,
          {0, walk_.head * params_.q_steps.head, seq, tile.batch * params_.q_steps.batch},
          ptx::kEvictLast);
      ptx::bulk_load(shared_.stats(stage), params_.stats + number * (2 * T::kTileQ), T::kStatsBytes,
                     arrived);
      load_panels<T::kPanels>(
          shared_.dout(stage), T::kQueryPanelBytes, &params_.dout, arrived,
          {0, walk_.head * params_.dout_steps.head, seq, tile.batch * params_.dout_steps.batch},
          ptx::kEvictLast);
    }
    if (zero) {  // likewise P is 0 in rows past the end
      wait_loaded();
      zero_rows<T::kTileQ, T::kPanels>(shared_.q(stage), tile.q_len - row);
      zero_rows<T::kTileQ, T::kPanels>(shared_.dout(stage), tile.q_len - row);
      arrive(full);
    }
    walk_.next(tile);
  }

  const BackwardParams& params_;
  const BackwardMap<Row>& shared_;
  StepWalk walk_;
  uint32_t loads_ = 0;   // steps loaded by this CTA
  uint32_t zeroed_ = 0;  // tiles with rows past their sequence
};

}  // namespace rowmax::cuda::sm90
