// Shifts whose result C++ leaves undefined, on the host too: masks are tested there.
#pragma once

#include "backend/cuda/ptx/types.cuh"
#include "problem/band.h"

namespace rowmax::cuda::ptx {

// 0 for bits >= 32.
ROWMAX_FORCE_INLINE uint32_t shift_left(uint32_t x, uint32_t bits) {
#if defined(__CUDA_ARCH__)
  uint32_t y;
  asm("shl.b32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(bits));
  return y;
#else
  return bits < 32 ? x << bits : 0u;
#endif
}

}  // namespace rowmax::cuda::ptx
