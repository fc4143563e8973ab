// Changes of a block of scores before the softmax: sign or minute scales, softcap, ALiBi.
#pragma once

#include "backend/cuda/ptx/math.cuh"
#include "backend/cuda/tile/tanh.h"

namespace rowmax::cuda::tile {

template <int kScores>
ROWMAX_DEVICE void multiply(float (&s)[kScores], float factor) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] *= factor;
  }
}

// s = tanh(factor * s). Large arguments x: 1 - 2 / (1 + e^2x), absolute error 2^-22, two special
// functions more a score; a warp does without them while all its arguments are small. Which of the
// two a score gets is its own affair. tanh.approx (2^-11 relative) would be an error of 1 % in P at
// a cap of 50.
template <int kScores>
ROWMAX_DEVICE void softcap(float (&s)[kScores], const Softcap& cap) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    largest = fmaxf(largest, fabsf(s[i]));
  }
  if (!__any_sync(ptx::kFullWarp, largest > cap.limit)) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = odd_polynomial(s[i], cap.powers[0], cap.powers[1], cap.powers[2], cap.powers[3]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const bool small = fabsf(s[i]) <= cap.limit;
    const float tanh =
        odd_polynomial(s[i], cap.powers[0], cap.powers[1], cap.powers[2], cap.powers[3]);
    const float exponent = s[i] * (cap.factor * (2.f * ptx::kLog2E));
    s[i] = small ? tanh : __fmaf_rn(-2.f, ptx::rcp(1.f + ptx::ex2(exponent)), 1.f);
  }
}

// s -= slope[r] * |distance[r] - column|, distance relative to this thread's first column. In a row
// whose columns are all on one side of its diagonal, what does not depend on the column is left out
// and added to offset[r]: one instruction a score instead of two.
template <int kScores>
ROWMAX_DEVICE void add_alibi(float (&s)[kScores], const float (&slope)[2],
                             const float (&distance)[2], float (&offset)[2]) {
  constexpr float kLastColumn = 2 * kScores - 7;
  bool sided[2];
  float factor[2];  // of the column, or of the distance
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool left = distance[r] >= kLastColumn;
    sided[r] = left || distance[r] <= 0.f;
    factor[r] = left ? slope[r] : -slope[r];
    offset[r] = sided[r] ? -factor[r] * distance[r] : 0.f;
  }
  if (__all_sync(ptx::kFullWarp, sided[0] && sided[1])) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = __fmaf_rn(factor[(i >> 1) & 1], static_cast<float>(8 * (i / 4) + i % 2), s[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int r = (i >> 1) & 1;
    const float column = static_cast<float>(8 * (i / 4) + i % 2);
    s[i] = __fmaf_rn(factor[r], sided[r] ? column : fabsf(distance[r] - column), s[i]);
  }
}

}  // namespace rowmax::cuda::tile
