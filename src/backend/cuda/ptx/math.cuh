// Special functions, conversions and the matrix store.
#pragma once

#include "backend/cuda/ptx/types.cuh"

namespace rowmax::cuda::ptx {

// 2^x, relative error 2^-22; ex2(-inf) = 0.
ROWMAX_DEVICE float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

ROWMAX_DEVICE float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, relative error 2^-23; __frcp_rn has a slow path with branches.
ROWMAX_DEVICE float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to bf16 (or fp16), `lo` in bits 0..15.
ROWMAX_DEVICE uint32_t pack_bf16(float lo, float hi) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}

ROWMAX_DEVICE uint32_t pack_f16(float lo, float hi) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}

// The other way round.
ROWMAX_DEVICE float2 unpack_bf16(uint32_t packed) {
  return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u));
}

ROWMAX_DEVICE float2 unpack_f16(uint32_t packed) {
  float2 v;
  asm("{\n"
      ".reg .b16 lo, hi;\n"
      "mov.b32 {lo, hi}, %2;\n"
      "cvt.f32.f16 %0, lo;\n"
      "cvt.f32.f16 %1, hi;\n"
      "}\n"
      : "=f"(v.x), "=f"(v.y)
      : "r"(packed));
  return v;
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
ROWMAX_DEVICE void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

ROWMAX_DEVICE uint4 load_shared_16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

ROWMAX_DEVICE float2 load_shared_float2(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

ROWMAX_DEVICE int load_shared_int(uint32_t address) {
  int v;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

ROWMAX_DEVICE void store_shared_int(uint32_t address, int v) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}

ROWMAX_DEVICE void store_shared_zero_16(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0) : "memory");
}

}  // namespace rowmax::cuda::ptx
