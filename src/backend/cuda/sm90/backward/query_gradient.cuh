// The query warpgroup: dQ += dS K, added to global memory from registers. Apart from the key
// warpgroups, which so never wait for each other.
//
// A tile of dQ is computed as products of 64 rows and 64 columns, each added before the next one is
// issued: fewer registers than one wide product. The first addition to a tile stores. In global
// memory the tile is in the order of the accumulators, (warp, 8 columns of 16 rows, lane, 4): a
// warp's additions are 512 contiguous bytes.
#pragma once

#include "backend/cuda/ptx/global.cuh"
#include "backend/cuda/sm90/backward/scheduler.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
class QueryGradient {
 public:
  using T = BackwardTraits<Row>;

  ROWMAX_DEVICE QueryGradient(const BackwardParams& params, const BackwardMap<Row>& shared,
                              int warp)
      : params_(params), shared_(shared), warp_(warp) {}

  ROWMAX_DEVICE void run() {
#pragma unroll 1
    for (uint32_t count = 0;; ++count) {
      const KeyTile& slot = shared_.tiles[ring_index<kKeyTileSlots>(count)];
      const uint32_t full = shared_.barrier(kTileFull, ring_index<kKeyTileSlots>(count));
      ptx::mbarrier_wait(full, ring_parity<kKeyTileSlots>(count));
      const int steps = ptx::uniform(slot.steps);
      if (steps < 0) {
        return;
      }
      ptx::mbarrier_wait(shared_.barrier(kKeysFull), count & 1);
      run_steps(slot, steps);
      if (lane() == 0) {  // the slot may be overwritten after this
        ptx::mbarrier_arrive(shared_.barrier(kKeysRead));
      }
    }
  }

 private:
  static constexpr int kPartColumns = 64;  // of a product
  static constexpr int kParts = T::kTileQ * T::kHeadDim / (64 * kPartColumns);
  static constexpr int kPartChunks = kPartColumns / 8;
  static constexpr int kTileFloats = T::kTileQ * T::kHeadDim;
  // Where part 1 starts in dS (64 more rows) or in K (64 more columns), in descriptor units.
  static constexpr bool kPartsAreRows = T::kTileQ > 64;
  static constexpr uint32_t kDsPart = kPartsAreRows ? T::kDsPanelBytes / 16 : 0;
  static constexpr uint32_t kKeyPart = kPartsAreRows ? 0 : T::kKeyPanelBytes / 16;

  ROWMAX_DEVICE int lane() const { return threadIdx.x % 32; }

  ROWMAX_DEVICE void run_steps(const KeyTile& keys, int steps) {
    StepWalk walk;
    walk.start(keys, params_.group);
#pragma unroll 1
    for (int left = steps; left > 0; --left) {
      add_step(keys, walk);
      walk.next(keys);
    }
  }

  // dQ of one step: A = dS, stored as [key][query], B = K, [key][column]: both MN-major.
  ROWMAX_DEVICE void add_step(const KeyTile& keys, const StepWalk& walk) {
    const int number =
        keys.first_query_tile + walk.head * params_.query_tiles.head_step + walk.tile;
    float* sum =
        params_.dq_sum + int64_t{number} * kTileFloats + warp_ * (kTileFloats / 4) + lane() * 4;
    const bool wanted = params_.dq_sum != nullptr;
    const uint32_t turn = ring_index<kTurnSlots>(used_);
    int stores = 0;
    const uint32_t buffer = ring_index<T::kDsBuffers>(used_);
    const uint64_t a = ptx::descriptor(
        ptx::uniform(ptx::descriptor_mn_major(shared_.base, T::kShared.ds, T::kDsPanelBytes) +
                     buffer * (T::kDsBytes / 16)));
    const uint64_t b =
        ptx::descriptor(ptx::descriptor_mn_major(shared_.base, T::kShared.k, T::kKeyPanelBytes));
    ptx::mbarrier_wait(shared_.barrier(kDsFull, buffer), ring_parity<T::kDsBuffers>(used_));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float acc[kPartColumns / 2];  // declared here: outside, it would be kept through the loads
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < T::kTileK / 16; ++i) {
        ptx::Wgmma<kPartColumns>::template ss<T::kMma, ptx::Major::kMN>(
            acc, a + part * kDsPart + i * 128, b + part * kKeyPart + i * 128, i != 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(acc);
      if (part == kParts - 1 && lane() == 0) {
        ptx::mbarrier_arrive(shared_.barrier(kDsEmpty, buffer));
      }
      if (wanted) {
        if (part == 0) {
          ptx::mbarrier_wait(shared_.barrier(kTurn, turn), ring_parity<kTurnSlots>(used_));
          stores = ptx::load_shared_int(shared_.turn_info(turn));
        }
        float* to = sum + part * (kPartChunks * 128);
        if (stores != 0) {
#pragma unroll
          for (int j = 0; j < kPartChunks; ++j) {
            ptx::st_relaxed_v4(to + j * 128, acc[4 * j], acc[4 * j + 1], acc[4 * j + 2],
                               acc[4 * j + 3]);
          }
        } else {
#pragma unroll
          for (int j = 0; j < kPartChunks; ++j) {
            ptx::red_add_v4(to + j * 128, acc[4 * j], acc[4 * j + 1], acc[4 * j + 2],
                            acc[4 * j + 3]);
          }
        }
      }
    }
    if (wanted) {
      __syncwarp();
      if (lane() == 0) {
        ptx::mbarrier_arrive(shared_.barrier(kAdded, turn));
      }
    }
    ++used_;
  }

  const BackwardParams& params_;
  const BackwardMap<Row>& shared_;
  const int warp_;
  uint32_t used_ = 0;  // steps added by this CTA
};

}  // namespace rowmax::cuda::sm90
