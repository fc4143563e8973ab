// Global memory that several CTAs use: additions, flags and the fence between them.
#pragma once

#include "backend/cuda/ptx/types.cuh"

namespace rowmax::cuda::ptx {

// address[0 ... 3] += a ... d, nothing returned.
ROWMAX_DEVICE void red_add_v4(float* address, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(a),
               "f"(b), "f"(c), "f"(d)
               : "memory");
}

ROWMAX_DEVICE void st_relaxed_v4(float* address, float a, float b, float c, float d) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(a),
               "f"(b), "f"(c), "f"(d)
               : "memory");
}

// 16 bytes to `address` where `condition`, without a branch.
ROWMAX_DEVICE void st_v4_if(bool condition, void* address, const uint32_t (&v)[4]) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %0, 0;\n"
      "@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n"
      "}\n" ::"r"(static_cast<int>(condition)),
      "l"(address), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
      : "memory");
}

ROWMAX_DEVICE int ld_relaxed(const int* address) {
  int v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}

ROWMAX_DEVICE int ld_acquire(const int* address) {
  int v;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
  return v;
}

// The larger of *address and v to address.
ROWMAX_DEVICE void red_max_relaxed(int* address, int v) {
  asm volatile("red.relaxed.gpu.global.max.s32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

ROWMAX_DEVICE void red_max_release(int* address, int v) {
  asm volatile("red.release.gpu.global.max.s32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
}

ROWMAX_DEVICE void fence_acq_rel_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

}  // namespace rowmax::cuda::ptx
