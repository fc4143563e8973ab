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

#include "backend/cpu/backward_blocks-inl.h"
#include "backend/cpu/backward_buffers-inl.h"
#include "backend/cpu/gradient_panel-inl.h"
#include "backend/cpu/keys-inl.h"
#include "backend/cpu/rank_t-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

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
    keys_.start(args_, extent_, item, scratch_.packed_chunk ? keys : tile_k_);
    if (scratch_.packed_chunk && keys > 0) {
      load_keys(chunk_.begin, keys);
      keys_.look_at_copies(args_.shape);
    }
    const int64_t group = shape.heads_q / shape.heads_kv;
    for (int64_t g = 0; g < group; ++g) {
      run_head(item.kv_head * group + g);
    }
    store_key_gradients();
  }

 private:
  void load_keys(int64_t key0, int64_t keys) {
    keys_.load(args_, extent_, item_, {key0, key0 + keys}, wants_ds(), scratch_);
    if (wants_dq_) {
      keys_.load_columns(q_columns_, scratch_.k_cols);
    }
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
    block_.cut(row0, rows);
    load_query_block();
    for (int p = 0; p < block_.count; ++p) {
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
    const int64_t row0 = block_.row0 + tile_q_;
    KeyRange keys = {key, key_end};
    if (key >= key_end && row0 < extent_.q_len) {
      const int64_t rows = imin(tile_q_, extent_.q_len - row0);
      keys = visible_keys(row0, rows);
      queries_ahead_.add(q_rows_, row0, row0 + rows);
      queries_ahead_.add(dout_rows_, row0, row0 + rows);
    }
    const int64_t end = imin(keys.begin + tile_k_, keys.end);
    keys_ahead_.add(keys_.k_source, keys.begin, end);
    keys_ahead_.add(keys_.v_source, keys.begin, end);
    int64_t steps = 0;
    for (int p = 0; p < block_.count; ++p) {
      steps += ceil_div(count, V::tile_rows(block_.panels[p].vectors));
    }
    keys_ahead_.spread(steps);
    queries_ahead_.spread(steps);
  }

  // Packs Q and dO twice, transposed panels for the dot tiles and column panels for rank_t. Lanes
  // past the rows get zeros.
  void load_query_block() {
    const ShapeArgs& shape = args_.shape;
    const int64_t first = extent_.q_begin + block_.row0;
    const int64_t at =
        row_stats_index(rows_total_, h_, flat_query_row(args_, extent_, item_.batch, block_.row0));
    copy_row_statistics<V>(launch_, at, block_.rows, block_.lanes, scratch_.lse, scratch_.delta);
    const PlainRows<V> q =
        load_rows<V>(args_.q, item_.batch, first, h_, block_.rows, shape.head_dim, scratch_.staged);
    const bool finite = block_.pack_panels(q, shape.head_dim, head_.modifier.q_factor, scratch_.q);
    block_.set_fast(finite, scratch_.lse);
    if (wants_dk_) {
      block_.pack_columns_of(q_columns_, q, scratch_.q_cols);
    }
    const PlainRows<V> dout = load_rows<V>(args_.grad.dout, item_.batch, first, h_, block_.rows,
                                           shape.head_dim_v, scratch_.staged);
    if (wants_ds()) {
      block_.pack_panels(dout, shape.head_dim_v, E(1), scratch_.dout);
    }
    if (wants_dv_) {
      block_.pack_columns_of(v_columns_, dout, scratch_.dout_cols);
    }
  }

  bool wants_ds() const { return wants_dq_ || wants_dk_ || wants_slopes_; }

  // One (query block, key block): all panels, then the sums over keys.
  void run_key_block(int64_t key0, int64_t keys) {
    if (!scratch_.packed_chunk) {
      load_keys(key0, keys);
    }
    bool any = false;
    for (int p = 0; p < block_.count; ++p) {
      any = run_panel(p, key0, keys) || any;
    }
    if (!any) {
      return;
    }
    const int64_t at = key0 - chunk_.begin;
    if (wants_dv_) {
      const int64_t ld = v_columns_.padded();
      rank_t_all<V>(v_columns_, keys, scratch_.p, spans_, block_.count, scratch_.dout_cols,
                    block_.lanes, scratch_.dv + at * ld, ld);
    }
    if (wants_dk_) {
      const int64_t ld = q_columns_.padded();
      rank_t_all<V>(q_columns_, keys, scratch_.ds, spans_, block_.count, scratch_.q_cols,
                    block_.lanes, scratch_.dk + at * ld, ld);
    }
  }

  // P and dS of panel `index` for keys [key0, key0 + keys), and its share of dQ. Returns whether
  // any of its rows sees any of the keys.
  bool run_panel(int index, int64_t key0, int64_t keys) {
    const ShapeArgs& shape = args_.shape;
    const int64_t begin = block_.panels[index].begin;
    const int64_t lanes = block_.panels[index].vectors * V::W;
    const int64_t rows = imin(lanes, block_.rows - begin);
    const int64_t row = block_.row0 + begin;
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
                                  keys_.k.data + keys_.index(key0 + first) * keys_.k.ld,
                                  keys_.v.data + keys_.index(key0 + first) * keys_.v.ld,
                                  keys_.k.ld,
                                  keys_.v.ld,
                                  scratch_.lse + begin,
                                  scratch_.delta + begin,
                                  block_.fast[index],
                                  wants_ds(),
                                  p + first * lanes,
                                  ds + first * lanes,
                                  &keys_ahead_,
                                  &queries_ahead_};
      seen = panel_gradients<V>(block_.panels[index].vectors, head_, tile, x, &scratch_.panel);
      if (seen && wants_ds()) {
        finish_logit_gradients(tile, x.ds);
        if (wants_dq_) {
          add_dq(index, tile, x.ds);
        }
      }
    }
    const int64_t zero_begin = seen ? last : first;
    for (E* tile : {p, ds}) {
      zero_rows<V>(tile, lanes, first - kTileMargin, first);
      zero_rows<V>(tile, lanes, zero_begin, last + kTileMargin);
    }
    return seen;
  }

  // The logit's gradient is final for bias and slopes; the product's carries the softcap's slope,
  // which is NaN where a hidden key's row is.
  void finish_logit_gradients(const ScoreTile& tile, E* ds) {
    if (wants_slopes_) {
      slope_sum_ += distance_sum<V>(tile, head_.modifier.diagonal, ds);
    }
    if (head_.modifier.cap != 0) {
      for (int64_t x = 0; x < tile.keys * tile.lanes; x += V::W) {
        const auto g = V::load(ds + x);
        const auto slope = V::load(scratch_.panel.cap_slope + x);
        V::store(ds + x, V::select(V::eq(g, V::zero()), g, V::mul(g, slope)));
      }
    }
  }

  // dQ of one panel += dS K over the keys that some of its rows see. A key that none sees may have
  // a NaN in K, which 0 * NaN would carry into dQ.
  void add_dq(int index, const ScoreTile& tile, const E* ds) {
    const int64_t ld = q_columns_.padded();
    E* dq = scratch_.dq + static_cast<int64_t>(block_.panels[index].begin) * ld;
    const uint8_t* visible = scratch_.panel.visible;
    for (int64_t j = 0; j < tile.keys;) {
      int64_t end = tile.keys;
      if (head_.modifier.any) {
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
        rank_all<V>(q_columns_, tile.rows, x, keys_.capacity, keys_.index(tile.key0 + j), dq, ld,
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
    if (launch_.schedule.splits <= 1) {
      store_rows<V>(source, ld, rows, width, static_cast<E>(args_.score.scale), args_.grad.dq,
                    item_.batch, extent_.q_begin + row0, h_);
      return;
    }
    for (int64_t i = 0; i < rows; ++i, source += ld) {
      __builtin_memcpy(dq_partial(row0 + i), source, sizeof(E) * static_cast<size_t>(width));
    }
  }

  void store_dq() {
    const int64_t ld = q_columns_.padded();
    for (int p = 0; p < block_.count; ++p) {
      const int64_t begin = block_.panels[p].begin;
      const int64_t rows = imin(block_.panels[p].vectors * V::W, block_.rows - begin);
      E* dq = scratch_.dq + begin * ld;
      if (!dq_begun_[p]) {
        __builtin_memset(dq, 0, sizeof(E) * static_cast<size_t>(rows * ld));
      }
      store_dq_rows(block_.row0 + begin, rows, dq, ld);
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
    const int64_t row = extent_.k_begin + chunk_.begin;
    const int64_t keys = chunk_.end - chunk_.begin;
    if (wants_dk_) {
      store_rows<V>(scratch_.dk, q_columns_.padded(), keys, args_.shape.head_dim,
                    static_cast<E>(args_.score.scale), args_.grad.dk, item_.batch, row,
                    item_.kv_head);
    }
    if (wants_dv_) {
      store_rows<V>(scratch_.dv, v_columns_.padded(), keys, args_.shape.head_dim_v, E(1),
                    args_.grad.dv, item_.batch, row, item_.kv_head);
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
  KeyChunk<V> keys_;
  GradientHead<V> head_;
  TensorRows q_rows_;
  TensorRows dout_rows_;
  int64_t h_ = 0;
  double slope_sum_ = 0.0;

  // The query block at hand.
  QueryBlock<V> block_;
  PanelSpan spans_[kMaxQueryPanels];
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
  for_each_item(launch, items,
                [&](int64_t index) { backward.run_item(key_item(index, shape.heads_kv, splits)); });
}

}  // namespace rowmax::cpu::ROWMAX_ISA
