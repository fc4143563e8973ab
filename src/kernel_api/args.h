// What a kernel receives, as plain data: resolved pointers, strides and score options. Built once
// per execute from checked tensors. Everything here is trivially copyable and has no out-of-line
// functions, so that units compiled for different instruction sets can share it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem/band.h"
#include "problem/philox.h"
#include "rowmax/dtype.h"

namespace rowmax {

// A (batch, seq, head, dim) operand; the innermost stride is 1. Strides in elements.
//   ragged: batch stride 0, rows start at the sequence's offset
//   paged:  `batch` is the stride between pages, `seq` between slots of a page
struct TensorArg {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t head = 0;
};

// A (batch, head, row, col) operand; broadcast axes have stride 0, `col` is 0 or 1.
struct BroadcastArg {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t col = 0;
  bool full_batch = false;  // whether each axis has its full size (dbias reduces over the others)
  bool full_heads = false;
  bool full_rows = false;
  bool full_cols = false;
};

// LSE or its gradient, fp32 (fp64 when the problem is fp64): (B, Hq, Sq) or (Hq, total_q).
// ragged: batch stride 0, rows start at the sequence's offset.
struct RowArg {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t seq = 0;
};

// A (B), (B + 1) tensor of int32 or int64.
struct IndexArg {
  const void* data = nullptr;
  bool is_int64 = false;
  int64_t stride = 1;
};

ROWMAX_FORCE_INLINE int64_t read_index(const IndexArg& arg, int64_t i) {
  return arg.is_int64 ? static_cast<const int64_t*>(arg.data)[i * arg.stride]
                      : static_cast<const int32_t*>(arg.data)[i * arg.stride];
}

// Document ids: (B, S) or (total), int32.
struct DocumentArg {
  const int32_t* data = nullptr;
  int64_t batch = 0;
  int64_t seq = 0;
};

struct SequenceArgs {
  IndexArg cu_q;  // null data: dense
  IndexArg cu_k;
  IndexArg used_q;  // null data: the whole sequence
  IndexArg used_k;
  const int32_t* block_table = nullptr;  // (B, max_pages); null: not paged
  int64_t table_stride = 0;
  int64_t page_size = 0;
  int64_t num_pages = 0;
  int64_t max_pages = 0;
  int64_t total_q = 0;
  int64_t total_k = 0;
};

struct ScoreArgs {
  double scale = 1.0;
  double softcap = 0.0;  // 0: none
  BandArgs band;
  BroadcastArg mask;  // bool; null data: none
  BroadcastArg bias;  // floating; null data: none
  const float* slopes = nullptr;
  int64_t slope_batch = 0;
  int64_t slope_head = 0;
  DocumentArg documents_q;
  DocumentArg documents_k;
  const float* sinks = nullptr;
  int64_t sink_stride = 0;
};

struct GradientArgs {
  TensorArg dout;
  RowArg dlse;   // null data: zero
  TensorArg dq;  // null data: not wanted
  TensorArg dk;
  TensorArg dv;
  BroadcastArg dbias;
  float* dsinks = nullptr;
  int64_t dsink_stride = 0;
  float* dslopes = nullptr;
  int64_t dslope_batch = 0;
  int64_t dslope_head = 0;
};

// Sizes as in rowmax::Sizes; seqlen_* are upper bounds, extents come from sequence_extent().
struct ShapeArgs {
  int64_t batch = 0;
  int64_t heads_q = 0;
  int64_t heads_kv = 0;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
};

struct AttentionArgs {
  ShapeArgs shape;
  TensorArg q;
  TensorArg k;
  TensorArg v;
  TensorArg out;
  RowArg lse;  // forward: null data = not wanted
  SequenceArgs sequence;
  ScoreArgs score;
  DropoutArgs dropout;
  GradientArgs grad;
};

// Where one batch element's rows are. Query row i is at row q_begin + i of its tensor (ragged) or
// row i of batch element b (dense, q_begin = 0); keys likewise, or through the block table.
struct SequenceExtent {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int64_t k_begin = 0;
  int64_t k_len = 0;
};

namespace detail {
ROWMAX_FORCE_INLINE int64_t clamp(int64_t x, int64_t lo, int64_t hi) {
  return x < lo ? lo : x > hi ? hi : x;
}
}  // namespace detail

// Lengths of batch element b, clamped to the storage: decreasing offsets give an empty sequence,
// offsets beyond the storage its end.
ROWMAX_FORCE_INLINE SequenceExtent sequence_extent(const AttentionArgs& args, int64_t b) {
  const SequenceArgs& s = args.sequence;
  SequenceExtent e;
  e.q_len = args.shape.seqlen_q;
  if (s.cu_q.data != nullptr) {
    e.q_begin = detail::clamp(read_index(s.cu_q, b), 0, s.total_q);
    const int64_t length =
        detail::clamp(read_index(s.cu_q, b + 1), e.q_begin, s.total_q) - e.q_begin;
    e.q_len = detail::clamp(length, 0, args.shape.seqlen_q);
  }
  e.k_len = args.shape.seqlen_k;
  if (s.cu_k.data != nullptr) {
    e.k_begin = detail::clamp(read_index(s.cu_k, b), 0, s.total_k);
    const int64_t length =
        detail::clamp(read_index(s.cu_k, b + 1), e.k_begin, s.total_k) - e.k_begin;
    e.k_len = detail::clamp(length, 0, args.shape.seqlen_k);
  }
  if (s.used_q.data != nullptr) {
    e.q_len = detail::clamp(read_index(s.used_q, b), 0, e.q_len);
  }
  if (s.used_k.data != nullptr) {
    e.k_len = detail::clamp(read_index(s.used_k, b), 0, e.k_len);
  }
  return e;
}

}  // namespace rowmax
