// Named barriers, register reallocation, warp helpers.
#pragma once

#include "backend/cuda/ptx/types.cuh"

namespace rowmax::cuda::ptx {

// Named barriers 1..15 (0 is __syncthreads): `threads` counts those that sync and those that
// arrive.
ROWMAX_DEVICE void bar_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

ROWMAX_DEVICE void bar_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The pool is what the CTA got at launch, not the register file: asking for more never returns.
template <int kRegisters>
ROWMAX_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
ROWMAX_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The value of lane 0. Also tells ptxas that the value is uniform, which keeps descriptors and
// addresses made from it in uniform registers.
ROWMAX_DEVICE int uniform(int value) { return __shfl_sync(kFullWarp, value, 0); }

// True in one lane of the warp, the same one every time; all lanes call it.
ROWMAX_DEVICE bool elect() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// threadIdx.x, read again instead of kept in a register.
ROWMAX_DEVICE int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// The same value, of which the compiler knows nothing: what is computed from it stays where it is
// written instead of being kept in registers across a loop.
ROWMAX_DEVICE int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace rowmax::cuda::ptx
