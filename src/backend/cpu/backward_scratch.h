// Scratch of one backward or bias-gradient worker: one source for thread_bytes and for the kernels'
// carving. Plain integer arithmetic; units of any instruction set may include it.
#pragma once

#include <cstdint>

#include "kernel_api/kernel.h"
#include "problem/band.h"

namespace rowmax::cpu {

// A backward item copies the K and V of its chunk once (for all heads and query blocks) where the
// copies stay below this; a longer chunk is copied again for every query block, which costs 5-8 %.
inline constexpr int64_t kPackedChunkBytes = 8 << 20;

// Rows that a register tile may write or read next to a panel's keys.
inline constexpr int64_t kTileMargin = 8;

struct BackwardScratchShape {
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  int64_t chunk = 0;   // keys of an item
  int64_t tile_q = 0;  // query rows of a block
  int64_t tile_k = 0;  // keys of a block
  int64_t width = 0;   // elements of a vector
  int64_t element_bytes = 0;
};

// Byte offsets, each a multiple of 64. `rows` below is tile_q rounded up to whole vectors, D and Dv
// are padded likewise; `keys` is tile_k, or the chunk in a backward step with packed_chunk.
struct BackwardScratch {
  // Of both kernels.
  int64_t q = 0;          // panels of (D, lanes)
  int64_t dout = 0;       // panels of (Dv, lanes)
  int64_t staged = 0;     // (rows, the wider of D and Dv): rows of Q or dO that lie far apart
  int64_t lse = 0;        // (rows)
  int64_t delta = 0;      // (rows)
  int64_t p = 0;          // panels of (tile_k and a margin before and after, lanes)
  int64_t ds = 0;         // the same
  int64_t k = 0;          // (keys, D), where K cannot be read in place
  int64_t v = 0;          // (keys, Dv)
  int64_t modifier = 0;   // (tile_k + kTileMargin, widest panel)
  int64_t cap_slope = 0;  // the same
  int64_t keep = 0;       // the same
  int64_t visible = 0;    // uint8 (tile_k)
  // Of backward.
  int64_t q_cols = 0;     // column panels, (rows, D)
  int64_t dout_cols = 0;  // column panels, (rows, Dv)
  int64_t k_cols = 0;     // column panels, (keys, D)
  int64_t dq = 0;         // (rows, D)
  int64_t dk = 0;         // (chunk, D)
  int64_t dv = 0;         // (chunk, Dv)
  // Of bias gradient.
  int64_t sums = 0;  // double (tile_k, tile_q)
  int64_t bytes = 0;
  bool packed_chunk = false;  // k, v and k_cols hold `chunk` keys, not tile_k
};

ROWMAX_FORCE_INLINE int64_t whole_vectors(int64_t x, int64_t width) {
  return (x + width - 1) / width * width;
}

// The longest chunk of keys of one item.
ROWMAX_FORCE_INLINE int64_t chunk_capacity(const Schedule& schedule, int64_t seqlen_k) {
  return schedule.splits > 1 && schedule.split_len < seqlen_k ? schedule.split_len : seqlen_k;
}

// `step`: kBackward or kBiasGradient.
ROWMAX_FORCE_INLINE BackwardScratch backward_scratch(const BackwardScratchShape& shape,
                                                     StepKind step) {
  BackwardScratch out;
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) __attribute__((always_inline)) {
    const int64_t offset = at;
    at += (bytes + 63) / 64 * 64;
    return offset;
  };
  const int64_t e = shape.element_bytes;
  const int64_t rows = whole_vectors(shape.tile_q, shape.width);
  const int64_t dim = whole_vectors(shape.head_dim, shape.width);
  const int64_t dim_v = whole_vectors(shape.head_dim_v, shape.width);
  const int64_t scores = rows * (shape.tile_k + 2 * kTileMargin);
  const int64_t panel = (shape.tile_k + kTileMargin) * 3 * shape.width;
  out.packed_chunk =
      step == StepKind::kBackward && shape.chunk * (2 * dim + dim_v) * e <= kPackedChunkBytes;
  const int64_t keys = out.packed_chunk ? shape.chunk : shape.tile_k;
  out.q = take(rows * dim * e);
  out.dout = take(rows * dim_v * e);
  out.staged = take(rows * (dim > dim_v ? dim : dim_v) * e);
  out.lse = take(rows * e);
  out.delta = take(rows * e);
  out.p = take(scores * e);
  out.ds = take(scores * e);
  out.k = take(keys * dim * e);
  out.v = take(keys * dim_v * e);
  out.modifier = take(panel * e);
  out.cap_slope = take(panel * e);
  out.keep = take(panel * e);
  out.visible = take(shape.tile_k);
  if (step == StepKind::kBackward) {
    out.q_cols = take(rows * dim * e);
    out.dout_cols = take(rows * dim_v * e);
    out.k_cols = take(keys * dim * e);
    out.dq = take(rows * dim * e);
    out.dk = take(shape.chunk * dim * e);
    out.dv = take(shape.chunk * dim_v * e);
  } else {
    out.sums = take(shape.tile_k * shape.tile_q * static_cast<int64_t>(sizeof(double)));
  }
  out.bytes = at;
  return out;
}

}  // namespace rowmax::cpu
