// How a schedule cuts a problem into work items. One source for the planner's item counts, the
// kernels' decoding of an item index and the tests that enumerate both. Plain integer arithmetic;
// units of any instruction set may include it.
#pragma once

#include <cstdint>

#include "problem/band.h"

namespace rowmax {

ROWMAX_FORCE_INLINE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

ROWMAX_FORCE_INLINE constexpr int64_t round_up(int64_t a, int64_t multiple) {
  return ceil_div(a, multiple) * multiple;
}

// Rows of one (batch element, kv head): the Sq rows of each of its G query heads. A query head's
// rows are cut in blocks of tile_q; when a head is shorter than a tile, whole heads share an item,
// so that one packing of the keys serves as many rows as possible.
struct ItemShape {
  int64_t heads_per_item = 1;  // > 1 only when blocks == 1
  int64_t head_groups = 0;     // items of one (batch element, kv head) and row block
  int64_t blocks = 0;          // row blocks of a query head
};

// `seqlen_q` is the upper bound of the lengths (ragged batches too): the shape is the same for
// every batch element. Empty when there are no rows.
ROWMAX_FORCE_INLINE constexpr ItemShape forward_item_shape(int64_t group, int64_t seqlen_q,
                                                           int64_t tile_q) {
  ItemShape shape;
  if (seqlen_q <= 0 || group <= 0) {
    return shape;
  }
  if (seqlen_q < tile_q) {
    const int64_t fit = tile_q / seqlen_q;
    shape.heads_per_item = fit < group ? fit : group;
  }
  shape.head_groups = ceil_div(group, shape.heads_per_item);
  shape.blocks = ceil_div(seqlen_q, tile_q);
  return shape;
}

// Items of a forward step: every (row block, head group, kv head, batch element) times the splits.
ROWMAX_FORCE_INLINE constexpr int64_t forward_items(const ItemShape& shape, int64_t batch,
                                                    int64_t heads_kv, int64_t splits) {
  return batch * heads_kv * shape.head_groups * shape.blocks * splits;
}

// One forward item: rows [row_begin, row_end) of query heads [head_begin, head_end) of one batch
// element, against the keys of one split. row_end is not clamped to the sequence's own length.
struct ForwardItem {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t head_begin = 0;  // absolute query heads
  int64_t head_end = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t split = 0;
};

// Item `index` of forward_items(): row blocks from the last to the first (a causal band makes the
// last ones the longest), then batch elements, kv heads, head groups, and splits innermost.
ROWMAX_FORCE_INLINE constexpr ForwardItem forward_item(const ItemShape& shape, int64_t index,
                                                       int64_t heads_kv, int64_t group,
                                                       int64_t batch, int64_t tile_q,
                                                       int64_t splits) {
  ForwardItem item;
  item.split = index % splits;
  index /= splits;
  const int64_t head_group = index % shape.head_groups;
  index /= shape.head_groups;
  item.kv_head = index % heads_kv;
  index /= heads_kv;
  item.batch = index % batch;
  index /= batch;
  const int64_t first = head_group * shape.heads_per_item;
  const int64_t last = first + shape.heads_per_item;
  item.head_begin = item.kv_head * group + first;
  item.head_end = item.kv_head * group + (last < group ? last : group);
  item.row_begin = (shape.blocks - 1 - index) * tile_q;
  item.row_end = item.row_begin + tile_q;
  return item;
}

// One decode item (all G * Sq rows of a kv head against one split of the keys) or one backward item
// (one chunk of the keys against all rows): splits innermost, then kv heads, then batch elements.
struct KeyItem {
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t split = 0;
};

ROWMAX_FORCE_INLINE constexpr KeyItem key_item(int64_t index, int64_t heads_kv, int64_t splits) {
  return {index / splits / heads_kv, index / splits % heads_kv, index % splits};
}

// Keys of a split, inside [0, seqlen_k). split_len is 0 when there is one split.
ROWMAX_FORCE_INLINE constexpr KeyRange split_keys(int64_t split, int64_t splits, int64_t split_len,
                                                  int64_t seqlen_k) {
  if (splits <= 1) {
    return {0, seqlen_k};
  }
  const int64_t begin = split * split_len < seqlen_k ? split * split_len : seqlen_k;
  const int64_t end = begin + split_len < seqlen_k ? begin + split_len : seqlen_k;
  return {begin, end};
}

}  // namespace rowmax
