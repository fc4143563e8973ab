// Portable vectors: GCC vector extensions of 16 bytes, which every target has in registers (SSE2,
// NEON). F32 serves f32, bf16 and fp16 inputs; F64 serves fp64. The interface is that of avx2.h.
#pragma once

#include <cstdint>

#include "backend/cpu/limits.h"
#include "core/half.h"

#define ROWMAX_INLINE inline __attribute__((always_inline))

namespace rowmax::cpu::portable {

template <class Element, class Int, class Unsigned>
struct Vec {
  using E = Element;
  static constexpr int W = kVectorBytesPortable / sizeof(E);
  typedef E R __attribute__((vector_size(kVectorBytesPortable)));
  typedef Int M __attribute__((vector_size(kVectorBytesPortable)));  // -1 or 0 in each lane
  static constexpr int tile_rows(int vectors) { return vectors == 3 ? 4 : vectors == 2 ? 6 : 8; }

  static ROWMAX_INLINE R zero() { return R{}; }
  static ROWMAX_INLINE R set1(E x) { return x - R{}; }  // x + 0 would turn -0 into 0
  static ROWMAX_INLINE R bcast(const E* p) { return *p - R{}; }
  static ROWMAX_INLINE R load(const E* p) {
    R r = {};
    __builtin_memcpy(&r, p, sizeof(r));
    return r;
  }
  static ROWMAX_INLINE void store(E* p, R a) { __builtin_memcpy(p, &a, sizeof(a)); }
  static ROWMAX_INLINE R fma(R a, R b, R c) { return a * b + c; }
  static ROWMAX_INLINE R add(R a, R b) { return a + b; }
  static ROWMAX_INLINE R sub(R a, R b) { return a - b; }
  static ROWMAX_INLINE R mul(R a, R b) { return a * b; }
  static ROWMAX_INLINE R div(R a, R b) { return a / b; }
  static ROWMAX_INLINE R max(R a, R b) { return a > b ? a : b; }
  static ROWMAX_INLINE R min(R a, R b) { return a < b ? a : b; }
  static ROWMAX_INLINE R abs(R a) { return reinterpret_cast<R>(reinterpret_cast<M>(a) & ~sign()); }
  // Exact below 2^(mantissa - 1); larger values are integers already.
  static ROWMAX_INLINE R ceil(R a) {
    const R big = set1(sizeof(E) == 4 ? E(12582912.0) : E(6755399441055744.0));
    const R rounded = (a + big) - big;
    const R up = rounded < a ? rounded + E(1) : rounded;
    return abs(a) < set1(sizeof(E) == 4 ? E(4194304.0) : E(2251799813685248.0)) ? up : a;
  }
  static ROWMAX_INLINE R iota() {
    R r = {};
    for (int i = 0; i < W; ++i) {
      r[i] = static_cast<E>(i);
    }
    return r;
  }

  static ROWMAX_INLINE M ge(R a, R b) { return a >= b; }
  static ROWMAX_INLINE M le(R a, R b) { return a <= b; }
  static ROWMAX_INLINE M lt(R a, R b) { return a < b; }
  static ROWMAX_INLINE M eq(R a, R b) { return a == b; }
  static ROWMAX_INLINE M both(M a, M b) { return a & b; }
  static ROWMAX_INLINE M either(M a, M b) { return a | b; }
  static ROWMAX_INLINE R select(M m, R yes, R no) { return m ? yes : no; }
  static ROWMAX_INLINE bool all(M m) {
    bool result = true;
    for (int i = 0; i < W; ++i) {
      result = result && m[i] != 0;
    }
    return result;
  }
  static ROWMAX_INLINE bool any(M m) {
    bool result = false;
    for (int i = 0; i < W; ++i) {
      result = result || m[i] != 0;
    }
    return result;
  }

  // Wraps where p is NaN, so the sum is one of unsigned numbers.
  static ROWMAX_INLINE R scale_by_exponent(R p, R t) {
    typedef Unsigned Bits __attribute__((vector_size(kVectorBytesPortable)));
    constexpr int kMantissa = sizeof(E) == 4 ? 23 : 52;
    return reinterpret_cast<R>(reinterpret_cast<Bits>(p) +
                               (reinterpret_cast<Bits>(t) << kMantissa));
  }
  static ROWMAX_INLINE E hsum(R a) {
    E sum = a[0];
    for (int i = 1; i < W; ++i) {
      sum += a[i];
    }
    return sum;
  }

  static ROWMAX_INLINE R load_bf16(const uint16_t* p) {
    R r = {};
    for (int i = 0; i < W; ++i) {
      r[i] = bf16_to_float(p[i]);
    }
    return r;
  }
  static ROWMAX_INLINE R load_f16(const uint16_t* p) {
    R r = {};
    for (int i = 0; i < W; ++i) {
      r[i] = f16_to_float(p[i]);
    }
    return r;
  }
  static ROWMAX_INLINE R load_mask(const uint8_t* p) {
    R r = {};
    for (int i = 0; i < W; ++i) {
      r[i] = p[i] != 0 ? E(0) : -E(__builtin_inf());
    }
    return r;
  }
  static ROWMAX_INLINE void store_bf16(uint16_t* p, R a) {
    for (int i = 0; i < W; ++i) {
      p[i] = float_to_bf16(static_cast<float>(a[i]));
    }
  }
  static ROWMAX_INLINE void store_f16(uint16_t* p, R a) {
    for (int i = 0; i < W; ++i) {
      p[i] = float_to_f16(static_cast<float>(a[i]));
    }
  }

  static ROWMAX_INLINE void transpose(R (&r)[W]) {
    E t[W][W];
    for (int i = 0; i < W; ++i) {
      for (int j = 0; j < W; ++j) {
        t[i][j] = r[j][i];
      }
    }
    for (int i = 0; i < W; ++i) {
      r[i] = load(t[i]);
    }
  }
  static ROWMAX_INLINE R reduce_rows(const R (&a)[W]) {
    R r = {};
    for (int i = 0; i < W; ++i) {
      r[i] = hsum(a[i]);
    }
    return r;
  }

 private:
  static ROWMAX_INLINE M sign() { return reinterpret_cast<M>(set1(E(-0.0))); }
};

using F32 = Vec<float, int32_t, uint32_t>;
using F64 = Vec<double, int64_t, uint64_t>;

// One lane: baseline targets lack a widening multiply worth the shuffles.
struct U32 {
  using R = uint32_t;
  static constexpr int W = 1;
  static ROWMAX_INLINE R set1(uint32_t x) { return x; }
  static ROWMAX_INLINE R load(const uint32_t* p) { return *p; }
  static ROWMAX_INLINE R bit_xor(R a, R b) { return a ^ b; }
  static ROWMAX_INLINE R add(R a, R b) { return a + b; }
  static ROWMAX_INLINE R multiply(R a, R factor, R& high) {
    const uint64_t product = uint64_t{a} * factor;
    high = static_cast<uint32_t>(product >> 32);
    return static_cast<uint32_t>(product);
  }
  static ROWMAX_INLINE void store_kept(float* p, R words, R threshold, float value) {
    *p = words >= threshold ? value : 0.0f;
  }
};

ROWMAX_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
ROWMAX_INLINE void prefetch_near(const void* p) { __builtin_prefetch(p, 0, 3); }

}  // namespace rowmax::cpu::portable
