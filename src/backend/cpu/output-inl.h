// The end of a row: a state (m, l, O) becomes a row of O and its LSE, or a partial state.
#pragma once

#include <cstdint>

#include "backend/cpu/pack-inl.h"
#include "kernel_api/args.h"
#include "kernel_api/layout.h"

namespace rowmax::cpu::ROWMAX_ISA {

// One row of one query head.
struct RowPosition {
  int64_t batch;
  int64_t head;
  int64_t row;  // position in the sequence
};

// O = acc / l and LSE = m ln 2 + ln l, with the sink's logit in the denominator. m is in log2
// units; l = 0 means that no key was visible: O is then exactly 0 whatever acc holds. acc (Dv) may
// change.
template <class V>
ROWMAX_NOINLINE inline void finish_row(const AttentionArgs& args, const SequenceExtent& extent,
                                       const RowPosition& at, typename V::E m, typename V::E l,
                                       typename V::E* acc) {
  using E = typename V::E;
  const int64_t width = args.shape.head_dim_v;
  double max = static_cast<double>(m);
  double sum = static_cast<double>(l);
  double scale = 1.0;
  if (sum == 0.0) {
    for (int64_t d = 0; d < width; ++d) {
      acc[d] = E(0);
    }
    max = -__builtin_inf();
  }
  if (args.score.sinks != nullptr) {
    const double sink =
        static_cast<double>(args.score.sinks[at.head * args.score.sink_stride]) * kLog2E;
    const double top = sink > max ? sink : max;
    scale = max == top ? 1.0 : __builtin_exp2(max - top);
    sum = sum * scale + (sink == top ? 1.0 : __builtin_exp2(sink - top));
    max = top;
  }
  const bool empty = sum == 0.0 || max == -__builtin_inf();
  const double factor = empty && sum == sum ? 1.0 : scale / sum;
  const TensorArg& out = args.out;
  const int64_t offset =
      at.batch * out.batch + (extent.q_begin + at.row) * out.seq + at.head * out.head;
  store_row<V>(acc, width, static_cast<E>(factor), element(out.data, out.dtype, offset), out.dtype);
  if (args.lse.data == nullptr) {
    return;
  }
  const double log_sum = sizeof(E) == 4
                             ? static_cast<double>(__builtin_logf(static_cast<float>(sum)))
                             : __builtin_log(sum);
  const double value = empty && sum == sum ? -__builtin_inf() : max * kLn2 + log_sum;
  const int64_t index = at.batch * args.lse.batch + at.head * args.lse.head +
                        (extent.q_begin + at.row) * args.lse.seq;
  if (args.lse.dtype == DType::kF64) {
    static_cast<double*>(args.lse.data)[index] = value;
  } else {
    static_cast<float*>(args.lse.data)[index] = static_cast<float>(value);
  }
}

// Region::kPartialStates as arrays.
template <class E>
struct PartialStates {
  E* max;  // (splits, Hq, rows)
  E* sum;
  E* out;  // (splits, Hq, rows, Dv)
  int64_t heads_q;
  int64_t rows;
  int64_t width;

  ROWMAX_INLINE PartialStates(const AttentionArgs& args, char* region, int64_t splits)
      : heads_q(args.shape.heads_q), rows(flat_query_rows(args)), width(args.shape.head_dim_v) {
    max = reinterpret_cast<E*>(region);
    sum = max + splits * heads_q * rows;
    out = sum + splits * heads_q * rows;
  }
  ROWMAX_INLINE int64_t index(int64_t split, int64_t head, int64_t row) const {
    return partial_state_index(heads_q, rows, split, head, row);
  }
};

// A row's state over one key range, O relative to m and not divided by l.
template <class V>
ROWMAX_NOINLINE inline void store_partial_row(const PartialStates<typename V::E>& states,
                                              int64_t index, typename V::E m, typename V::E l,
                                              const typename V::E* acc) {
  using E = typename V::E;
  const bool empty = l == E(0);
  states.max[index] = empty ? -E(__builtin_inf()) : m;
  states.sum[index] = l;
  E* to = states.out + index * states.width;
  for (int64_t d = 0; d < states.width; ++d) {
    to[d] = empty ? E(0) : acc[d];
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
