// Warps 2 and 3: tiles of dQ whose last addition is done, from their fp32 sums to dQ. The turn
// keeper queues them: the key tile that adds last to one tile does so to all of its tiles, and the
// queue lets this take longer than its steps.
#pragma once

#include "backend/cuda/ptx/global.cuh"
#include "backend/cuda/sm90/backward/dq_rows.cuh"
#include "backend/cuda/sm90/backward/traits.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
class Converter {
 public:
  using T = BackwardTraits<Row>;

  ROWMAX_DEVICE Converter(const BackwardParams& params, const BackwardMap<Row>& shared)
      : params_(params), shared_(shared) {}

  ROWMAX_DEVICE void run() {
#pragma unroll 1
    for (uint32_t count = 0;; ++count) {
      const uint32_t slot = ring_index<kConvertSlots>(count);
      ptx::mbarrier_wait(shared_.barrier(kConvertFull, slot), ring_parity<kConvertSlots>(count));
      const FinishedTile& finished = shared_.finished(slot);
      if (finished.rows < 0) {
        return;
      }
      convert(finished);
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        ptx::mbarrier_arrive(shared_.barrier(kConvertEmpty, slot));
      }
    }
  }

 private:
  static constexpr int kThreads = 64;
  static constexpr int kChunks = T::kHeadDim / 8;

  ROWMAX_DEVICE void convert(const FinishedTile& finished) {
    const DqRows tile = {
        reinterpret_cast<const float4*>(params_.dq_sum) +
            int64_t{finished.number} * (T::kTileQ * T::kHeadDim / 4),
        static_cast<uint16_t*>(params_.dq_rows.data) + finished.offset,
        params_.dq_rows.seq,
        finished.rows,
        params_.head_dim,
        params_.scale,
    };
#pragma unroll  // addresses then differ by constants: there are 32 registers
    for (int i = 0; i < T::kTileQ * kChunks / (2 * kThreads); ++i) {
      convert_rows<T::kConfig.element>(
          tile, threadIdx.x % kThreads + i * kThreads, T::kTileQ, kChunks,
          [](const float4* address) { return ptx::ld_relaxed_v4(address); });
    }
  }

  const BackwardParams& params_;
  const BackwardMap<Row>& shared_;
};

}  // namespace rowmax::cuda::sm90
