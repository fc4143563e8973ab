// Where rows of K and V are: dense, ragged or through the page table; and the prefetch that walks
// them ahead of the computation.
#pragma once

#include <cstdint>

#include "backend/cpu/pack-inl.h"
#include "kernel_api/args.h"

namespace rowmax::cpu::ROWMAX_ISA {

// Rows of one (batch element, head) of a tensor, by position in the sequence.
struct TensorRows {
  const char* data = nullptr;  // row 0; paged: slot 0 of page 0
  DType dtype = DType::kF32;
  int64_t stride = 0;  // elements between rows (slots)
  int64_t stride_bytes = 0;
  int64_t row_bytes = 0;           // payload of a row
  const int32_t* table = nullptr;  // pages of this batch element; null: not paged
  int64_t page_size = 0;
  int64_t page_bytes = 0;

  ROWMAX_INLINE const char* row(int64_t i) const {
    if (table == nullptr) {
      return data + i * stride_bytes;
    }
    return data + table[i / page_size] * page_bytes + i % page_size * stride_bytes;
  }

  // Rows from i on that lie `stride` apart, at most `limit`.
  ROWMAX_INLINE int64_t run(int64_t i, int64_t limit) const {
    return table == nullptr ? limit : imin(limit, page_size - i % page_size);
  }
};

ROWMAX_INLINE TensorRows make_rows(const TensorArg& tensor, int64_t width, int64_t offset) {
  TensorRows rows;
  const int64_t size = static_cast<int64_t>(size_of(tensor.dtype));
  rows.data = static_cast<const char*>(tensor.data) + offset * size;
  rows.dtype = tensor.dtype;
  rows.stride = tensor.seq;
  rows.stride_bytes = tensor.seq * size;
  rows.row_bytes = width * size;
  return rows;
}

ROWMAX_INLINE TensorRows query_rows_of(const TensorArg& tensor, int64_t width,
                                       const SequenceExtent& extent, int64_t b, int64_t head) {
  return make_rows(tensor, width,
                   b * tensor.batch + extent.q_begin * tensor.seq + head * tensor.head);
}

ROWMAX_INLINE TensorRows key_rows_of(const AttentionArgs& args, const TensorArg& tensor,
                                     int64_t width, const SequenceExtent& extent, int64_t b,
                                     int64_t kv_head) {
  const SequenceArgs& sequence = args.sequence;
  if (sequence.block_table == nullptr) {
    return make_rows(tensor, width,
                     b * tensor.batch + extent.k_begin * tensor.seq + kv_head * tensor.head);
  }
  TensorRows rows = make_rows(tensor, width, kv_head * tensor.head);
  rows.table = sequence.block_table + b * sequence.table_stride;
  rows.page_size = sequence.page_size;
  rows.page_bytes = tensor.batch * static_cast<int64_t>(size_of(tensor.dtype));
  return rows;
}

// Walks rows toward L2 while something else is computed, a few cache lines a step: the next key
// block during the products of the current one.
class Prefetch {
 public:
  ROWMAX_INLINE void add(const TensorRows& rows, int64_t begin, int64_t end) {
    if (begin < end) {
      parts_[count_++] = {&rows, begin, end};
      lines_ += (end - begin) * lines_of(rows);
    }
  }
  // The lines added so far are spread over this many steps.
  ROWMAX_INLINE void spread(int64_t steps) {
    per_step_ = steps > 0 ? (lines_ + steps - 1) / steps : 0;
    next_row();
  }
  ROWMAX_INLINE void step() {
    for (int64_t i = 0; i < per_step_ && left_ > 0; ++i) {
      prefetch_far(line_);
      line_ += kLine;
      if (--left_ == 0) {
        next_row();
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  struct Part {
    const TensorRows* rows;
    int64_t next;
    int64_t end;
  };

  static ROWMAX_INLINE int64_t lines_of(const TensorRows& rows) {
    return (rows.row_bytes + kLine - 1) / kLine;
  }
  ROWMAX_NOINLINE void next_row() {
    if (count_ == 0) {
      return;
    }
    Part& part = parts_[count_ - 1];
    line_ = part.rows->row(part.next);
    left_ = lines_of(*part.rows);
    if (++part.next == part.end) {
      --count_;
    }
  }

  Part parts_[2] = {};
  const char* line_ = nullptr;
  int64_t left_ = 0;
  int64_t lines_ = 0;
  int64_t per_step_ = 0;
  int count_ = 0;
};

}  // namespace rowmax::cpu::ROWMAX_ISA
