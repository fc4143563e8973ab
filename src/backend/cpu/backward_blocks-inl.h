// The operands of a backward item as its tiles read them: a block of query rows cut in panels, and
// the keys of its chunk.
#pragma once

#include <cstdint>

#include "backend/cpu/backward_buffers-inl.h"
#include "backend/cpu/keys-inl.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// Rows [row0, row0 + rows) of one query head, cut in panels of whole vectors.
template <class V>
struct QueryBlock {
  using E = typename V::E;
  int64_t row0 = 0;
  int64_t rows = 0;
  int64_t lanes = 0;
  int count = 0;
  Panel panels[kMaxQueryPanels];
  bool fast[kMaxQueryPanels];  // see GradientPanel

  void cut(int64_t first, int64_t number) {
    row0 = first;
    rows = number;
    lanes = round_up(number, V::W);
    count = cut_panels<V>(number, panels);
  }

  // Panels of (width, lanes), times factor; zeros in the lanes past the rows. Returns whether every
  // element is finite.
  bool pack_panels(const PlainRows<V>& source, int64_t width, E factor, E* out) const {
    bool finite = true;
    for (int p = 0; p < count; ++p) {
      const int64_t begin = panels[p].begin;
      const int64_t panel_lanes = panels[p].vectors * V::W;
      finite = pack_transposed<V>(source.data + begin * source.ld, kComputeType<V>, source.ld,
                                  imin(panel_lanes, rows - begin), width, width, panel_lanes,
                                  factor, out + begin * width) &&
               finite;
    }
    return finite;
  }

  // Column panels of (lanes, width); zeros in the rows past the block's.
  void pack_columns_of(const Columns<V>& columns, const PlainRows<V>& source, E* out) const {
    pack_columns<V>(columns, source.data, kComputeType<V>, source.ld, rows, lanes, 0, E(1), out);
    zero_column_rows<V>(columns, lanes, rows, lanes, out);
  }

  void set_fast(bool finite, const E* lse) {
    for (int p = 0; p < count; ++p) {
      fast[p] = finite && statistics_in_range<V>(lse + panels[p].begin, panels[p].vectors * V::W);
    }
  }
};

// K and V of one (batch element, kv head): the whole chunk, or one block of it at a time.
template <class V>
struct KeyChunk {
  using E = typename V::E;
  PlainRows<V> k = {nullptr, 0};  // loaded rows
  PlainRows<V> v = {nullptr, 0};
  KeyRange loaded;       // their positions in the sequence
  int64_t capacity = 0;  // rows of the column panels of K
  TensorRows k_source;   // what to prefetch, by position in the sequence
  TensorRows v_source;

  ROWMAX_INLINE int64_t index(int64_t key) const { return key - loaded.begin; }

  void start(const AttentionArgs& args, const SequenceExtent& extent, const KeyItem& item,
             int64_t column_rows) {
    capacity = column_rows;
    k_source = key_rows_of(args, args.k, args.shape.head_dim, extent, item.batch, item.kv_head);
    v_source = key_rows_of(args, args.v, args.shape.head_dim_v, extent, item.batch, item.kv_head);
  }

  void load(const AttentionArgs& args, const SequenceExtent& extent, const KeyItem& item,
            KeyRange keys, bool wants_v, const BackwardBuffers<V>& scratch) {
    const int64_t row = extent.k_begin + keys.begin;
    const int64_t rows = keys.end - keys.begin;
    k = load_rows<V>(args.k, item.batch, row, item.kv_head, rows, args.shape.head_dim, scratch.k);
    if (wants_v) {
      v = load_rows<V>(args.v, item.batch, row, item.kv_head, rows, args.shape.head_dim_v,
                       scratch.v);
    }
    loaded = keys;
  }

  // Column panels of the loaded K.
  void load_columns(const Columns<V>& columns, E* out) const {
    pack_columns<V>(columns, k.data, kComputeType<V>, k.ld, loaded.end - loaded.begin, capacity, 0,
                    E(1), out);
  }

  // After the whole chunk is loaded: the tiles read the loaded rows, not the tensors.
  void look_at_copies(const ShapeArgs& shape) {
    k_source = loaded_rows(k, shape.head_dim);
    v_source = loaded_rows(v, shape.head_dim_v);
  }

  TensorRows loaded_rows(const PlainRows<V>& rows, int64_t width) const {
    TensorRows out;
    out.stride_bytes = rows.ld * static_cast<int64_t>(sizeof(E));
    out.row_bytes = width * static_cast<int64_t>(sizeof(E));
    out.data = reinterpret_cast<const char*>(rows.data) - loaded.begin * out.stride_bytes;
    return out;
  }
};

// Keys of the next block when [begin, end) remain: equal blocks of at most tile_k, a multiple of 12
// rows each (whole tiles of 4 and 6), so that no short block is left over.
ROWMAX_INLINE int64_t next_block_keys(int64_t left, int64_t tile_k) {
  const int64_t blocks = ceil_div(left, tile_k);
  return imin(imin(tile_k, left), round_up(ceil_div(left, blocks), 12));
}

}  // namespace rowmax::cpu::ROWMAX_ISA
