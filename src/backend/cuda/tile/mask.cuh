// Masks of one block of scores in the accumulator layout of softmax.cuh: of each of its rows a
// thread holds columns 8j and 8j + 1, relative to its first one. One bit a score, in the order of
// the registers; ptxas turns tests of neighbouring bits into one R2P for seven of them. On the host
// too, for tests.
#pragma once

#include "backend/cuda/ptx/shift.h"
#include "backend/cuda/ptx/types.cuh"

namespace rowmax::cuda::tile {

// Bits of the columns before `column`, of one row.
ROWMAX_FORCE_INLINE uint32_t columns_before(int column) {
  const int pairs = column >> 3;
  const int rest = column & 7;
  const int bits = 2 * pairs + (rest < 2 ? rest : 2);
  return column <= 0 ? 0u : ptx::shift_left(1u, static_cast<uint32_t>(bits)) - 1u;
}

// visible[r]: bits of row r.
template <int kScores>
ROWMAX_FORCE_INLINE void mask_columns(float (&s)[kScores], const uint32_t (&visible)[2]) {
  static_assert(kScores <= 64);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      if ((visible[r] & (1u << i)) == 0) {
        s[4 * (i / 2) + 2 * r + i % 2] = -ptx::kInfinity;
      }
    }
  }
}

}  // namespace rowmax::cuda::tile
