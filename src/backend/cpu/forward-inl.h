// Forward: online softmax over two levels of tiles. An item (rows of one or more query heads of a
// kv head, one key range) packs a block of tile_k keys once and runs every query panel against it;
// S^T of a panel and a block stays in L1 and becomes P^T in place, which is operand A of P V.
#pragma once

#include <cstdint>

#include "backend/cpu/forward_scratch.h"
#include "backend/cpu/keys-inl.h"
#include "backend/cpu/output-inl.h"
#include "backend/cpu/score-inl.h"
#include "backend/cpu/softmax-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// Whether all of n rows of `width` compute elements are finite.
template <class V>
ROWMAX_NOINLINE inline bool rows_are_finite(const typename V::E* rows, int64_t ld, int64_t n,
                                            int64_t width) {
  using E = typename V::E;
  typename V::R total[2] = {V::zero(), V::zero()};  // x * 0 is NaN for a non-finite x
  E tail = 0;
  for (int64_t j = 0; j < n; ++j, rows += ld) {
    int64_t d = 0;
    for (; d + 2 * V::W <= width; d += 2 * V::W) {
      total[0] = V::fma(V::load(rows + d), V::zero(), total[0]);
      total[1] = V::fma(V::load(rows + d + V::W), V::zero(), total[1]);
    }
    for (; d < width; ++d) {
      tail += rows[d] * E(0);
    }
  }
  return V::all(V::eq(V::add(total[0], total[1]), V::zero())) && tail == E(0);
}

template <class V>
class ForwardWorker {
 public:
  using E = typename V::E;

  ROWMAX_INLINE ForwardWorker(const KernelLaunch& launch, int worker)
      : args_(*launch.args),
        schedule_(launch.schedule),
        columns_(launch.args->shape.head_dim_v),
        states_(*launch.args, launch.regions[static_cast<int>(Region::kPartialStates)],
                launch.schedule.splits) {
    const ShapeArgs& shape = args_.shape;
    const ForwardScratch layout =
        forward_scratch({schedule_.tile_q, schedule_.tile_k, shape.head_dim, shape.head_dim_v, V::W,
                         static_cast<int64_t>(sizeof(E))});
    char* base = launch.thread_scratch + static_cast<size_t>(worker) * launch.thread_stride;
    const auto at = [base](int64_t offset) { return reinterpret_cast<E*>(base + offset); };
    lane_capacity_ = layout.lanes;
    panels_ = reinterpret_cast<QueryPanel*>(base + layout.panels);
    q_ = at(layout.q);
    k_ = at(layout.k);
    v_ = at(layout.v);
    out_ = at(layout.out);
    max_ = at(layout.max);
    sum_ = at(layout.sum);
    rescale_ = at(layout.rescale);
    s_ = at(layout.scores);
    modifier_scratch_ = at(layout.modifier);
    visible_ = reinterpret_cast<uint8_t*>(base + layout.visible);
  }

  void run_item(const ForwardItem& item);

 private:
  // Keys of one outer block, packed or in place.
  struct KeyBlock {
    int64_t begin;
    int64_t count;
    const E* k;  // (count, D), row stride ldk
    int64_t ldk;
    bool finite_k;  // no NaN payload can reach the scores
    bool finite_v;  // hidden keys may enter P V with weight 0; known only with a modifier
  };

  void run_heads(int64_t head_begin, int64_t head_end, int64_t row_begin, int64_t row_end);
  void make_panels(int64_t head_begin, int64_t head_end, int64_t row_begin, int64_t row_end);
  KeyBlock load_block(int64_t begin, int64_t count);
  void start_panel(QueryPanel& panel);
  template <int NV>
  void panel_block(const QueryPanel& panel, const KeyBlock& block, Prefetch& keys_ahead,
                   Prefetch& rows_ahead);
  void accumulate(const QueryPanel& panel, const KeyBlock& block, const ScoreTile& tile,
                  Accumulate mode);
  void finish_panel(const QueryPanel& panel);
  ROWMAX_INLINE void use_modifier_of(int64_t head) {
    if (head != modifier_head_) {
      modifier_ = make_score_modifier<V>(args_, extent_, band_, batch_, head);
      modifier_head_ = head;
    }
  }

  const AttentionArgs& args_;
  const Schedule schedule_;
  const Columns<V> columns_;
  const PartialStates<E> states_;
  int64_t lane_capacity_ = 0;
  QueryPanel* panels_ = nullptr;
  E* q_ = nullptr;  // layouts: see ForwardScratch
  E* k_ = nullptr;
  E* v_ = nullptr;
  E* out_ = nullptr;
  E* max_ = nullptr;
  E* sum_ = nullptr;
  E* rescale_ = nullptr;
  E* s_ = nullptr;
  E* modifier_scratch_ = nullptr;
  uint8_t* visible_ = nullptr;

  // The item at hand.
  int64_t batch_ = 0;
  int64_t split_ = 0;
  int64_t modifier_head_ = -1;
  int64_t panel_count_ = 0;
  SequenceExtent extent_;
  RowBand band_;
  KeyRange split_keys_;
  KeyRange item_keys_;  // union of the panels' ranges
  TensorRows k_rows_;
  TensorRows v_rows_;
  ScoreModifier<V> modifier_;
};

template <class V>
void ForwardWorker<V>::run_item(const ForwardItem& item) {
  extent_ = sequence_extent(args_, item.batch);
  const int64_t row_end = imin(item.row_end, extent_.q_len);
  if (item.row_begin >= row_end) {
    return;
  }
  batch_ = item.batch;
  split_ = item.split;
  modifier_head_ = -1;
  band_ = resolve_band(args_.score.band, extent_.q_len, extent_.k_len);
  split_keys_ = split_keys(item.split, schedule_.splits, schedule_.split_len, extent_.k_len);
  k_rows_ = key_rows_of(args_, args_.k, args_.shape.head_dim, extent_, batch_, item.kv_head);
  v_rows_ = key_rows_of(args_, args_.v, args_.shape.head_dim_v, extent_, batch_, item.kv_head);
  use_modifier_of(item.head_begin);
  // Heads padded to whole vectors may need more lanes than there are: then in several passes.
  const int64_t lanes = round_up(row_end - item.row_begin, V::W);
  const int64_t heads = imax(1, lane_capacity_ / lanes);
  for (int64_t head = item.head_begin; head < item.head_end; head += heads) {
    run_heads(head, imin(head + heads, item.head_end), item.row_begin, row_end);
  }
}

template <class V>
void ForwardWorker<V>::make_panels(int64_t head_begin, int64_t head_end, int64_t row_begin,
                                   int64_t row_end) {
  panel_count_ = 0;
  item_keys_ = {extent_.k_len, 0};
  int64_t lane = 0;
  for (int64_t head = head_begin; head < head_end; ++head) {
    for (int64_t row = row_begin; row < row_end;) {
      QueryPanel panel;
      panel.head = head;
      panel.row = row;
      panel.vectors = next_panel_vectors((row_end - row + V::W - 1) / V::W);
      panel.rows = imin(panel.vectors * V::W, row_end - row);
      panel.lane = lane;
      const KeyRange keys = block_keys(band_, row, row + panel.rows, extent_.k_len);
      panel.key_begin = imax(keys.begin, split_keys_.begin);
      panel.key_end = imin(keys.end, split_keys_.end);
      if (panel.key_begin < panel.key_end) {
        item_keys_.begin = imin(item_keys_.begin, panel.key_begin);
        item_keys_.end = imax(item_keys_.end, panel.key_end);
      }
      row += panel.rows;
      lane += panel.vectors * V::W;
      panels_[panel_count_++] = panel;
    }
  }
}

template <class V>
void ForwardWorker<V>::run_heads(int64_t head_begin, int64_t head_end, int64_t row_begin,
                                 int64_t row_end) {
  make_panels(head_begin, head_end, row_begin, row_end);
  for (int64_t p = 0; p < panel_count_; ++p) {
    QueryPanel& panel = panels_[p];
    if (panel.key_begin >= panel.key_end) {
      start_panel(panel);
      finish_panel(panel);
    }
  }
  for (int64_t begin = item_keys_.begin; begin < item_keys_.end; begin += schedule_.tile_k) {
    const int64_t end = imin(begin + schedule_.tile_k, item_keys_.end);
    const KeyBlock block = load_block(begin, end - begin);
    Prefetch keys_ahead;
    const int64_t next_end = imin(end + schedule_.tile_k, item_keys_.end);
    keys_ahead.add(k_rows_, end, next_end);
    keys_ahead.add(v_rows_, end, next_end);
    keys_ahead.spread(panel_count_ * ceil_div(end - begin, V::tile_rows(kPanelVectors)));
    for (int64_t p = 0; p < panel_count_; ++p) {
      QueryPanel& panel = panels_[p];
      if (panel.key_begin >= end || panel.key_end <= begin || panel.key_begin >= panel.key_end) {
        continue;
      }
      Prefetch rows_ahead;  // Q of the next panel at the first block, O of this one at the last
      TensorRows next_rows;
      TensorRows out_rows;
      if (panel.key_begin >= begin) {
        start_panel(panel);
        if (p + 1 < panel_count_) {
          const QueryPanel& next = panels_[p + 1];
          next_rows = query_rows_of(args_.q, args_.shape.head_dim, extent_, batch_, next.head);
          rows_ahead.add(next_rows, next.row, next.row + next.rows);
        }
      }
      if (panel.key_end <= end) {
        out_rows = query_rows_of(args_.out, args_.shape.head_dim_v, extent_, batch_, panel.head);
        rows_ahead.add(out_rows, panel.row, panel.row + panel.rows);
      }
      rows_ahead.spread(ceil_div(end - begin, V::tile_rows(panel.vectors)));
      if (panel.vectors == 3) {
        panel_block<3>(panel, block, keys_ahead, rows_ahead);
      } else if (panel.vectors == 2) {
        panel_block<2>(panel, block, keys_ahead, rows_ahead);
      } else {
        panel_block<1>(panel, block, keys_ahead, rows_ahead);
      }
      if (panel.key_end <= end) {
        finish_panel(panel);
      }
    }
  }
}

template <class V>
auto ForwardWorker<V>::load_block(int64_t begin, int64_t count) -> KeyBlock {
  const int64_t depth = args_.shape.head_dim;
  KeyBlock block = {begin, count, k_, round_up(depth, V::W), true, true};
  // Rows far apart share cache sets: a block would not survive in L2 from one panel to the next.
  const bool packed = sizeof(E) != size_of(k_rows_.dtype) || k_rows_.run(begin, count) < count ||
                      (k_rows_.stride > 2 * depth && panel_count_ > 2);
  if (!packed) {
    block.k = reinterpret_cast<const E*>(k_rows_.row(begin));
    block.ldk = k_rows_.stride;
  }
  for (int64_t j = 0; j < count;) {
    const int64_t key_run = k_rows_.run(begin + j, count - j);
    const int64_t run = imin(key_run, v_rows_.run(begin + j, count - j));
    pack_columns<V>(columns_, v_rows_.row(begin + j), v_rows_.dtype, v_rows_.stride, run,
                    schedule_.tile_k, j, E(1), v_);
    if (packed) {
      pack_rows<V>(k_rows_.row(begin + j), k_rows_.dtype, k_rows_.stride, run, depth, block.ldk,
                   k_ + j * block.ldk);
    }
    j += run;
  }
  if (sizeof(E) == 4 && k_rows_.dtype == DType::kF32) {
    // The payload of an f32 NaN would spoil the exponent arithmetic; the other types have none.
    block.finite_k = rows_are_finite<V>(block.k, block.ldk, count, depth);
  }
  if (modifier_.any) {
    for (int p = 0; p < columns_.count; ++p) {
      const int64_t width = columns_.panels[p].vectors * V::W;
      const E* panel = v_ + columns_.panels[p].begin * schedule_.tile_k;
      block.finite_v = block.finite_v && rows_are_finite<V>(panel, width, count, width);
    }
  }
  return block;
}

// Packs the panel's Q and empties its state.
template <class V>
void ForwardWorker<V>::start_panel(QueryPanel& panel) {
  use_modifier_of(panel.head);
  const int64_t lanes = panel.vectors * V::W;
  if (panel.key_begin < panel.key_end) {
    const TensorRows rows =
        query_rows_of(args_.q, args_.shape.head_dim, extent_, batch_, panel.head);
    const int64_t depth = args_.shape.head_dim;
    panel.finite =
        pack_transposed<V>(rows.row(panel.row), rows.dtype, rows.stride, panel.rows, depth, depth,
                           lanes, modifier_.q_factor, q_ + panel.lane * depth);
  }
  for (int64_t l = 0; l < lanes; l += V::W) {
    V::store(max_ + panel.lane + l, V::set1(-E(__builtin_inf())));
    V::store(sum_ + panel.lane + l, V::zero());
  }
}

template <class V>
template <int NV>
void ForwardWorker<V>::panel_block(const QueryPanel& panel, const KeyBlock& block,
                                   Prefetch& keys_ahead, Prefetch& rows_ahead) {
  const int64_t depth = args_.shape.head_dim;
  const int64_t begin = imax(panel.key_begin, block.begin);
  const int64_t n = imin(panel.key_end, block.begin + block.count) - begin;
  const ScoreTile tile = {panel.row, panel.rows, NV * V::W, begin, n};
  use_modifier_of(panel.head);
  // A modifier hides what the band hides.
  const BandEdges edges =
      band_edges(modifier_.any ? RowBand{} : band_, panel.row, panel.rows, begin, n);
  E max[NV * V::W];
  scores<V, NV>(q_ + panel.lane * depth, block.k + (begin - block.begin) * block.ldk, block.ldk, n,
                depth, edges, keys_ahead, rows_ahead, s_, max);
  if (modifier_.any) {
    modify_scores<V>(modifier_, tile, s_, modifier_scratch_, nullptr, visible_);
    column_max<V>(s_, n, tile.lanes, max);
  }
  const bool clean = panel.finite && block.finite_k && !modifier_.any;
  const PanelState<V> state = {max_ + panel.lane, sum_ + panel.lane, rescale_};
  const bool moved = online_softmax<V, NV>(s_, n, edges, max, clean, state);
  if (args_.dropout.on) {
    apply_dropout<V>(args_.dropout, batch_ * args_.shape.heads_q + panel.head, tile, s_, nullptr);
  }
  const bool fresh = panel.key_begin >= block.begin;
  accumulate(panel, block, tile,
             fresh   ? Accumulate::kFresh
             : moved ? Accumulate::kRescale
                     : Accumulate::kAdd);
}

// O = O * rescale + P V over the keys of the tile. A key hidden from every lane takes no part when
// its row of V may not be finite.
template <class V>
void ForwardWorker<V>::accumulate(const QueryPanel& panel, const KeyBlock& block,
                                  const ScoreTile& tile, Accumulate mode) {
  const int64_t ldo = columns_.padded();
  E* out = out_ + panel.lane * ldo;
  const int64_t row = tile.key0 - block.begin;
  const auto add = [&](int64_t begin, int64_t count) {
    const RankOperands<E> operands = {s_ + begin * tile.lanes, 1, tile.lanes, v_, 0, count};
    rank_all<V>(columns_, tile.rows, operands, schedule_.tile_k, row + begin, out, ldo, rescale_,
                mode);
    mode = Accumulate::kAdd;
  };
  if (!modifier_.any || block.finite_v) {
    add(0, tile.keys);
    return;
  }
  for (int64_t j = 0; j < tile.keys;) {
    if (visible_[j] == 0) {
      ++j;
      continue;
    }
    int64_t end = j + 1;
    while (end < tile.keys && visible_[end] != 0) {
      ++end;
    }
    add(j, end - j);
    j = end;
  }
  if (mode != Accumulate::kAdd) {
    add(0, 0);
  }
}

template <class V>
void ForwardWorker<V>::finish_panel(const QueryPanel& panel) {
  const int64_t ldo = columns_.padded();
  for (int64_t i = 0; i < panel.rows; ++i) {
    const int64_t lane = panel.lane + i;
    E* acc = out_ + lane * ldo;
    if (schedule_.splits > 1) {
      const int64_t flat = flat_query_row(args_, extent_, batch_, panel.row + i);
      store_partial_row<V>(states_, states_.index(split_, panel.head, flat), max_[lane], sum_[lane],
                           acc);
    } else {
      finish_row<V>(args_, extent_, {batch_, panel.head, panel.row + i}, max_[lane], sum_[lane],
                    acc);
    }
  }
}

template <class V>
inline void run_forward(const KernelLaunch& launch, int worker) {
  const ShapeArgs& shape = launch.args->shape;
  const Schedule& schedule = launch.schedule;
  const int64_t group = shape.heads_q / imax(shape.heads_kv, 1);
  const ItemShape cut = forward_item_shape(group, shape.seqlen_q, schedule.tile_q);
  const int64_t items = forward_items(cut, shape.batch, shape.heads_kv, schedule.splits);
  ForwardWorker<V> forward(launch, worker);
  for_each_item(launch, items, [&](int64_t index) {
    forward.run_item(forward_item(cut, index, shape.heads_kv, group, shape.batch, schedule.tile_q,
                                  schedule.splits));
  });
}

}  // namespace rowmax::cpu::ROWMAX_ISA
