// Backward: dQ, dK, dV and dslope partials from five products on the same register tiles.
//
//   item = (batch element, kv head, key chunk); inside, always in the same order:
//   query heads of the group x query blocks x key blocks
//     panels of the query block:  P^T, dS^T (gradient_panel-inl.h);  dQ += dS K     (rank)
//     then over all panels:       dV += P^T dO,  dK += dS^T Q                       (rank_t)
//
// dK and dV are sums of one item. With one chunk dQ is too; with several it goes to partials that
// the reduce kernel adds in chunk order. No result depends on the number of workers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/backward_buffers-inl.h"
#include "backend/cpu/gradient_panel-inl.h"
#include "backend/cpu/keys-inl.h"
#include "backend/cpu/rank_t-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// Keys of the next block when [begin, end) remain: equal blocks of at most tile_k, a multiple of 12
// rows each (whole tiles of 4 and 6), so that no short block is left over.
ROWMAX_INLINE int64_t next_block_keys(int64_t left, int64_t tile_k) {
  const int64_t blocks = ceil_div(left, tile_k);
  return imin(imin(tile_k, left), round_up(ceil_div(left, blocks), 12));
}

template <class V>
class BackwardWorker {
  using E = typename V::E;

 public:
  BackwardWorker(const KernelLaunch& launch, int worker)
      : launch_(launch),
        args_(*launch.args),
        tile_q_(launch.schedule.tile_q),
        tile_k_(launch.schedule.tile_k),
        rows_total_(flat_query_rows(args_)),
        q_columns_(args_.shape.head_dim),
        v_columns_(args_.shape.head_dim_v),
        wants_dq_(args_.grad.dq.data != nullptr),
        wants_dk_(args_.grad.dk.data != nullptr),
        wants_dv_(args_.grad.dv.data != nullptr),
        wants_slopes_(args_.grad.dslopes != nullptr),
        scratch_(backward_scratch(scratch_shape<V>(launch), StepKind::kBackward),
                 worker_scratch(launch, worker)) {}

  void run_item(const KeyItem& item) {
    const ShapeArgs& shape = args_.shape;
    item_ = item;
    extent_ = sequence_extent(args_, item.batch);
    band_ = resolve_band(args_.score.band, extent_.q_len, extent_.k_len);
    chunk_ =
        split_keys(item.split, launch_.schedule.splits, launch_.schedule.split_len, shape.seqlen_k);
    chunk_.end = imin(chunk_.end, extent_.k_len);
    chunk_.begin = imin(chunk_.begin, chunk_.end);
    const int64_t keys = chunk_.end - chunk_.begin;
    __builtin_memset(scratch_.dk, 0, sizeof(E) * static_cast<size_t>(keys * q_columns_.padded()));
    __builtin_memset(scratch_.dv, 0, sizeof(E) * static_cast<size_t>(keys * v_columns_.padded()));
    capacity_ = scratch_.packed_chunk ? keys : tile_k_;
    if (scratch_.packed_chunk && keys > 0) {
      load_keys(chunk_.begin, keys);
    }
    look_ahead_rows();
    const int64_t group = shape.heads_q / shape.heads_kv;
    for (int64_t g = 0; g < group; ++g) {
      run_head(item.kv_head * group + g);
    }
    store_key_gradients();
  }

 private:
  // K and V rows, and the column panels of K, for keys [key0, key0 + keys).
  void load_keys(int64_t key0, int64_t keys) {
    const ShapeArgs& shape = args_.shape;
    const int64_t row = extent_.k_begin + key0;
    k_ = load_rows<V>(args_.k, item_.batch, row, item_.kv_head, keys, shape.head_dim, scratch_.k);
    if (wants_ds()) {
      v_ = load_rows<V>(args_.v, item_.batch, row, item_.kv_head, keys, shape.head_dim_v,
                        scratch_.v);
    }
    if (wants_dq_) {
      pack_columns<V>(q_columns_, k_.data, kComputeType<V>, k_.ld, keys, capacity_, 0, E(1),
                      scratch_.k_cols);
    }
    loaded_from_ = key0;
  }

  // Where the rows that the dot tiles read, or a block's copy is made from, are in memory.
  void look_ahead_rows() {
    const ShapeArgs& shape = args_.shape;
    k_rows_ = key_rows_of(args_, args_.k, shape.head_dim, extent_, item_.batch, item_.kv_head);
    v_rows_ = key_rows_of(args_, args_.v, shape.head_dim_v, extent_, item_.batch, item_.kv_head);
    if (scratch_.packed_chunk) {
      k_rows_ = loaded_rows(k_, shape.head_dim);
      v_rows_ = loaded_rows(v_, shape.head_dim_v);
    }
  }

  // Loaded rows by position in the sequence.
  TensorRows loaded_rows(const PlainRows<V>& rows, int64_t width) const {
    TensorRows out;
    out.stride_bytes = rows.ld * static_cast<int64_t>(sizeof(E));
    out.row_bytes = width * static_cast<int64_t>(sizeof(E));
    out.data = reinterpret_cast<const char*>(rows.data) - loaded_from_ * out.stride_bytes;
    return out;
  }

  void run_head(int64_t h) {
    const ShapeArgs& shape = args_.shape;
    h_ = h;
    head_.modifier = make_score_modifier<V>(args_, extent_, band_, item_.batch, h);
    head_.dropout = args_.dropout;
    head_.bh = item_.batch * shape.heads_q + h;
    head_.head_dim = shape.head_dim;
    head_.head_dim_v = shape.head_dim_v;
    q_rows_ = query_rows_of(args_.q, shape.head_dim, extent_, item_.batch, h);
    dout_rows_ = query_rows_of(args_.grad.dout, shape.head_dim_v, extent_, item_.batch, h);
    slope_sum_ = 0.0;
    for (int64_t row = 0; row < extent_.q_len; row += tile_q_) {
      run_query_block(row, imin(tile_q_, extent_.q_len - row));
    }
    if (wants_slopes_) {
      auto* partials =
          reinterpret_cast<double*>(launch_.regions[static_cast<int>(Region::kSlopePartials)]);
      partials[per_head_partial_index(shape.heads_q, launch_.schedule.splits, item_.batch, h,
                                      item_.split)] = -slope_sum_;
    }
  }

  // Keys of the chunk that some row of [row0, row0 + rows) sees.
  KeyRange visible_keys(int64_t row0, int64_t rows) const {
    KeyRange keys = block_keys(band_, row0, row0 + rows, extent_.k_len);
    keys.begin = imax(keys.begin, chunk_.begin);
    keys.end = imin(keys.end, chunk_.end);
    return keys;
  }

  void run_query_block(int64_t row0, int64_t rows) {
    const KeyRange keys = visible_keys(row0, rows);
    const bool needs_products = wants_dq_ || wants_dk_ || wants_dv_ || wants_slopes_;
    if (keys.begin >= keys.end || !needs_products) {
      store_empty_rows(row0, rows);
      return;
    }
    row0_ = row0;
    rows_ = rows;
    panel_count_ = cut_panels<V>(rows, panels_);
    lanes_ = round_up(rows, V::W);
    load_query_block();
    for (int p = 0; p < panel_count_; ++p) {
      dq_begun_[p] = false;
    }
    for (int64_t key = keys.begin; key < keys.end;) {
      const int64_t count = next_block_keys(keys.end - key, tile_k_);
      look_ahead(key + count, keys.end, count);
      run_key_block(key, count);
      key += count;
    }
    if (wants_dq_) {
      store_dq();
    }
  }

  // What the dot tiles of a block of `count` keys prefetch: the keys from `key` on, or at the end
  // the next query block and its first keys.
  void look_ahead(int64_t key, int64_t key_end, int64_t count) {
    keys_ahead_ = Prefetch();
    queries_ahead_ = Prefetch();
    const int64_t row0 = row0_ + tile_q_;
    KeyRange keys = {key, key_end};
    if (key >= key_end && row0 < extent_.q_len) {
      const int64_t rows = imin(tile_q_, extent_.q_len - row0);
      keys = visible_keys(row0, rows);
      queries_ahead_.add(q_rows_, row0, row0 + rows);
      queries_ahead_.add(dout_rows_, row0, row0 + rows);
    }
    const int64_t end = imin(keys.begin + tile_k_, keys.end);
    keys_ahead_.add(k_rows_, keys.begin, end);
    keys_ahead_.add(v_rows_, keys.begin, end);
    int64_t steps = 0;
    for (int p = 0; p < panel_count_; ++p) {
      steps += ceil_div(count, V::tile_rows(panels_[p].vectors));
    }
    keys_ahead_.spread(steps);
    queries_ahead_.spread(steps);
  }

  // Packs Q and dO twice, transposed panels for the dot tiles and column panels for rank_t. Lanes
  // past the rows get zeros.
  void load_query_block() {
    const ShapeArgs& shape = args_.shape;
    const int64_t first = extent_.q_begin + row0_;
    load_statistics();
    const PlainRows<V> q =
        load_rows<V>(args_.q, item_.batch, first, h_, rows_, shape.head_dim, scratch_.staged);
    const bool finite = pack_panels(q, shape.head_dim, head_.modifier.q_factor, scratch_.q);
    for (int p = 0; p < panel_count_; ++p) {
      fast_[p] = finite &&
                 statistics_in_range<V>(scratch_.lse + panels_[p].begin, panels_[p].vectors * V::W);
    }
    if (wants_dk_) {
      pack_block(q_columns_, q, scratch_.q_cols);
    }
    const PlainRows<V> dout = load_rows<V>(args_.grad.dout, item_.batch, first, h_, rows_,
                                           shape.head_dim_v, scratch_.staged);
    if (wants_ds()) {
      pack_panels(dout, shape.head_dim_v, E(1), scratch_.dout);
    }
    if (wants_dv_) {
      pack_block(v_columns_, dout, scratch_.dout_cols);
    }
  }

  // Returns whether every element is finite.
  bool pack_panels(const PlainRows<V>& rows, int64_t width, E factor, E* out) const {
    bool finite = true;
    for (int p = 0; p < panel_count_; ++p) {
      const int64_t begin = panels_[p].begin;
      const int64_t lanes = panels_[p].vectors * V::W;
      finite = pack_transposed<V>(rows.data + begin * rows.ld, kComputeType<V>, rows.ld,
                                  imin(lanes, rows_ - begin), width, width, lanes, factor,
                                  out + begin * width) &&
               finite;
    }
    return finite;
  }

  void pack_block(const Columns<V>& columns, const PlainRows<V>& rows, E* out) const {
    pack_columns<V>(columns, rows.data, kComputeType<V>, rows.ld, rows_, lanes_, 0, E(1), out);
    zero_column_rows<V>(columns, lanes_, rows_, lanes_, out);
  }

  void load_statistics() {
    const int64_t at =
        row_stats_index(rows_total_, h_, flat_query_row(args_, extent_, item_.batch, row0_));
    copy_row_statistics<V>(launch_, at, rows_, lanes_, scratch_.lse, scratch_.delta);
  }

  bool wants_ds() const { return wants_dq_ || wants_dk_ || wants_slopes_; }

  // One (query block, key block): all panels, then the sums over keys.
  void run_key_block(int64_t key0, int64_t keys) {
    if (!scratch_.packed_chunk) {
      load_keys(key0, keys);
    }
    bool any = false;
    for (int p = 0; p < panel_count_; ++p) {
      any = run_panel(p, key0, keys) || any;
    }
    if (!any) {
      return;
    }
    const int64_t at = key0 - chunk_.begin;
    if (wants_dv_) {
      const int64_t ld = v_columns_.padded();
      rank_t_all<V>(v_columns_, keys, scratch_.p, spans_, panel_count_, scratch_.dout_cols, lanes_,
                    scratch_.dv + at * ld, ld);
    }
    if (wants_dk_) {
      const int64_t ld = q_columns_.padded();
      rank_t_all<V>(q_columns_, keys, scratch_.ds, spans_, panel_count_, scratch_.q_cols, lanes_,
                    scratch_.dk + at * ld, ld);
    }
  }

  // P and dS of panel `index` for keys [key0, key0 + keys), and its share of dQ. Returns whether
  // any of its rows sees any of the keys.
  bool run_panel(int index, int64_t key0, int64_t keys) {
    const ShapeArgs& shape = args_.shape;
    const int64_t begin = panels_[index].begin;
    const int64_t lanes = panels_[index].vectors * V::W;
    const int64_t rows = imin(lanes, rows_ - begin);
    const int64_t row = row0_ + begin;
    const KeyRange range = block_keys(band_, row, row + rows, extent_.k_len);
    const int64_t first = imin(imax(range.begin - key0, 0), keys);
    const int64_t last = imax(imin(range.end - key0, keys), first);
    // Row 0 of the panel, behind a margin.
    const int64_t offset = begin * (tile_k_ + 2 * kTileMargin) + kTileMargin * lanes;
    spans_[index] = {offset, lanes, begin, first, last};
    E* p = scratch_.p + offset;
    E* ds = scratch_.ds + offset;
    bool seen = false;
    if (first < last) {
      const ScoreTile tile = {row, rows, lanes, key0 + first, last - first};
      const GradientPanel<V> x = {scratch_.q + begin * shape.head_dim,
                                  scratch_.dout + begin * shape.head_dim_v,
                                  k_.data + (key0 + first - loaded_from_) * k_.ld,
                                  v_.data + (key0 + first - loaded_from_) * v_.ld,
                                  k_.ld,
                                  v_.ld,
                                  scratch_.lse + begin,
                                  scratch_.delta + begin,
                                  fast_[index],
                                  wants_ds(),
                                  p + first * lanes,
                                  ds + first * lanes,
                                  &keys_ahead_,
                                  &queries_ahead_};
      seen = panel_gradients<V>(panels_[index].vectors, head_, tile, x, &scratch_.panel);
      if (seen && wants_ds()) {
        finish_logit_gradients(tile, x.ds);
        if (wants_dq_) {
          add_dq(index, tile, x.ds);
        }
      }
    }
    const int64_t zero_begin = seen ? last : first;
    for (E* tile : {p, ds}) {
      zero_rows(tile, lanes, first - kTileMargin, first);
      zero_rows(tile, lanes, zero_begin, last + kTileMargin);
    }
    return seen;
  }

  static ROWMAX_INLINE void zero_rows(E* tile, int64_t lanes, int64_t begin, int64_t end) {
    for (int64_t x = begin * lanes; x < end * lanes; x += V::W) {
      V::store(tile + x, V::zero());
    }
  }

  // The logit's gradient is final for bias and slopes; the product's carries the softcap's slope,
  // which is NaN where a hidden key's row is.
  void finish_logit_gradients(const ScoreTile& tile, E* ds) {
    if (wants_slopes_) {
      slope_sum_ += distance_sum(tile, ds);
    }
    if (head_.modifier.cap != 0) {
      for (int64_t x = 0; x < tile.keys * tile.lanes; x += V::W) {
        const auto g = V::load(ds + x);
        const auto slope = V::load(scratch_.panel.cap_slope + x);
        V::store(ds + x, V::select(V::eq(g, V::zero()), g, V::mul(g, slope)));
      }
    }
  }

  // Sum of dS * |row + diagonal - key|, in fp64.
  double distance_sum(const ScoreTile& tile, const E* ds) const {
    double sum = 0.0;
    for (int64_t j = 0; j < tile.keys; ++j) {
      const int64_t first = tile.row0 + head_.modifier.diagonal - (tile.key0 + j);
      for (int64_t l = 0; l < tile.rows; ++l) {
        const int64_t distance = first + l < 0 ? -(first + l) : first + l;
        sum += static_cast<double>(ds[j * tile.lanes + l]) * static_cast<double>(distance);
      }
    }
    return sum;
  }

  // dQ of one panel += dS K over the keys that some of its rows see. A key that none sees may have
  // a NaN in K, which 0 * NaN would carry into dQ.
  void add_dq(int index, const ScoreTile& tile, const E* ds) {
    const int64_t ld = q_columns_.padded();
    E* dq = scratch_.dq + static_cast<int64_t>(panels_[index].begin) * ld;
    const bool some_hidden = head_.modifier.any;
    const uint8_t* visible = scratch_.panel.visible;
    for (int64_t j = 0; j < tile.keys;) {
      int64_t end = tile.keys;
      if (some_hidden) {
        while (j < tile.keys && visible[j] == 0) {
          ++j;
        }
        end = j;
        while (end < tile.keys && visible[end] != 0) {
          ++end;
        }
      }
      if (j < end) {
        const RankOperands<E> x = {ds + j * tile.lanes, 1, tile.lanes, scratch_.k_cols, 0, end - j};
        rank_all<V>(q_columns_, tile.rows, x, capacity_, tile.key0 + j - loaded_from_, dq, ld,
                    nullptr, dq_begun_[index] ? Accumulate::kAdd : Accumulate::kFresh);
        dq_begun_[index] = true;
      }
      j = end;
    }
  }

  E* dq_partial(int64_t row) const {
    E* partials = reinterpret_cast<E*>(launch_.regions[static_cast<int>(Region::kDqPartials)]);
    const int64_t flat = flat_query_row(args_, extent_, item_.batch, row);
    return partials + args_.shape.head_dim *
                          dq_partial_index(args_.shape.heads_q, rows_total_, item_.split, h_, flat);
  }

  void store_dq_rows(int64_t row0, int64_t rows, const E* source, int64_t ld) const {
    const int64_t width = args_.shape.head_dim;
    const bool direct = launch_.schedule.splits <= 1;
    for (int64_t i = 0; i < rows; ++i, source += ld) {
      if (direct) {
        store_row<V>(source, width, static_cast<E>(args_.score.scale),
                     tensor_row(args_.grad.dq, item_.batch, extent_.q_begin + row0 + i, h_),
                     args_.grad.dq.dtype);
      } else {
        __builtin_memcpy(dq_partial(row0 + i), source, sizeof(E) * static_cast<size_t>(width));
      }
    }
  }

  void store_dq() {
    const int64_t ld = q_columns_.padded();
    for (int p = 0; p < panel_count_; ++p) {
      const int64_t begin = panels_[p].begin;
      const int64_t rows = imin(panels_[p].vectors * V::W, rows_ - begin);
      E* dq = scratch_.dq + begin * ld;
      if (!dq_begun_[p]) {
        __builtin_memset(dq, 0, sizeof(E) * static_cast<size_t>(rows * ld));
      }
      store_dq_rows(row0_ + begin, rows, dq, ld);
    }
  }

  // dQ of rows that see none of the chunk's keys.
  void store_empty_rows(int64_t row0, int64_t rows) {
    if (wants_dq_) {
      __builtin_memset(scratch_.dq, 0, sizeof(E) * static_cast<size_t>(q_columns_.padded()));
      store_dq_rows(row0, rows, scratch_.dq, 0);
    }
  }

  void store_key_gradients() const {
    const GradientArgs& grad = args_.grad;
    for (int64_t j = 0; j < chunk_.end - chunk_.begin; ++j) {
      const int64_t row = extent_.k_begin + chunk_.begin + j;
      if (wants_dk_) {
        store_row<V>(scratch_.dk + j * q_columns_.padded(), args_.shape.head_dim,
                     static_cast<E>(args_.score.scale),
                     tensor_row(grad.dk, item_.batch, row, item_.kv_head), grad.dk.dtype);
      }
      if (wants_dv_) {
        store_row<V>(scratch_.dv + j * v_columns_.padded(), args_.shape.head_dim_v, E(1),
                     tensor_row(grad.dv, item_.batch, row, item_.kv_head), grad.dv.dtype);
      }
    }
  }

  const KernelLaunch& launch_;
  const AttentionArgs& args_;
  int64_t tile_q_;
  int64_t tile_k_;
  int64_t rows_total_;
  Columns<V> q_columns_;
  Columns<V> v_columns_;
  bool wants_dq_;
  bool wants_dk_;
  bool wants_dv_;
  bool wants_slopes_;
  BackwardBuffers<V> scratch_;

  // The item and the query head at hand.
  KeyItem item_;
  SequenceExtent extent_;
  RowBand band_;
  KeyRange chunk_;
  PlainRows<V> k_ = {nullptr, 0};  // loaded: the chunk's, or the key block's
  PlainRows<V> v_ = {nullptr, 0};
  int64_t loaded_from_ = 0;  // position of their first row
  int64_t capacity_ = 0;     // rows of the column panels of K
  TensorRows k_rows_;
  TensorRows v_rows_;
  GradientHead<V> head_;
  TensorRows q_rows_;
  TensorRows dout_rows_;
  int64_t h_ = 0;
  double slope_sum_ = 0.0;

  // The query block at hand.
  int64_t row0_ = 0;
  int64_t rows_ = 0;
  int64_t lanes_ = 0;
  int panel_count_ = 0;
  Panel panels_[kMaxQueryPanels];
  PanelSpan spans_[kMaxQueryPanels];
  bool fast_[kMaxQueryPanels];
  bool dq_begun_[kMaxQueryPanels];
  Prefetch keys_ahead_;
  Prefetch queries_ahead_;
};

template <class V>
void run_backward(const KernelLaunch& launch, int worker) {
  const ShapeArgs& shape = launch.args->shape;
  const int64_t splits = launch.schedule.splits;
  const int64_t items = shape.batch * shape.heads_kv * splits;
  BackwardWorker<V> backward(launch, worker);
  for (;;) {
    const int64_t index = __atomic_fetch_add(launch.next_item, 1, __ATOMIC_RELAXED);
    if (index >= items) {
      return;
    }
    backward.run_item(key_item(index, shape.heads_kv, splits));
  }
}

}  // namespace rowmax::cpu::ROWMAX_ISA
