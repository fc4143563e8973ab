// Scratch of one backward or bias-gradient worker: one source for thread_bytes and for the kernels'
// carving. Plain integer arithmetic; units of any instruction set may include it.
#pragma once

#include <cstdint>

#include "backend/cpu/carver.h"
#include "backend/cpu/limits.h"
#include "kernel_api/kernel.h"

namespace rowmax::cpu {

// A backward item copies the K and V of its chunk once (for all heads and query blocks) where the
// copies stay below this; a longer chunk is copied again for every query block, which costs 5-8 %.
inline constexpr int64_t kPackedChunkBytes = 8 << 20;

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

// The longest chunk of keys of one item.
ROWMAX_FORCE_INLINE int64_t chunk_capacity(const Schedule& schedule, int64_t seqlen_k) {
  return schedule.splits > 1 && schedule.split_len < seqlen_k ? schedule.split_len : seqlen_k;
}

// `step`: kBackward or kBiasGradient.
ROWMAX_FORCE_INLINE BackwardScratch backward_scratch(const BackwardScratchShape& shape,
                                                     StepKind step) {
  BackwardScratch out;
  Carver carver;
  const int64_t e = shape.element_bytes;
  const int64_t rows = whole_vectors(shape.tile_q, shape.width);
  const int64_t dim = whole_vectors(shape.head_dim, shape.width);
  const int64_t dim_v = whole_vectors(shape.head_dim_v, shape.width);
  const int64_t scores = rows * (shape.tile_k + 2 * kTileMargin);
  const int64_t panel = (shape.tile_k + kTileMargin) * kPanelVectors * shape.width;
  out.packed_chunk =
      step == StepKind::kBackward && shape.chunk * (2 * dim + dim_v) * e <= kPackedChunkBytes;
  const int64_t keys = out.packed_chunk ? shape.chunk : shape.tile_k;
  out.q = carver.take(rows * dim * e);
  out.dout = carver.take(rows * dim_v * e);
  out.staged = carver.take(rows * (dim > dim_v ? dim : dim_v) * e);
  out.lse = carver.take(rows * e);
  out.delta = carver.take(rows * e);
  out.p = carver.take(scores * e);
  out.ds = carver.take(scores * e);
  out.k = carver.take(keys * dim * e);
  out.v = carver.take(keys * dim_v * e);
  out.modifier = carver.take(panel * e);
  out.cap_slope = carver.take(panel * e);
  out.keep = carver.take(panel * e);
  out.visible = carver.take(shape.tile_k);
  if (step == StepKind::kBackward) {
    out.q_cols = carver.take(rows * dim * e);
    out.dout_cols = carver.take(rows * dim_v * e);
    out.k_cols = carver.take(keys * dim * e);
    out.dq = carver.take(rows * dim * e);
    out.dk = carver.take(shape.chunk * dim * e);
    out.dv = carver.take(shape.chunk * dim_v * e);
  } else {
    out.sums = carver.take(shape.tile_k * shape.tile_q * static_cast<int64_t>(sizeof(double)));
  }
  out.bytes = carver.bytes();
  return out;
}

}  // namespace rowmax::cpu
