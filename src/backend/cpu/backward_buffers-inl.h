// A worker's scratch, and how rows of the tensors get into it; shared by the backward and the
// bias-gradient kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/backward_scratch.h"
#include "backend/cpu/gradient_panel-inl.h"
#include "backend/cpu/pack-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"

namespace rowmax::cpu::ROWMAX_ISA {

inline constexpr int kMaxQueryPanels = 64;

// A worker's scratch as pointers; shapes in backward_scratch.h.
template <class V>
struct BackwardBuffers {
  using E = typename V::E;
  E* q;
  E* dout;
  E* q_cols;
  E* dout_cols;
  E* staged;
  E* lse;
  E* delta;
  E* dq;
  E* p;
  E* ds;
  E* k;
  E* v;
  E* k_cols;
  E* dk;
  E* dv;
  double* sums;
  GradientBuffers<V> panel;
  bool packed_chunk;

  BackwardBuffers(const BackwardScratch& at, char* base) {
    const auto part = [base](int64_t offset) { return reinterpret_cast<E*>(base + offset); };
    q = part(at.q);
    dout = part(at.dout);
    q_cols = part(at.q_cols);
    dout_cols = part(at.dout_cols);
    staged = part(at.staged);
    lse = part(at.lse);
    delta = part(at.delta);
    dq = part(at.dq);
    p = part(at.p);
    ds = part(at.ds);
    k = part(at.k);
    v = part(at.v);
    k_cols = part(at.k_cols);
    dk = part(at.dk);
    dv = part(at.dv);
    packed_chunk = at.packed_chunk;
    sums = reinterpret_cast<double*>(base + at.sums);
    panel = {part(at.modifier), part(at.cap_slope), part(at.keep),
             reinterpret_cast<uint8_t*>(base + at.visible)};
  }
};

template <class V>
BackwardScratchShape scratch_shape(const KernelLaunch& launch) {
  const ShapeArgs& shape = launch.args->shape;
  return {shape.head_dim,
          shape.head_dim_v,
          chunk_capacity(launch.schedule, shape.seqlen_k),
          launch.schedule.tile_q,
          launch.schedule.tile_k,
          V::W,
          static_cast<int64_t>(sizeof(typename V::E))};
}

ROWMAX_INLINE char* worker_scratch(const KernelLaunch& launch, int worker) {
  return launch.thread_scratch + static_cast<size_t>(worker) * launch.thread_stride;
}

// Statistics of `rows` rows from index `at` of Region::kRowStats. Lanes past the rows get delta = 0
// and an lse inside the range of exp2_reference that makes P vanish.
template <class V>
ROWMAX_NOINLINE inline void copy_row_statistics(const KernelLaunch& launch, int64_t at,
                                                int64_t rows, int64_t lanes, typename V::E* lse,
                                                typename V::E* delta) {
  using E = typename V::E;
  const AttentionArgs& args = *launch.args;
  const E* all_delta =
      reinterpret_cast<const E*>(launch.regions[static_cast<int>(Region::kRowStats)]);
  const E* all_lse = all_delta + args.shape.heads_q * flat_query_rows(args);
  for (int64_t i = 0; i < lanes; ++i) {
    delta[i] = i < rows ? all_delta[at + i] : E(0);
    lse[i] = i < rows ? all_lse[at + i] : E(kFastReference / 2);
  }
}

// Whether every statistic of a panel is inside the range of exp2_reference.
template <class V>
ROWMAX_INLINE bool statistics_in_range(const typename V::E* lse, int64_t lanes) {
  bool ok = sizeof(typename V::E) == 4;
  for (int64_t l = 0; l < lanes; l += V::W) {
    ok = ok && V::all(V::lt(V::abs(V::load(lse + l)), V::set1(kFastReference)));
  }
  return ok;
}

// Row `row` (in the tensor's own numbering) of one (batch element, head).
ROWMAX_INLINE void* tensor_row(const TensorArg& tensor, int64_t b, int64_t row, int64_t head) {
  return element(tensor.data, tensor.dtype,
                 b * tensor.batch + row * tensor.seq + head * tensor.head);
}

// Rows of the compute type. Rows that already are and lie close together are used in place; others
// are copied, since rows a power of two apart fall into few cache sets.
template <class V>
struct PlainRows {
  const typename V::E* data;
  int64_t ld;
};

template <class V>
inline constexpr DType kComputeType = sizeof(typename V::E) == 4 ? DType::kF32 : DType::kF64;

template <class V>
ROWMAX_INLINE PlainRows<V> load_rows(const TensorArg& tensor, int64_t b, int64_t row, int64_t head,
                                     int64_t rows, int64_t width, typename V::E* buffer) {
  using E = typename V::E;
  const void* source = tensor_row(tensor, b, row, head);
  if (tensor.dtype == kComputeType<V> && tensor.seq <= 2 * width && tensor.seq >= width) {
    return {static_cast<const E*>(source), tensor.seq};
  }
  const int64_t padded = round_up(width, V::W);
  pack_rows<V>(source, tensor.dtype, tensor.seq, rows, width, padded, buffer);
  return {buffer, padded};
}

// Rows of the compute type, times scale, to rows [row, row + rows) of a tensor.
template <class V>
ROWMAX_NOINLINE inline void store_rows(const typename V::E* source, int64_t ld, int64_t rows,
                                       int64_t width, typename V::E scale, const TensorArg& tensor,
                                       int64_t b, int64_t row, int64_t head) {
  for (int64_t i = 0; i < rows; ++i) {
    store_row<V>(source + i * ld, width, scale, tensor_row(tensor, b, row + i, head), tensor.dtype);
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
