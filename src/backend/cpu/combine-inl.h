// Combine: folds the partial states of every row over the splits, in order, then finishes the row.
#pragma once

#include <cstdint>

#include "backend/cpu/output-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// exp2 for a weight: 1 where both references are the same, infinities included.
ROWMAX_INLINE double reference_weight(double m, double top) {
  return m == top ? 1.0 : __builtin_exp2(m - top);
}

template <class V>
ROWMAX_NOINLINE inline void combine_row(const AttentionArgs& args, const SequenceExtent& extent,
                                        const RowPosition& at,
                                        const PartialStates<typename V::E>& states,
                                        int64_t splits) {
  using E = typename V::E;
  constexpr int W = V::W;
  const int64_t width = states.width;
  const int64_t flat = flat_query_row(args, extent, at.batch, at.row);
  E top = -E(__builtin_inf());
  for (int64_t split = 0; split < splits; ++split) {
    const E m = states.max[states.index(split, at.head, flat)];
    top = m > top ? m : top;
  }
  E acc[kMaxHeadDim + W];
  for (int64_t d = 0; d < width; d += W) {
    V::store(acc + d, V::zero());
  }
  E sum = 0;
  for (int64_t split = 0; split < splits; ++split) {
    const int64_t index = states.index(split, at.head, flat);
    if (states.sum[index] == E(0)) {
      continue;  // empty: the others pass bit for bit
    }
    const E weight = static_cast<E>(
        reference_weight(static_cast<double>(states.max[index]), static_cast<double>(top)));
    const auto factor = V::set1(weight);
    sum += states.sum[index] * weight;
    const E* part = states.out + index * width;
    int64_t d = 0;
    for (; d + W <= width; d += W) {
      V::store(acc + d, V::fma(V::load(part + d), factor, V::load(acc + d)));
    }
    for (; d < width; ++d) {
      acc[d] += part[d] * weight;
    }
  }
  finish_row<V>(args, extent, at, top, sum, acc);
}

template <class V>
inline void run_combine(const KernelLaunch& launch, int /*worker*/) {
  using E = typename V::E;
  const AttentionArgs& args = *launch.args;
  const ShapeArgs& shape = args.shape;
  const PartialStates<E> states(args, launch.regions[static_cast<int>(Region::kPartialStates)],
                                launch.schedule.splits);
  const int64_t tile_q = launch.schedule.tile_q;
  const int64_t chunks = ceil_div(shape.seqlen_q, tile_q);
  const int64_t items = shape.batch * shape.heads_q * chunks;
  for_each_item(launch, items, [&](int64_t item) {
    RowPosition at;
    at.batch = item / chunks / shape.heads_q;
    at.head = item / chunks % shape.heads_q;
    const SequenceExtent extent = sequence_extent(args, at.batch);
    const int64_t begin = item % chunks * tile_q;
    const int64_t end = imin(begin + tile_q, extent.q_len);
    for (at.row = begin; at.row < end; ++at.row) {
      combine_row<V>(args, extent, at, states, launch.schedule.splits);
    }
  });
}

}  // namespace rowmax::cpu::ROWMAX_ISA
