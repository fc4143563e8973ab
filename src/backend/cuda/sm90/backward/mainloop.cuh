// The key warpgroups: 64 keys each, S^T, dP^T, dV and dK in registers.
//
// One step i, P(i) in registers and nothing in flight at its edges:
//   issue dP(i) = V dO^T | issue dV += P^T dO | wait dP | dS | wait dV | dS to shared memory |
//   issue S(i+1) = K Q^T | issue dK += dS^T Q | wait S | mask, exponentials | wait dK, free the
//   stage
// so that the exponentials of the next step run under dK. After the last step S is a product of
// stale data that nobody reads.
#pragma once

#include "backend/cuda/sm90/backward/epilogue.cuh"
#include "backend/cuda/tile/mask.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
class KeyGradients {
 public:
  using T = BackwardTraits<Row>;

  ROWMAX_DEVICE KeyGradients(const BackwardParams& params, const BackwardMap<Row>& shared,
                             int warpgroup)
      : params_(params), shared_(shared), warpgroup_(warpgroup) {
    const int thread = threadIdx.x % 128;
    const int row = warpgroup * 64 + thread / 32 * 16 + (thread & 15);  // for stmatrix
    ds_address_ = shared.ds(0) + row * kPanelRowBytes + ((thread % 32 / 16) ^ (row & 7)) * 16;
    stats_address_ = shared.stats(0) + (thread & 3) * 8;
  }

  ROWMAX_DEVICE void run() {
#pragma unroll 1
    for (uint32_t count = 0;; ++count) {
      const KeyTile& keys = shared_.tiles[ring_index<kKeyTileSlots>(count)];
      ptx::mbarrier_wait(shared_.barrier(kTileFull, ring_index<kKeyTileSlots>(count)),
                         ring_parity<kKeyTileSlots>(count));
      const int steps = ptx::uniform(keys.steps);
      if (steps < 0) {
        return;
      }
#pragma unroll
      for (int i = 0; i < T::kGradients; ++i) {
        dk_[i] = dv_[i] = 0.f;
      }
      ptx::mbarrier_wait(shared_.barrier(kKeysFull), count & 1);
      if (steps > 0) {
        mainloop(keys, steps);
      }
      store(keys, count);
    }
  }

 private:
  ROWMAX_DEVICE uint64_t key_descriptor(uint32_t offset) const {
    return ptx::descriptor(ptx::uniform(ptx::descriptor_k_major(shared_.base, offset) +
                                        warpgroup_ * (64 * kPanelRowBytes / 16)));
  }
  // Of Q in the current stage, dO is kQueryBytes further.
  ROWMAX_DEVICE uint32_t query_address() const { return ptx::uniform(shared_.q(stage_)); }

  ROWMAX_DEVICE void wait_stage() const {
    ptx::mbarrier_wait(shared_.barrier(kFull, stage_), phase_);
  }
  ROWMAX_DEVICE void advance() {
    if (++stage_ == T::kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }

  // 64 keys x kTileQ queries over the head dim: S^T = K Q^T, dP^T = V dO^T.
  ROWMAX_DEVICE void issue_scores(float (&acc)[T::kScores], uint64_t a, uint32_t query) {
    const uint64_t b = ptx::descriptor(ptx::descriptor_k_major(query, 0));
#pragma unroll
    for (int i = 0; i < T::kHeadDim / 16; ++i) {
      ptx::Wgmma<T::kTileQ>::template ss<T::kMma>(
          acc, a + (i / 4) * (T::kKeyPanelBytes / 16) + (i % 4) * 2,
          b + (i / 4) * (T::kQueryPanelBytes / 16) + (i % 4) * 2, i != 0);
    }
    ptx::wgmma_commit();
  }
  // 64 keys x head dim over kTileQ queries: dV += P^T dO, dK += dS^T Q.
  ROWMAX_DEVICE void issue_gradient(float (&acc)[T::kGradients], uint32_t (&x)[T::kPacked],
                                    uint32_t query) {
    const uint64_t b = ptx::descriptor(ptx::descriptor_mn_major(query, 0, T::kQueryPanelBytes));
#pragma unroll
    for (int i = 0; i < T::kTileQ / 16; ++i) {
      ptx::Wgmma<T::kHeadDim>::template rs<T::kMma>(acc, x[4 * i], x[4 * i + 1], x[4 * i + 2],
                                                    x[4 * i + 3], b + i * 128, 1);
    }
    ptx::wgmma_commit();
  }

  // Where the loader says that some key of this warpgroup is hidden from some row of the step. Keys
  // past the end are hidden from all rows.
  ROWMAX_DEVICE void mask(const KeyTile& keys, int info) {
    if (((info >> warpgroup_) & 1) == 0) {
      return;
    }
    const int thread = ptx::thread_index() % 128;
    const int first = warpgroup_ * 64 + thread / 32 * 16 + thread % 32 / 4;  // key in the tile
    uint32_t visible[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      visible[r] = 0xffffffffu;
      if constexpr (T::kBanded) {  // columns are queries: i <= key - begin, i >= key - end
        const int key = keys.first_key + first + 8 * r - (info & kStepRowMask) - 2 * (thread & 3);
        visible[r] = tile::columns_before(key - keys.band_begin + 1) &
                     ~tile::columns_before(key - keys.band_end);
      }
      visible[r] = first + 8 * r < keys.rows ? visible[r] : 0u;
    }
    tile::mask_columns(s_, visible);
  }

  // P = 2^(S c - L) in units of kProbabilityUnit, which the statistics contain. It is kept as a
  // 16-bit operand only: its fp32 form would not fit in registers.
  ROWMAX_DEVICE void exponentials() {
    const uint32_t stats = stats_address_ + stage_ * T::kStatsBytes;
#pragma unroll
    for (int j = 0; j < T::kTileQ / 8; ++j) {
      const float2 lse = ptx::load_shared_float2(stats + j * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p_[2 * j + r] =
            T::pack(ptx::ex2(__fmaf_rn(s_[4 * j + 2 * r], params_.exponent_scale, -lse.x)),
                    ptx::ex2(__fmaf_rn(s_[4 * j + 2 * r + 1], params_.exponent_scale, -lse.y)));
      }
    }
  }

  // dS = P o (dP - delta), delta in the same unit.
  ROWMAX_DEVICE void score_gradients() {
    const uint32_t stats = stats_address_ + stage_ * T::kStatsBytes + T::kStatsBytes / 2;
#pragma unroll
    for (int j = 0; j < T::kTileQ / 8; ++j) {
      const float2 delta = ptx::load_shared_float2(stats + j * 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 p = T::unpack(p_[2 * j + r]);
        ds_[2 * j + r] =
            T::pack(p.x * __fmaf_rn(dp_[4 * j + 2 * r], T::kProbabilityUnit, -delta.x),
                    p.y * __fmaf_rn(dp_[4 * j + 2 * r + 1], T::kProbabilityUnit, -delta.y));
      }
    }
  }

  // dS^T to shared memory, [key][query], for the query warpgroup.
  ROWMAX_DEVICE void hand_over() {
    ptx::mbarrier_wait(shared_.barrier(kDsEmpty, buffer_), buffer_phase_ ^ 1);
#pragma unroll
    for (int i = 0; i < T::kTileQ / 16; ++i) {
      ptx::stmatrix_x4(
          (ds_address_ + buffer_ * T::kDsBytes + (i / 4) * T::kDsPanelBytes) ^ (i % 4 * 32),
          ds_[4 * i], ds_[4 * i + 1], ds_[4 * i + 2], ds_[4 * i + 3]);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (ptx::elect()) {
      ptx::mbarrier_arrive(shared_.barrier(kDsFull, buffer_));
    }
    if (++buffer_ == T::kDsBuffers) {
      buffer_ = 0;
      buffer_phase_ ^= 1;
    }
  }

  ROWMAX_DEVICE void mainloop(const KeyTile& keys, int steps) {
    const uint64_t k = key_descriptor(T::kShared.k);
    const uint64_t v = key_descriptor(T::kShared.v);
    wait_stage();
    int info = ptx::load_shared_int(shared_.step_info(stage_));
    ptx::wgmma_fence();
    issue_scores(s_, k, query_address());
    ptx::wgmma_wait<0>();
    ptx::pin(s_);
    mask(keys, info);
    exponentials();
#pragma unroll 1
    for (int left = steps - 1; left >= 0; --left) {
      const uint32_t q = query_address();
      const uint32_t done = stage_;
      ptx::wgmma_fence();
      issue_scores(dp_, v, q + T::kQueryBytes);
      issue_gradient(dv_, p_, q + T::kQueryBytes);
      ptx::wgmma_wait<1>();
      ptx::pin(dp_);
      score_gradients();
      // dV ends here: with P, dS and the next S all alive ptxas runs short of registers and
      // serialises every wgmma.
      ptx::wgmma_wait<0>();
      ptx::pin(dv_);
      ptx::pin(p_);
      hand_over();
      advance();
      if (left > 0) {
        wait_stage();
      }
      info = ptx::load_shared_int(shared_.step_info(stage_));
      ptx::wgmma_fence();
      issue_scores(s_, k, query_address());
      issue_gradient(dk_, ds_, q);
      ptx::wgmma_wait<1>();
      ptx::pin(s_);
      mask(keys, info);
      exponentials();
      ptx::wgmma_wait<0>();
      ptx::pin(dk_);
      ptx::pin(ds_);
      if (ptx::elect()) {
        ptx::mbarrier_arrive(shared_.barrier(kEmpty, done));
      }
    }
  }

  // One of dK and dV: through the rows of `tile`, its maps and sizes.
  struct Destination {
    uint32_t tile;
    const RowOutput& rows;
    const ptx::TensorMap& map;
    const MapSteps& steps;
    int head_dim;
  };

  ROWMAX_DEVICE void store_one(const KeyTile& keys, float (&gradient)[T::kGradients], float factor,
                               const Destination& to) {
    if (to.rows.data == nullptr) {
      return;
    }
    stage_gradient<Row>(gradient, to.tile, warpgroup_, factor);
    if (keys.store_rows) {
      store_gradient_rows<Row>(keys, to.tile, warpgroup_, to.rows, to.head_dim);
      return;
    }
    ptx::fence_proxy_async();
    ptx::bar_sync(kKeyGroupBarrier + warpgroup_, 128);
    if (threadIdx.x % 128 == 0) {
      copy_gradient<Row>(keys, to.tile, warpgroup_, &to.map, to.steps);
    }
  }

  // dV through this warpgroup's rows of V, dK through those of K once dQ is done with K.
  ROWMAX_DEVICE void store(const KeyTile& keys, uint32_t count) {
    const BackwardParams& p = params_;
    // All warps of the warpgroup have read V and K.
    ptx::bar_sync(kKeyGroupBarrier + warpgroup_, 128);
    store_one(keys, dv_, T::kProbabilityUnit,
              {shared_.v(), p.dv_rows, p.dv, p.dv_steps, p.head_dim_v});
    ptx::mbarrier_wait(shared_.barrier(kKeysRead), count & 1);
    store_one(keys, dk_, p.scale, {shared_.k(), p.dk_rows, p.dk, p.dk_steps, p.head_dim});
    // All warps are done with the tile, and the copies have read it.
    ptx::bar_sync(kKeyGroupBarrier + warpgroup_, 128);
    if (threadIdx.x % 128 == 0) {
      ptx::bulk_wait_group_read<0>();
      ptx::mbarrier_arrive(shared_.barrier(kKeysEmpty));
    }
  }

  const BackwardParams& params_;
  const BackwardMap<Row>& shared_;
  const int warpgroup_;
  uint32_t ds_address_;     // for stmatrix; 16-byte chunk j is at address ^ 16 j
  uint32_t stats_address_;  // of this thread's first two queries
  uint32_t stage_ = 0;
  uint32_t phase_ = 0;
  uint32_t buffer_ = 0;  // of dS
  uint32_t buffer_phase_ = 0;
  float dk_[T::kGradients];
  float dv_[T::kGradients];
  // 4 j + 2 r + e: key lane / 4 + 8 r of the warp, query 8 j + 2 (lane % 4) + e.
  float s_[T::kScores];
  float dp_[T::kScores];
  uint32_t p_[T::kPacked];
  uint32_t ds_[T::kPacked];
};

}  // namespace rowmax::cuda::sm90
