// Changes of a block of scores before the softmax: sign or minute scales, softcap, ALiBi.
#pragma once

#include "backend/cuda/ptx/math.cuh"

namespace rowmax::cuda::tile {

template <int kScores>
ROWMAX_DEVICE void multiply(float (&s)[kScores], float factor) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] *= factor;
  }
}

// s = tanh(factor * s) = 1 - 2 / (1 + e^(2 factor s)), absolute error 2^-22: times a cap it is the
// error of a logit. tanh.approx (2^-11 relative) would be an error of 1 % in P at a cap of 50.
template <int kScores>
ROWMAX_DEVICE void softcap(float (&s)[kScores], float factor) {
  const float exponent = 2.f * ptx::kLog2E * factor;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] = __fmaf_rn(-2.f, ptx::rcp(1.f + ptx::ex2(s[i] * exponent)), 1.f);
  }
}

// s -= slope[r] * |distance[r] - column|, distance relative to this thread's first column.
template <int kScores>
ROWMAX_DEVICE void add_alibi(float (&s)[kScores], const float (&slope)[2],
                             const float (&distance)[2]) {
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = s[4 * j + 2 * r + e];
        score = __fmaf_rn(-slope[r], fabsf(distance[r] - static_cast<float>(8 * j + e)), score);
      }
    }
  }
}

}  // namespace rowmax::cuda::tile
