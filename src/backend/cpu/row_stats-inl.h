// Backward's row statistics: delta = rowsum(dO o O) - dLSE and LSE in log2 units for every row, and
// the dsink partials of kRowStatsChunk rows each.
#pragma once

#include <cstdint>

#include "backend/cpu/pack-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// sum of a[d] * b[d], in the compute type.
template <class V, class SA, class SB>
ROWMAX_INLINE typename V::E dot_row(const typename SA::T* a, const typename SB::T* b,
                                    int64_t width) {
  using E = typename V::E;
  auto even = V::zero();
  auto odd = V::zero();
  int64_t d = 0;
  for (; d + 2 * V::W <= width; d += 2 * V::W) {
    even = V::fma(load_vector<V, SA>(a + d), load_vector<V, SB>(b + d), even);
    odd = V::fma(load_vector<V, SA>(a + d + V::W), load_vector<V, SB>(b + d + V::W), odd);
  }
  for (; d + V::W <= width; d += V::W) {
    even = V::fma(load_vector<V, SA>(a + d), load_vector<V, SB>(b + d), even);
  }
  E sum = V::hsum(V::add(even, odd));
  for (; d < width; ++d) {
    sum += static_cast<E>(SA::get(a + d)) * static_cast<E>(SB::get(b + d));
  }
  return sum;
}

// `rows` such sums; a and b are elements `a_row` and `b_row` apart from row to row.
template <class V>
ROWMAX_NOINLINE void dot_rows(const TensorArg& a, int64_t a_offset, const TensorArg& b,
                              int64_t b_offset, int64_t rows, int64_t width, typename V::E* out) {
  const void* a_data = element(static_cast<const void*>(a.data), a.dtype, a_offset);
  const void* b_data = element(static_cast<const void*>(b.data), b.dtype, b_offset);
  with_storage(a.dtype, [&](auto policy_a) {
    using SA = decltype(policy_a);
    with_storage(b.dtype, [&](auto policy_b) {
      using SB = decltype(policy_b);
      const auto* x = static_cast<const typename SA::T*>(a_data);
      const auto* y = static_cast<const typename SB::T*>(b_data);
      const int64_t a_line = 64 / static_cast<int64_t>(sizeof(*x));
      const int64_t b_line = 64 / static_cast<int64_t>(sizeof(*y));
      for (int64_t i = 0; i < rows; ++i) {
        // Rows far apart are not found by the hardware's prefetcher.
        const int64_t ahead = imin(i + 8, rows - 1);
        for (int64_t d = 0; d < width; d += a_line) {
          prefetch_near(x + ahead * a.seq + d);
        }
        for (int64_t d = 0; d < width; d += b_line) {
          prefetch_near(y + ahead * b.seq + d);
        }
        out[i] = dot_row<V, SA, SB>(x + i * a.seq, y + i * b.seq, width);
      }
    });
  });
}

ROWMAX_INLINE double row_value(const RowArg& arg, int64_t index) {
  return arg.dtype == DType::kF64 ? static_cast<const double*>(arg.data)[index]
                                  : static_cast<double>(static_cast<const float*>(arg.data)[index]);
}

// One (batch element, query head, chunk of rows).
template <class V>
void run_row_stats_item(const KernelLaunch& launch, int64_t b, int64_t h, int64_t chunk,
                        int64_t chunks) {
  using E = typename V::E;
  const AttentionArgs& args = *launch.args;
  const GradientArgs& grad = args.grad;
  const SequenceExtent extent = sequence_extent(args, b);
  const int64_t rows_total = flat_query_rows(args);
  E* delta = reinterpret_cast<E*>(launch.regions[static_cast<int>(Region::kRowStats)]);
  E* lse = delta + args.shape.heads_q * rows_total;
  const int64_t begin = imin(chunk * kRowStatsChunk, extent.q_len);
  const int64_t end = imin(begin + kRowStatsChunk, extent.q_len);
  const bool wants_sinks = grad.dsinks != nullptr && args.score.sinks != nullptr;
  const double sink =
      args.score.sinks != nullptr ? args.score.sinks[h * args.score.sink_stride] : 0.0;
  double dsink = 0.0;
  if (begin < end) {
    const int64_t row = extent.q_begin + begin;
    const int64_t at = row_stats_index(rows_total, h, flat_query_row(args, extent, b, begin));
    dot_rows<V>(args.out, b * args.out.batch + row * args.out.seq + h * args.out.head, grad.dout,
                b * grad.dout.batch + row * grad.dout.seq + h * grad.dout.head, end - begin,
                args.shape.head_dim_v, delta + at);
    for (int64_t i = 0; i < end - begin; ++i) {
      const double l =
          row_value(args.lse, b * args.lse.batch + h * args.lse.head + (row + i) * args.lse.seq);
      const double dl = grad.dlse.data == nullptr
                            ? 0.0
                            : row_value(grad.dlse, b * grad.dlse.batch + h * grad.dlse.head +
                                                       (row + i) * grad.dlse.seq);
      const double infinity = __builtin_inf();
      if (l == -infinity) {  // no key: P = 0, and the sink (if any) is -inf too
        delta[at + i] = E(0);
        lse[at + i] = E(infinity);
        continue;
      }
      const double sum = static_cast<double>(delta[at + i]);
      if (wants_sinks && sink != -infinity) {
        dsink += (sink == l ? 1.0 : __builtin_exp(sink - l)) * (dl - sum);
      }
      delta[at + i] = static_cast<E>(sum - dl);
      lse[at + i] = to_element<E>(l * kLog2E);  // +inf, from a sink of +inf: P = 0 again
    }
  }
  if (wants_sinks) {
    auto* partials =
        reinterpret_cast<double*>(launch.regions[static_cast<int>(Region::kSinkPartials)]);
    partials[per_head_partial_index(args.shape.heads_q, chunks, b, h, chunk)] = dsink;
  }
}

template <class V>
void run_row_stats(const KernelLaunch& launch) {
  const ShapeArgs& shape = launch.args->shape;
  const int64_t chunks = ceil_div(shape.seqlen_q, kRowStatsChunk);
  const int64_t items = shape.batch * shape.heads_q * chunks;
  for_each_item(launch, items, [&](int64_t index) {
    const int64_t bh = index / chunks;
    run_row_stats_item<V>(launch, bh / shape.heads_q, bh % shape.heads_q, index % chunks, chunks);
  });
}

}  // namespace rowmax::cpu::ROWMAX_ISA
