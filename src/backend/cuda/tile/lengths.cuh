// Lengths of one batch element, read on the device. The rules of rowmax::sequence_extent(), in
// 32-bit positions.
#pragma once

#include "backend/cuda/ptx/types.cuh"
#include "problem/band.h"

namespace rowmax::cuda::tile {

// A (B) or (B + 1) tensor of int32 or int64 on the device; null: absent.
struct IndexArray {
  const void* data = nullptr;
  int64_t stride = 1;
  int is_int64 = 0;
};

struct LengthArgs {
  IndexArray cu_q;
  IndexArray cu_k;
  IndexArray used_q;
  IndexArray used_k;
  int seqlen_q = 0;  // upper bounds
  int seqlen_k = 0;
  int total_q = 0;
  int total_k = 0;
  int any = 0;  // whether any of the arrays is present
};

struct Extent {
  int q_begin = 0;
  int q_len = 0;
  int k_begin = 0;
  int k_len = 0;
};

ROWMAX_FORCE_INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

ROWMAX_FORCE_INLINE int64_t read(const IndexArray& array, int64_t i) {
  return array.is_int64 ? static_cast<const int64_t*>(array.data)[i * array.stride]
                        : static_cast<const int32_t*>(array.data)[i * array.stride];
}

ROWMAX_FORCE_INLINE int query_length(const LengthArgs& args, int batch) {
  int64_t length = args.seqlen_q;
  if (args.cu_q.data != nullptr) {
    const int64_t begin = clamp(read(args.cu_q, batch), 0, args.total_q);
    const int64_t end = clamp(read(args.cu_q, batch + 1), begin, args.total_q);
    length = clamp(end - begin, 0, args.seqlen_q);
  }
  if (args.used_q.data != nullptr) {
    length = clamp(read(args.used_q, batch), 0, length);
  }
  return static_cast<int>(length);
}

// Decreasing offsets give an empty sequence, offsets beyond the storage its end.
ROWMAX_FORCE_INLINE Extent extent(const LengthArgs& args, int batch) {
  Extent e;
  e.k_len = args.seqlen_k;
  e.q_len = query_length(args, batch);
  if (args.cu_q.data != nullptr) {
    e.q_begin = static_cast<int>(clamp(read(args.cu_q, batch), 0, args.total_q));
  }
  if (args.cu_k.data != nullptr) {
    const int64_t begin = clamp(read(args.cu_k, batch), 0, args.total_k);
    const int64_t end = clamp(read(args.cu_k, batch + 1), begin, args.total_k);
    e.k_begin = static_cast<int>(begin);
    e.k_len = static_cast<int>(clamp(end - begin, 0, args.seqlen_k));
  }
  if (args.used_k.data != nullptr) {
    e.k_len = static_cast<int>(clamp(read(args.used_k, batch), 0, e.k_len));
  }
  return e;
}

// A band's offset as a 32-bit number: beyond every sum of positions it acts like the limit.
ROWMAX_FORCE_INLINE int saturate_offset(int64_t offset) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  return static_cast<int>(offset < -kLimit ? -kLimit : offset > kLimit ? kLimit : offset);
}

}  // namespace rowmax::cuda::tile
