// Online softmax of one block of scores in the tensor cores' accumulator layout: element
// s[4j + 2r + e] is row (lane / 4 + 8r) and column 8j + 2 (lane % 4) + e of a warp's 16 rows. A row
// lives in the four lanes of a quad.
//
// A row's maximum is found in the tile's first block only. Later blocks take their exponentials at
// once, against the reference at hand, and their sums tell afterwards whether it was too low: then
// the block is done again with its maximum as the reference. One instruction in 4.5 a score less,
// and no chain from the last score through maxima and shuffles to the first exponential.
#pragma once

#include "backend/cuda/ptx/math.cuh"

namespace rowmax::cuda::tile {

// Statistics of a thread's two rows. kIsShifted: a thread's scores of a block are s plus an offset.
template <bool kIsShifted>
struct RowState {
  static constexpr bool kShifted = kIsShifted;
  float reference[2];  // a score of the row that no other exceeds by much; -inf: none seen yet
  float sum[2];        // of this thread's columns only; the quad's sum is taken at the end
  float subtract[2];   // what exponentials subtract: reference in log2 units, 0 while it is -inf
  float offset[2];     // of the block at hand
};

// Of a block in one lane, or it is done again; no P is above it then. Harmless in fp32 sums and 16
// bits; a higher limit makes the error of rows larger where one late key outweighs the others.
inline constexpr float kLargestSum = 256.f;
// A row's growth in a block, in log2 units, that keeps the sum of 32 P within it.
inline constexpr float kLargestGrowth = 3.f;

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
    state.subtract[r] = state.reference[r] == -ptx::kInfinity ? 0.f : state.reference[r] * scale;
  }
}

// References of a tile's first block: its maxima.
template <class State, int kScores>
ROWMAX_DEVICE void first_references(const float (&s)[kScores], State& state, float scale) {
  row_max(s, state, state.reference);
  state.sum[0] = state.sum[1] = 0.f;
  set_subtract(state, scale);
}

// What a block adds to the sums of a thread's two rows: even and odd columns.
struct BlockSum {
  float add[2];  // the exponent of score s is s * scale + add
  float sum[2][2];
};

template <class State>
ROWMAX_DEVICE BlockSum begin_block(const State& state, float scale) {
  BlockSum block;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    block.add[r] = State::kShifted ? __fmaf_rn(state.offset[r], scale, -state.subtract[r])
                                   : -state.subtract[r];
  }
  return block;
}

// p = 2^((s + offset) * scale - subtract), packed by Row::pack, and the block's sums of that. In
// portions of all FFMA, all EX2, all sums; s stays as it is.
template <class Row, int kScores>
ROWMAX_DEVICE void exponentials(const float (&s)[kScores], uint32_t (&p)[kScores / 2],
                                BlockSum& block, float scale) {
  constexpr int kPortion = 16;
#pragma unroll
  for (int begin = 0; begin < kScores; begin += kPortion) {
    const int count = kScores - begin < kPortion ? kScores - begin : kPortion;
    float e[kPortion];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      e[i] = __fmaf_rn(s[begin + i], scale, block.add[(i >> 1) & 1]);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      e[i] = ptx::ex2(e[i]);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      float& sum = block.sum[(i >> 1) & 1][i & 1];
      sum = begin + i < 4 ? e[i] : sum + e[i];
    }
#pragma unroll
    for (int i = 0; i < count; i += 2) {
      p[(begin + i) / 2] = Row::pack(e[i], e[i + 1]);
    }
  }
}

// The rows' sums grow by the block's.
template <class State>
ROWMAX_DEVICE void end_block(const BlockSum& block, State& state) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    state.sum[r] += block.sum[r][0] + block.sum[r][1];
  }
}

// Whether some row of the warp has to do the block again with a higher reference, and which of this
// thread's rows: some P may be above kLargestSum, or the row had no reference.
template <class State>
ROWMAX_DEVICE bool are_low(const BlockSum& block, const State& state, bool (&low)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    low[r] = !(block.sum[r][0] + block.sum[r][1] <= kLargestSum) ||
             state.reference[r] == -ptx::kInfinity;
  }
  return __any_sync(ptx::kFullWarp, low[0] || low[1]);
}

// The block's maxima become the references of the rows that some lane of their quad found low; the
// sums follow, and O is to be multiplied by `factor`. A row's reference, and with it its bits, does
// not depend on what the other rows of its warp hold.
template <class State>
ROWMAX_DEVICE void raise_references(const float (&max)[2], const bool (&low)[2], State& state,
                                    float (&factor)[2], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t lanes = __ballot_sync(ptx::kFullWarp, low[r]);
    const bool raised = ((lanes >> (threadIdx.x & 28)) & 15) != 0 && max[r] > state.reference[r];
    factor[r] = state.reference[r] == -ptx::kInfinity ? -ptx::kInfinity : state.subtract[r];
    state.reference[r] = raised ? max[r] : state.reference[r];
  }
  set_subtract(state, scale);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // From the rounded subtrahends that exponentials before and after use: at |s| = 5e5 the
    // exact difference of references is up to 4 % off.
    factor[r] =
        state.reference[r] == -ptx::kInfinity ? 1.f : ptx::ex2(factor[r] - state.subtract[r]);
    state.sum[r] *= factor[r];
  }
}

template <int kOut>
ROWMAX_DEVICE void multiply_rows(float (&o)[kOut], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kOut; ++i) {
    o[i] *= factor[(i >> 1) & 1];
  }
}

// After `are_low`.
template <class State, int kScores, int kOut>
ROWMAX_DEVICE void raise_low_references(const float (&s)[kScores], const bool (&low)[2],
                                        State& state, float (&o)[kOut], float scale) {
  float max[2];
  float factor[2];
  row_max(s, state, max);
  raise_references(max, low, state, factor, scale);
  multiply_rows(o, factor);
}

// P of a block, and the sums grow by it.
template <class Row, class State, int kScores>
ROWMAX_DEVICE void block_exponentials(const float (&s)[kScores], uint32_t (&p)[kScores / 2],
                                      State& state, float scale) {
  BlockSum block = begin_block(state, scale);
  exponentials<Row>(s, p, block, scale);
  end_block(block, state);
}

// Of a block that is not the tile's first, whose P and sums are there: done again where a reference
// was too low.
template <class Row, class State, int kScores, int kOut>
ROWMAX_DEVICE void check_exponentials(const BlockSum& block, float (&s)[kScores],
                                      uint32_t (&p)[kScores / 2], float (&o)[kOut], State& state,
                                      float scale) {
  bool low[2];
  if (!are_low(block, state, low)) {
    end_block(block, state);
    return;
  }
  raise_low_references(s, low, state, o, scale);
  ptx::pin(s);  // nothing made of the scores before is kept for here
  block_exponentials<Row>(s, p, state, scale);
}

// Both in one. With Row::kJumpsBack the repetition is a loop instead of a second copy: less code,
// but the usual way has a jump.
template <class Row, class State, int kScores, int kOut>
ROWMAX_DEVICE void later_exponentials(float (&s)[kScores], uint32_t (&p)[kScores / 2],
                                      float (&o)[kOut], State& state, float scale) {
#pragma unroll 1
  for (bool again = false;; again = true) {
    BlockSum block = begin_block(state, scale);
    exponentials<Row>(s, p, block, scale);
    if constexpr (!Row::kJumpsBack) {
      check_exponentials<Row>(block, s, p, o, state, scale);
      return;
    }
    bool low[2];
    if (again || !are_low(block, state, low)) {
      end_block(block, state);
      return;
    }
    raise_low_references(s, low, state, o, scale);
    ptx::pin(s);
  }
}

// Before a block's exponentials, where scores are expected to grow: spares doing it again. It
// raises earlier than sums would: whether it is called must not depend on other rows' values.
// True: O is to be multiplied by `factor`.
template <class State, int kScores>
ROWMAX_DEVICE bool raise_grown_references(const float (&s)[kScores], State& state,
                                          float (&factor)[2], float scale) {
  static_assert(kScores <= 64);
  float max[2];
  bool low[2];
  row_max(s, state, max);
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // -inf - -inf is NaN: not greater
    low[r] = (max[r] - state.reference[r]) * scale > kLargestGrowth;
  }
  const bool grown = __any_sync(ptx::kFullWarp, low[0] || low[1]);
  if (grown) {
    raise_references(max, low, state, factor, scale);
  }
  return grown;
}

}  // namespace rowmax::cuda::tile
