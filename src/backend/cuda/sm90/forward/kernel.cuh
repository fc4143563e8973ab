// Exact attention forward for Hopper: one persistent CTA a multiprocessor, a producer warpgroup and
// consumer warpgroups of 64 query rows each. docs/kernels/sm90_forward.md has the schedule.
#pragma once

#include "backend/cuda/sm90/forward/mainloop.cuh"
#include "backend/cuda/sm90/forward/producer.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
ROWMAX_DEVICE void init_barriers(const SharedMap<Row>& shared) {
  using T = Traits<Row>;
  constexpr uint32_t kConsumerWarps = 4 * T::kWarpgroups;
  for (int i = 0; i < T::kQBuffers * T::kQLoads; ++i) {
    ptx::mbarrier_init(shared.barrier(kQFull, i), 1);
    ptx::mbarrier_init(shared.barrier(kOFull, i), kConsumerWarps);
    ptx::mbarrier_init(shared.barrier(kQEmpty, i), 4);
  }
  ptx::mbarrier_init(shared.barrier(kVLoaded, 0), 1);
  for (int i = 0; i < kTileSlots; ++i) {
    ptx::mbarrier_init(shared.barrier(kSlotFull, i), T::kWarpgroups);
  }
  for (int i = 0; i <= kTilesAhead; ++i) {
    ptx::mbarrier_init(shared.barrier(kSlotWanted, i), 1);
  }
  for (int i = 0; i < T::kStages; ++i) {
    ptx::mbarrier_init(shared.barrier(kKFull, i), 1);
    ptx::mbarrier_init(shared.barrier(kKEmpty, i), kConsumerWarps);
    ptx::mbarrier_init(shared.barrier(kVFull, i), 1);
    ptx::mbarrier_init(shared.barrier(kVEmpty, i), kConsumerWarps);
  }
  ptx::fence_mbarrier_init();
}

template <class Row>
__global__ void __launch_bounds__(Traits<Row>::kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  using T = Traits<Row>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const SharedMap<Row> shared(memory);
  const int warp = ptx::uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    init_barriers<Row>(shared);
  }
  __syncthreads();
  if (warp < 4) {
    ptx::setmaxnreg_dec<T::kProducerRegisters>();
    if (warp == 3) {
      schedule<Row>(params, shared);
    } else if (warp == 0) {
      if (threadIdx.x % 32 == 0) {
        produce_k<Row>(params, shared);
      }
    } else if (warp == 1) {
      produce_v<Row>(params, shared);
    } else if (warp == 2 && threadIdx.x % 32 == 0) {
      move_q_and_out<Row>(params, shared);
    }
  } else {
    ptx::setmaxnreg_inc<T::kConsumerRegisters>();
    Consumer<Row> consumer(params, shared, warp / 4 - 1);
    consumer.run();
  }
}

}  // namespace rowmax::cuda::sm90
