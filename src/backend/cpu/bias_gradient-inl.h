// dbias = sum of dS over the axes along which the bias was broadcast. An item owns one tile of
// dbias: one batch element or all, one head or all, a block of rows or all, a block of keys or all.
// It recomputes P and dS of everything that maps onto the tile, in a fixed order, and adds in fp64.
// So no partial sums leave the worker, whatever the broadcast.
#pragma once

#include <cstdint>

#include "backend/cpu/backward_buffers-inl.h"
#include "backend/cpu/gradient_panel-inl.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"
#include "kernel_api/schedule.h"

namespace rowmax::cpu::ROWMAX_ISA {

// A tile of dbias. Broadcast axes of dbias have the range {0, 1}.
struct BiasTile {
  KeyRange batches;
  KeyRange heads;
  KeyRange rows;
  KeyRange cols;
};

template <class V>
class BiasGradientWorker {
  using E = typename V::E;

 public:
  BiasGradientWorker(const KernelLaunch& launch, int worker)
      : launch_(launch),
        args_(*launch.args),
        dbias_(launch.args->grad.dbias),
        tile_q_(launch.schedule.tile_q),
        tile_k_(launch.schedule.tile_k),
        rows_total_(flat_query_rows(*launch.args)),
        scratch_(backward_scratch(scratch_shape<V>(launch), StepKind::kBiasGradient),
                 worker_scratch(launch, worker)) {}

  int64_t items() const {
    const ShapeArgs& shape = args_.shape;
    return (dbias_.full_batch ? shape.batch : 1) * (dbias_.full_heads ? shape.heads_q : 1) *
           row_blocks() * col_blocks();
  }

  void run_item(int64_t index) {
    const ShapeArgs& shape = args_.shape;
    BiasTile tile;
    tile.cols = axis(dbias_.full_cols, index % col_blocks(), tile_k_, shape.seqlen_k);
    index /= col_blocks();
    tile.rows = axis(dbias_.full_rows, index % row_blocks(), tile_q_, shape.seqlen_q);
    index /= row_blocks();
    const int64_t heads = dbias_.full_heads ? shape.heads_q : 1;
    tile.heads = axis(dbias_.full_heads, index % heads, 1, heads);
    tile.batches = axis(dbias_.full_batch, index / heads, 1, shape.batch);
    tile_ = tile;
    lanes_ = tile.rows.end - tile.rows.begin;
    const int64_t count = lanes_ * (tile.cols.end - tile.cols.begin);
    __builtin_memset(scratch_.sums, 0, sizeof(double) * static_cast<size_t>(count));
    const KeyRange batches = dbias_.full_batch ? tile.batches : KeyRange{0, shape.batch};
    const KeyRange all_heads = dbias_.full_heads ? tile.heads : KeyRange{0, shape.heads_q};
    for (int64_t b = batches.begin; b < batches.end; ++b) {
      for (int64_t h = all_heads.begin; h < all_heads.end; ++h) {
        add_head(b, h);
      }
    }
    store_tile();
  }

 private:
  int64_t row_blocks() const {
    return ceil_div(dbias_.full_rows ? args_.shape.seqlen_q : 1, tile_q_);
  }
  int64_t col_blocks() const {
    return ceil_div(dbias_.full_cols ? args_.shape.seqlen_k : 1, tile_k_);
  }
  static KeyRange axis(bool full, int64_t index, int64_t step, int64_t size) {
    return full ? KeyRange{index * step, imin(index * step + step, size)} : KeyRange{0, 1};
  }

  // Everything of one (batch element, query head) that maps onto the tile.
  void add_head(int64_t b, int64_t h) {
    const ShapeArgs& shape = args_.shape;
    b_ = b;
    h_ = h;
    extent_ = sequence_extent(args_, b);
    band_ = resolve_band(args_.score.band, extent_.q_len, extent_.k_len);
    head_.modifier = make_score_modifier<V>(args_, extent_, band_, b, h);
    head_.dropout = args_.dropout;
    head_.bh = b * shape.heads_q + h;
    head_.head_dim = shape.head_dim;
    head_.head_dim_v = shape.head_dim_v;
    const int64_t row_begin = dbias_.full_rows ? tile_.rows.begin : 0;
    const int64_t row_end = imin(dbias_.full_rows ? tile_.rows.end : extent_.q_len, extent_.q_len);
    for (int64_t row = row_begin; row < row_end; row += tile_q_) {
      add_rows(row, imin(tile_q_, row_end - row));
    }
  }

  // A block of rows against the keys of the tile (or all).
  void add_rows(int64_t row0, int64_t rows) {
    KeyRange keys = block_keys(band_, row0, row0 + rows, extent_.k_len);
    if (dbias_.full_cols) {
      keys.begin = imax(keys.begin, tile_.cols.begin);
      keys.end = imin(keys.end, tile_.cols.end);
    }
    if (keys.begin >= keys.end) {
      return;
    }
    Panel panels[kMaxQueryPanels];
    const int count = cut_panels<V>(rows, panels);
    load_statistics(row0, rows);
    for (int p = 0; p < count; ++p) {
      const int64_t begin = panels[p].begin;
      const int64_t lanes = panels[p].vectors * V::W;
      fast_[p] = load_panel(row0 + begin, imin(lanes, rows - begin), begin, lanes);
    }
    for (int64_t key = keys.begin; key < keys.end; key += tile_k_) {
      const int64_t n = imin(tile_k_, keys.end - key);
      const int64_t kv_head = h_ / (args_.shape.heads_q / args_.shape.heads_kv);
      const int64_t row = extent_.k_begin + key;
      const PlainRows<V> k =
          load_rows<V>(args_.k, b_, row, kv_head, n, args_.shape.head_dim, scratch_.k);
      const PlainRows<V> v =
          load_rows<V>(args_.v, b_, row, kv_head, n, args_.shape.head_dim_v, scratch_.v);
      for (int p = 0; p < count; ++p) {
        const int64_t begin = panels[p].begin;
        const int64_t lanes = panels[p].vectors * V::W;
        const ScoreTile tile = {row0 + begin, imin(lanes, rows - begin), lanes, key, n};
        add_panel(tile, begin, fast_[p], k, v);
      }
    }
  }

  void load_statistics(int64_t row0, int64_t rows) {
    const int64_t at = row_stats_index(rows_total_, h_, flat_query_row(args_, extent_, b_, row0));
    copy_row_statistics<V>(launch_, at, rows, round_up(rows, V::W), scratch_.lse, scratch_.delta);
  }

  // Returns whether the panel may use exp2_reference.
  bool load_panel(int64_t row, int64_t rows, int64_t begin, int64_t lanes) {
    const ShapeArgs& shape = args_.shape;
    const TensorArg& dout = args_.grad.dout;
    const int64_t at = extent_.q_begin + row;
    const bool finite = pack_transposed<V>(
        tensor_row(args_.q, b_, at, h_), args_.q.dtype, args_.q.seq, rows, shape.head_dim,
        shape.head_dim, lanes, head_.modifier.q_factor, scratch_.q + begin * shape.head_dim);
    pack_transposed<V>(tensor_row(dout, b_, at, h_), dout.dtype, dout.seq, rows, shape.head_dim_v,
                       shape.head_dim_v, lanes, E(1), scratch_.dout + begin * shape.head_dim_v);
    return finite && statistics_in_range<V>(scratch_.lse + begin, lanes);
  }

  void add_panel(const ScoreTile& block, int64_t begin, bool fast, const PlainRows<V>& k,
                 const PlainRows<V>& v) {
    const KeyRange range = block_keys(band_, block.row0, block.row0 + block.rows, extent_.k_len);
    const int64_t first = imax(range.begin, block.key0);
    const int64_t last = imin(range.end, block.key0 + block.keys);
    if (first >= last) {
      return;
    }
    const int64_t skip = first - block.key0;
    const ScoreTile tile = {block.row0, block.rows, block.lanes, first, last - first};
    const GradientPanel<V> x = {scratch_.q + begin * head_.head_dim,
                                scratch_.dout + begin * head_.head_dim_v,
                                k.data + skip * k.ld,
                                v.data + skip * v.ld,
                                k.ld,
                                v.ld,
                                scratch_.lse + begin,
                                scratch_.delta + begin,
                                fast,
                                true,
                                scratch_.p,
                                scratch_.ds,
                                &nothing_ahead_,
                                &nothing_ahead_};
    const int vectors = static_cast<int>(tile.lanes / V::W);
    if (panel_gradients<V>(vectors, head_, tile, x, &scratch_.panel)) {
      add_tile(tile);
    }
  }

  // sums[col][row] += dS, folded along the axes that dbias does not have.
  void add_tile(const ScoreTile& tile) {
    const int64_t row = dbias_.full_rows ? tile.row0 - tile_.rows.begin : 0;
    for (int64_t j = 0; j < tile.keys; ++j) {
      const E* ds = scratch_.ds + j * tile.lanes;
      const int64_t col = dbias_.full_cols ? tile.key0 + j - tile_.cols.begin : 0;
      double* sums = scratch_.sums + col * lanes_ + row;
      if (dbias_.full_rows) {
        for (int64_t l = 0; l < tile.rows; ++l) {
          sums[l] += static_cast<double>(ds[l]);
        }
      } else {
        double sum = 0.0;
        for (int64_t l = 0; l < tile.rows; ++l) {
          sum += static_cast<double>(ds[l]);
        }
        sums[0] += sum;
      }
    }
  }

  // Every element of the tile: positions that no (row, key) touches are 0.
  void store_tile() const {
    with_storage(dbias_.dtype, [&](auto policy) {
      using S = decltype(policy);
      auto* to = static_cast<typename S::T*>(dbias_.data) + tile_.batches.begin * dbias_.batch +
                 tile_.heads.begin * dbias_.head;
      for (int64_t i = 0; i < lanes_; ++i) {
        for (int64_t j = 0; j < tile_.cols.end - tile_.cols.begin; ++j) {
          S::put(to + (tile_.rows.begin + i) * dbias_.row + (tile_.cols.begin + j) * dbias_.col,
                 scratch_.sums[j * lanes_ + i]);
        }
      }
    });
  }

  const KernelLaunch& launch_;
  const AttentionArgs& args_;
  const BroadcastArg& dbias_;
  int64_t tile_q_;
  int64_t tile_k_;
  int64_t rows_total_;
  BackwardBuffers<V> scratch_;
  BiasTile tile_;
  int64_t lanes_ = 0;  // rows of the tile

  // The (batch element, query head) at hand.
  int64_t b_ = 0;
  int64_t h_ = 0;
  SequenceExtent extent_;
  RowBand band_;
  GradientHead<V> head_;
  bool fast_[kMaxQueryPanels];
  Prefetch nothing_ahead_;
};

template <class V>
void run_bias_gradient(const KernelLaunch& launch, int worker) {
  BiasGradientWorker<V> kernel(launch, worker);
  for_each_item(launch, kernel.items(), [&](int64_t index) { kernel.run_item(index); });
}

}  // namespace rowmax::cpu::ROWMAX_ISA
