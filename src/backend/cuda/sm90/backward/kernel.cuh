// Gradients for Hopper: persistent CTAs that take tiles of 128 keys, with one warpgroup for loads
// and turns, one for dQ and two that own 64 keys each. docs/kernels/sm90_backward.md has the
// schedule.
#pragma once

#include "backend/cuda/sm90/backward/loader.cuh"
#include "backend/cuda/sm90/backward/mainloop.cuh"
#include "backend/cuda/sm90/backward/query_gradient.cuh"
#include "backend/cuda/sm90/backward/turns.cuh"

namespace rowmax::cuda::sm90 {

template <class Row>
ROWMAX_DEVICE void init_barriers(const BackwardMap<Row>& shared) {
  using T = BackwardTraits<Row>;
  constexpr uint32_t kKeyWarps = 4 * kKeyWarpgroups;
  for (int i = 0; i < kKeyTileSlots; ++i) {
    ptx::mbarrier_init(shared.barrier(kTileFull, i), 1);
  }
  ptx::mbarrier_init(shared.barrier(kKeysFull), 1);
  ptx::mbarrier_init(shared.barrier(kKeysLoaded), 1);
  ptx::mbarrier_init(shared.barrier(kKeysEmpty), kKeyWarpgroups + 1);
  ptx::mbarrier_init(shared.barrier(kKeysRead), 4);
  for (int i = 0; i < T::kStages; ++i) {
    ptx::mbarrier_init(shared.barrier(kFull, i), 1);
    ptx::mbarrier_init(shared.barrier(kEmpty, i), kKeyWarps);
  }
  for (int i = 0; i < T::kDsBuffers; ++i) {
    ptx::mbarrier_init(shared.barrier(kDsFull, i), kKeyWarps);
    ptx::mbarrier_init(shared.barrier(kDsEmpty, i), 4);
  }
  for (int i = 0; i < kTurnSlots; ++i) {
    ptx::mbarrier_init(shared.barrier(kTurn, i), 1);
    ptx::mbarrier_init(shared.barrier(kAdded, i), 4);
  }
  ptx::fence_mbarrier_init();
}

template <class Row>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    backward_kernel(const __grid_constant__ BackwardParams params) {
  using T = BackwardTraits<Row>;
  extern __shared__ __align__(1024) uint8_t memory[];
  const BackwardMap<Row> shared(memory);
  const int warp = ptx::uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) {
    init_barriers<Row>(shared);
  }
  __syncthreads();
  if (warp < 4) {
    ptx::setmaxnreg_dec<kLoaderRegisters>();
    if (warp == 0) {
      Loader<Row> loader(params, shared);
      loader.run();
    } else if (warp == 1 && threadIdx.x % 32 == 0) {
      TurnKeeper<Row> keeper(params, shared);
      keeper.run();
    }
  } else if (warp < 8) {
    ptx::setmaxnreg_dec<kQueryRegisters>();
    QueryGradient<Row> query(params, shared, warp - 4);
    query.run();
  } else {
    ptx::setmaxnreg_inc<kKeyRegisters>();
    KeyGradients<Row> keys(params, shared, warp / 4 - 2);
    keys.run();
  }
}

}  // namespace rowmax::cuda::sm90
