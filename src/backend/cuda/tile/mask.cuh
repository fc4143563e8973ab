// Masks of one block of scores in the accumulator layout of softmax.cuh.
#pragma once

#include "backend/cuda/ptx/types.cuh"

namespace rowmax::cuda::tile {

// limit[r]: last visible column of row r, relative to this thread's first column.
template <int kScores>
ROWMAX_DEVICE void mask_above(float (&s)[kScores], const int (&limit)[2]) {
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e > limit[r]) {
          s[4 * j + 2 * r + e] = -ptx::kInfinity;
        }
      }
    }
  }
}

// limit[r]: first visible column.
template <int kScores>
ROWMAX_DEVICE void mask_below(float (&s)[kScores], const int (&limit)[2]) {
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < limit[r]) {
          s[4 * j + 2 * r + e] = -ptx::kInfinity;
        }
      }
    }
  }
}

}  // namespace rowmax::cuda::tile
