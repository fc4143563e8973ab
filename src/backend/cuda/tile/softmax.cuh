// Online softmax of one block of scores in the tensor cores' accumulator layout: element
// s[4j + 2r + e] is row (lane / 4 + 8r) and column 8j + 2 (lane % 4) + e of a warp's 16 rows. A row
// lives in the four lanes of a quad.
#pragma once

#include "backend/cuda/ptx/math.cuh"

namespace rowmax::cuda::tile {

// Statistics of a thread's two rows. kIsShifted: a thread's scores of a block are s plus an offset.
template <bool kIsShifted>
struct RowState {
  static constexpr bool kShifted = kIsShifted;
  float max[2];       // of the scores s, possibly stale by 2^kLazyLog2
  float sum[2];       // of this thread's columns only; the quad's sum is taken at the end
  float subtract[2];  // what exponentials subtract: max in log2 units, 0 while max is -inf
  float rescale[2];   // factor of O after a block
  float offset[2];    // of the block at hand
};

// O and the sums are rescaled only when a row's maximum grew by more than this, in log2 units: the
// factor 2^8 is harmless in fp32 sums and in P rounded to 16 bits.
inline constexpr float kLazyLog2 = 8.0f;

// Row maxima of a block.
template <class State, int kScores>
ROWMAX_DEVICE void row_max(const float (&s)[kScores], const State& state, float (&out)[2]) {
  float partial[2][2];
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float value = fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]);
      partial[r][j & 1] = j < 2 ? value : fmaxf(partial[r][j & 1], value);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    out[r] = fmaxf(partial[r][0], partial[r][1]);
    if constexpr (State::kShifted) {
      out[r] += state.offset[r];
    }
    out[r] = fmaxf(out[r], __shfl_xor_sync(ptx::kFullWarp, out[r], 1));
    out[r] = fmaxf(out[r], __shfl_xor_sync(ptx::kFullWarp, out[r], 2));
  }
}

template <class State>
ROWMAX_DEVICE void set_subtract(State& state, float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state.subtract[r] = state.max[r] == -ptx::kInfinity ? 0.f : state.max[r] * scale;
  }
}

// A tile's first block.
template <class State, int kScores>
ROWMAX_DEVICE void first_max(const float (&s)[kScores], State& state, float scale) {
  row_max(s, state, state.max);
  state.sum[0] = state.sum[1] = 0.f;
  set_subtract(state, scale);
}

// A later block. Returns whether O must be multiplied by state.rescale (uniform in the warp). The
// decision is a row's own: its bits do not depend on the other rows of its warp.
template <bool kSelect, class State, int kScores>
ROWMAX_DEVICE bool next_max(const float (&s)[kScores], State& state, float scale) {
  float max[2];
  row_max(s, state, max);
  bool grew[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // -inf - -inf is NaN: not greater
    grew[r] = (max[r] - state.max[r]) * scale > kLazyLog2;
  }
  const bool any = __any_sync(ptx::kFullWarp, grew[0] || grew[1]);
  if (kSelect || any) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      state.rescale[r] = grew[r] ? ptx::ex2((state.max[r] - max[r]) * scale) : 1.f;
      state.max[r] = grew[r] ? max[r] : state.max[r];
      state.sum[r] *= state.rescale[r];
    }
  }
  set_subtract(state, scale);
  return any;
}

// s becomes P = 2^((s + offset) * scale - subtract), and the sums grow by it. Three passes: all
// FFMA, all EX2, all sums.
template <class State, int kScores>
ROWMAX_DEVICE void exponentials(float (&s)[kScores], State& state, float scale) {
  float partial[2][2];
  float add[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    add[r] = State::kShifted ? __fmaf_rn(state.offset[r], scale, -state.subtract[r])
                             : -state.subtract[r];
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] = __fmaf_rn(s[i], scale, add[(i >> 1) & 1]);
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    s[i] = ptx::ex2(s[i]);
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    float& sum = partial[(i >> 1) & 1][i & 1];
    sum = i < 4 ? s[i] : sum + s[i];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state.sum[r] += partial[r][0] + partial[r][1];
  }
}

}  // namespace rowmax::cuda::tile
