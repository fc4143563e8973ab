// Scratch of one forward worker: one source for thread_bytes and for the kernel's carving. Plain
// integer arithmetic; units of any instruction set may include it.
#pragma once

#include <cstdint>

#include "backend/cpu/carver.h"
#include "backend/cpu/limits.h"

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
  int64_t scores = 0;    // (tile_k + kTileMargin, panel lanes)
  int64_t modifier = 0;  // (tile_k padded, panel lanes)
  int64_t visible = 0;   // uint8 (tile_k)
  int64_t bytes = 0;
};

ROWMAX_FORCE_INLINE ForwardScratch forward_scratch(const ForwardScratchShape& shape) {
  const int64_t w = shape.width;
  const int64_t dim = whole_vectors(shape.head_dim, w);
  const int64_t dim_v = whole_vectors(shape.head_dim_v, w);
  const int64_t panel = kPanelVectors * w;
  const int64_t keys = whole_vectors(shape.tile_k, w);
  Carver carver;
  ForwardScratch out;
  out.lanes = whole_vectors(shape.tile_q, w);
  const int64_t e = shape.element_bytes;
  out.panels = carver.take(out.lanes / w * static_cast<int64_t>(sizeof(QueryPanel)));
  out.q = carver.take(out.lanes * dim * e);
  out.k = carver.take(shape.tile_k * dim * e);
  out.v = carver.take(shape.tile_k * dim_v * e);
  out.out = carver.take(out.lanes * dim_v * e);
  out.max = carver.take(out.lanes * e);
  out.sum = carver.take(out.lanes * e);
  out.rescale = carver.take(panel * e);
  out.scores = carver.take((shape.tile_k + kTileMargin) * panel * e);
  out.modifier = carver.take(keys * panel * e);
  out.visible = carver.take(shape.tile_k);
  out.bytes = carver.bytes();
  return out;
}

}  // namespace rowmax::cpu
