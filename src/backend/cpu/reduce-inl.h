// Partial sums of backward -> outputs, always added in the same order: dQ over key chunks, dsinks
// over the batch and row chunks, dslopes over key chunks and, when slopes are (Hq), the batch.
#pragma once

#include <cstdint>

#include "backend/cpu/pack-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// dQ = scale * sum over chunks of the partials, for rows [row0, row0 + tile_q).
template <class V>
void reduce_dq(const KernelLaunch& launch, int64_t b, int64_t h, int64_t row0) {
  using E = typename V::E;
  const AttentionArgs& args = *launch.args;
  const TensorArg& dq = args.grad.dq;
  const SequenceExtent extent = sequence_extent(args, b);
  const int64_t end = imin(row0 + launch.schedule.tile_q, extent.q_len);
  const int64_t width = args.shape.head_dim;
  const int64_t rows_total = flat_query_rows(args);
  E* partials = reinterpret_cast<E*>(launch.regions[static_cast<int>(Region::kDqPartials)]);
  const int64_t chunk_step = args.shape.heads_q * rows_total * width;
  for (int64_t i = row0; i < end; ++i) {
    // The first chunk's row becomes the sum.
    E* sum = partials + width * dq_partial_index(args.shape.heads_q, rows_total, 0, h,
                                                 flat_query_row(args, extent, b, i));
    for (int64_t c = 1; c < launch.schedule.splits; ++c) {
      const E* x = sum + c * chunk_step;
      int64_t d = 0;
      for (; d + V::W <= width; d += V::W) {
        V::store(sum + d, V::add(V::load(sum + d), V::load(x + d)));
      }
      for (; d < width; ++d) {
        sum[d] += x[d];
      }
    }
    const int64_t at = b * dq.batch + (extent.q_begin + i) * dq.seq + h * dq.head;
    store_row<V>(sum, width, static_cast<E>(args.score.scale), element(dq.data, dq.dtype, at),
                 dq.dtype);
  }
}

// Sum of the partials of head h over `chunks`, for batch elements [begin, end).
inline double sum_partials(const char* region, int64_t heads, int64_t chunks, int64_t h,
                           int64_t begin, int64_t end) {
  const auto* partials = reinterpret_cast<const double*>(region);
  double sum = 0.0;
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t c = 0; c < chunks; ++c) {
      sum += partials[per_head_partial_index(heads, chunks, b, h, c)];
    }
  }
  return sum;
}

inline void reduce_sinks(const KernelLaunch& launch) {
  const AttentionArgs& args = *launch.args;
  const int64_t chunks = ceil_div(args.shape.seqlen_q, kRowStatsChunk);
  for (int64_t h = 0; h < args.shape.heads_q; ++h) {
    args.grad.dsinks[h * args.grad.dsink_stride] =
        static_cast<float>(sum_partials(launch.regions[static_cast<int>(Region::kSinkPartials)],
                                        args.shape.heads_q, chunks, h, 0, args.shape.batch));
  }
}

inline void reduce_slopes(const KernelLaunch& launch) {
  const AttentionArgs& args = *launch.args;
  const ShapeArgs& shape = args.shape;
  const char* region = launch.regions[static_cast<int>(Region::kSlopePartials)];
  const bool per_batch = args.grad.dslope_batch != 0;
  const int64_t outer = per_batch ? shape.batch : 1;
  for (int64_t b = 0; b < outer; ++b) {
    for (int64_t h = 0; h < shape.heads_q; ++h) {
      args.grad.dslopes[b * args.grad.dslope_batch + h * args.grad.dslope_head] =
          static_cast<float>(sum_partials(region, shape.heads_q, launch.schedule.splits, h, b,
                                          per_batch ? b + 1 : shape.batch));
    }
  }
}

// Items: blocks of dQ rows, then one for dsinks and one for dslopes.
template <class V>
void run_reduce(const KernelLaunch& launch) {
  const AttentionArgs& args = *launch.args;
  const ShapeArgs& shape = args.shape;
  const bool sums_dq = args.grad.dq.data != nullptr && launch.schedule.splits > 1;
  const int64_t blocks = ceil_div(shape.seqlen_q, launch.schedule.tile_q);
  const int64_t dq_items = sums_dq ? shape.batch * shape.heads_q * blocks : 0;
  for_each_item(launch, dq_items + 2, [&](int64_t index) {
    if (index < dq_items) {
      const int64_t bh = index / blocks;
      reduce_dq<V>(launch, bh / shape.heads_q, bh % shape.heads_q,
                   index % blocks * launch.schedule.tile_q);
    } else if (index == dq_items) {
      if (args.grad.dsinks != nullptr) {
        reduce_sinks(launch);
      }
    } else if (args.grad.dslopes != nullptr) {
      reduce_slopes(launch);
    }
  });
}

}  // namespace rowmax::cpu::ROWMAX_ISA
