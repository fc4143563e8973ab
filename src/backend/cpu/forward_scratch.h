// Scratch of one forward worker: one source for thread_bytes and for the kernel's carving. Plain
// integer arithmetic; units of any instruction set may include it.
#pragma once

#include <cstdint>

#include "problem/band.h"

namespace rowmax::cpu {

// Consecutive rows of one query head that share the SIMD lanes.
struct QueryPanel {
  int64_t head = 0;       // absolute query head
  int64_t row = 0;        // position in the sequence
  int64_t rows = 0;       // lanes past it are padding
  int64_t lane = 0;       // first lane in the item: of the packed Q, the state and O
  int64_t key_begin = 0;  // keys that some row sees, inside the item's split
  int64_t key_end = 0;
  int64_t vectors = 0;
  bool finite = false;  // every element of Q is finite; known once Q is packed
};

struct ForwardScratchShape {
  int64_t tile_q = 0;
  int64_t tile_k = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  int64_t width = 0;  // elements of a vector
  int64_t element_bytes = 0;
};

// Byte offsets, each a multiple of 64, and the lanes an item may use.
struct ForwardScratch {
  int64_t lanes = 0;     // capacity of an item
  int64_t panels = 0;    // QueryPanel (lanes / width)
  int64_t q = 0;         // panels of (D, panel lanes)
  int64_t k = 0;         // (tile_k, D padded)
  int64_t v = 0;         // column panels of (tile_k, panel width)
  int64_t out = 0;       // (lanes, Dv padded)
  int64_t max = 0;       // (lanes)
  int64_t sum = 0;       // (lanes)
  int64_t rescale = 0;   // (panel lanes)
  int64_t scores = 0;    // (tile_k + one dot tile, panel lanes)
  int64_t modifier = 0;  // (tile_k padded, panel lanes)
  int64_t visible = 0;   // uint8 (tile_k)
  int64_t bytes = 0;
};

// Rows that the last dot tile of a block may store past it.
inline constexpr int64_t kDotTail = 8;

ROWMAX_FORCE_INLINE ForwardScratch forward_scratch(const ForwardScratchShape& shape) {
  const int64_t w = shape.width;
  const int64_t dim = (shape.head_dim + w - 1) / w * w;
  const int64_t dim_v = (shape.head_dim_v + w - 1) / w * w;
  const int64_t panel = 3 * w;
  const int64_t keys = (shape.tile_k + w - 1) / w * w;
  ForwardScratch out;
  out.lanes = (shape.tile_q + w - 1) / w * w;
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) __attribute__((always_inline)) {
    const int64_t offset = at;
    at += (bytes + 63) / 64 * 64;
    return offset;
  };
  const int64_t e = shape.element_bytes;
  out.panels = take(out.lanes / w * static_cast<int64_t>(sizeof(QueryPanel)));
  out.q = take(out.lanes * dim * e);
  out.k = take(shape.tile_k * dim * e);
  out.v = take(shape.tile_k * dim_v * e);
  out.out = take(out.lanes * dim_v * e);
  out.max = take(out.lanes * e);
  out.sum = take(out.lanes * e);
  out.rescale = take(panel * e);
  out.scores = take((shape.tile_k + kDotTail) * panel * e);
  out.modifier = take(keys * panel * e);
  out.visible = take(shape.tile_k);
  out.bytes = at;
  return out;
}

}  // namespace rowmax::cpu
