// AVX2 + FMA + F16C. A vector type is a struct of static functions over a register R of W lanes of
// type E and a mask M; kernels are templates over it. The one file that names AVX2 intrinsics.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/limits.h"

#define ROWMAX_INLINE inline __attribute__((always_inline))

namespace rowmax::cpu::avx2 {

struct F32 {
  using E = float;
  using R = __m256;
  using M = __m256;  // all bits of a lane set or clear
  static constexpr int W = kVectorBytesAvx2 / sizeof(E);
  // Keys of a dot tile, rows of a rank tile, by the vectors of the panel. For 16 registers:
  // accumulators + one vector row of the streamed operand + one broadcast. 4x3 and 6x2 both need 12
  // accumulators; more spill.
  static constexpr int tile_rows(int vectors) { return vectors == 3 ? 4 : vectors == 2 ? 6 : 8; }

  static ROWMAX_INLINE R zero() { return _mm256_setzero_ps(); }
  static ROWMAX_INLINE R set1(E x) { return _mm256_set1_ps(x); }
  static ROWMAX_INLINE R bcast(const E* p) { return _mm256_broadcast_ss(p); }
  static ROWMAX_INLINE R load(const E* p) { return _mm256_loadu_ps(p); }
  static ROWMAX_INLINE void store(E* p, R a) { _mm256_storeu_ps(p, a); }
  static ROWMAX_INLINE R fma(R a, R b, R c) { return _mm256_fmadd_ps(a, b, c); }
  static ROWMAX_INLINE R add(R a, R b) { return _mm256_add_ps(a, b); }
  static ROWMAX_INLINE R sub(R a, R b) { return _mm256_sub_ps(a, b); }
  static ROWMAX_INLINE R mul(R a, R b) { return _mm256_mul_ps(a, b); }
  static ROWMAX_INLINE R div(R a, R b) { return _mm256_div_ps(a, b); }
  // a > b ? a : b, so b where either is NaN.
  static ROWMAX_INLINE R max(R a, R b) { return _mm256_max_ps(a, b); }
  static ROWMAX_INLINE R min(R a, R b) { return _mm256_min_ps(a, b); }
  static ROWMAX_INLINE R abs(R a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static ROWMAX_INLINE R ceil(R a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  }
  static ROWMAX_INLINE R iota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

  static ROWMAX_INLINE M ge(R a, R b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
  static ROWMAX_INLINE M le(R a, R b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
  static ROWMAX_INLINE M lt(R a, R b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static ROWMAX_INLINE M eq(R a, R b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static ROWMAX_INLINE M both(M a, M b) { return _mm256_and_ps(a, b); }
  static ROWMAX_INLINE M either(M a, M b) { return _mm256_or_ps(a, b); }
  static ROWMAX_INLINE R select(M m, R yes, R no) { return _mm256_blendv_ps(no, yes, m); }
  static ROWMAX_INLINE bool all(M m) { return _mm256_movemask_ps(m) == 0xff; }
  static ROWMAX_INLINE bool any(M m) { return _mm256_movemask_ps(m) != 0; }

  // p * 2^n where t = x + 1.5 * 2^23 holds the integer n in its low mantissa bits.
  static ROWMAX_INLINE R scale_by_exponent(R p, R t) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
  }
  static ROWMAX_INLINE E hsum(R a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  static ROWMAX_INLINE R load_bf16(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  static ROWMAX_INLINE R load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Bytes of a boolean mask as an addend: 0 where true, -inf where false.
  static ROWMAX_INLINE R load_mask(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i hidden = _mm256_cmpeq_epi32(wide, _mm256_setzero_si256());
    return _mm256_and_ps(_mm256_castsi256_ps(hidden), _mm256_set1_ps(-__builtin_inff()));
  }
  // Round to nearest even; NaN stays a quiet NaN.
  static ROWMAX_INLINE void store_bf16(uint16_t* p, R a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    rounded =
        _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
    const __m256i packed = _mm256_packus_epi32(rounded, rounded);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
  static ROWMAX_INLINE void store_f16(uint16_t* p, R a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // W x W transpose in registers.
  static ROWMAX_INLINE void transpose(R (&r)[W]) {
    R t[8];
    R u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      u[4 * i + 0] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
      r[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
    }
  }

  // Sums of the lanes of eight registers, in order.
  static ROWMAX_INLINE R reduce_rows(const R (&a)[W]) {
    const R s01 = _mm256_hadd_ps(a[0], a[1]);
    const R s23 = _mm256_hadd_ps(a[2], a[3]);
    const R s45 = _mm256_hadd_ps(a[4], a[5]);
    const R s67 = _mm256_hadd_ps(a[6], a[7]);
    const R x = _mm256_hadd_ps(s01, s23);
    const R y = _mm256_hadd_ps(s45, s67);
    return _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
  }
};

// Lanes of 32-bit integers, for the dropout generator.
struct U32 {
  using R = __m256i;
  static constexpr int W = 8;
  static ROWMAX_INLINE R set1(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static ROWMAX_INLINE R load(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static ROWMAX_INLINE R bit_xor(R a, R b) { return _mm256_xor_si256(a, b); }
  static ROWMAX_INLINE R add(R a, R b) { return _mm256_add_epi32(a, b); }
  // Low and high halves of the 64-bit products.
  static ROWMAX_INLINE R multiply(R a, R factor, R& high) {
    const R even = _mm256_mul_epu32(a, factor);
    const R odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
    high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    return _mm256_mullo_epi32(a, factor);
  }
  // value where word >= threshold, 0 elsewhere.
  static ROWMAX_INLINE void store_kept(float* p, R words, R threshold, float value) {
    const R kept = _mm256_cmpeq_epi32(_mm256_max_epu32(words, threshold), words);
    _mm256_storeu_ps(p, _mm256_and_ps(_mm256_castsi256_ps(kept), _mm256_set1_ps(value)));
  }
};

// Hints the cache line at p toward L2 (kFar) or L1.
ROWMAX_INLINE void prefetch_far(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}
ROWMAX_INLINE void prefetch_near(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

}  // namespace rowmax::cpu::avx2
