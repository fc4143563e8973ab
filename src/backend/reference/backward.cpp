// Backward from the inputs alone: probabilities, statistics and delta are recomputed in fp64, so
// that nothing of a forward pass's rounding enters the oracle. The given O and LSE are not read.
#include <cmath>
#include <vector>

#include "backend/reference/registry.h"
#include "backend/reference/scores.h"

namespace rowmax::reference {
namespace {

// fp64 sums of dbias over broadcast axes, shape (batches, heads, rows, cols).
class BiasGradient {
 public:
  BiasGradient(const AttentionArgs& args, int64_t head_begin, int64_t head_end)
      : arg_(args.grad.dbias),
        head_begin_(head_begin),
        batches_(arg_.full_batch ? args.shape.batch : 1),
        heads_(arg_.full_heads ? head_end - head_begin : 1),
        rows_(arg_.full_rows ? args.shape.seqlen_q : 1),
        cols_(arg_.full_cols ? args.shape.seqlen_k : 1) {
    if (arg_.data != nullptr) {
      sums_.assign(static_cast<size_t>(batches_ * heads_ * rows_ * cols_), 0.0);
    }
  }

  void add(const RowId& row, int64_t j, double value) {
    if (arg_.data != nullptr) {
      sums_[index(arg_.full_batch ? row.b : 0, arg_.full_heads ? row.head - head_begin_ : 0,
                  arg_.full_rows ? row.i : 0, arg_.full_cols ? j : 0)] += value;
    }
  }

  // Writes every element: those without a visible pair are 0.
  void write() const {
    if (arg_.data == nullptr) {
      return;
    }
    for (int64_t b = 0; b < batches_; ++b) {
      for (int64_t h = 0; h < heads_; ++h) {
        for (int64_t i = 0; i < rows_; ++i) {
          for (int64_t j = 0; j < cols_; ++j) {
            const int64_t head = arg_.full_heads ? head_begin_ + h : 0;
            store(arg_.data, arg_.dtype,
                  b * arg_.batch + head * arg_.head + i * arg_.row + j * arg_.col,
                  sums_[index(b, h, i, j)]);
          }
        }
      }
    }
  }

 private:
  size_t index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return static_cast<size_t>(((b * heads_ + h) * rows_ + i) * cols_ + j);
  }

  const BroadcastArg& arg_;
  int64_t head_begin_;
  int64_t batches_;
  int64_t heads_;
  int64_t rows_;
  int64_t cols_;
  std::vector<double> sums_;
};

// fp64 sums of one (batch element, kv head), over its query heads and rows.
struct KeySums {
  std::vector<double> dk;  // (k_len, D)
  std::vector<double> dv;  // (k_len, Dv)
};

// fp64 sums of one query head, over rows and the batch (dslope: one batch element when slopes are
// (B, Hq)).
struct HeadSums {
  double dsink = 0.0;
  double dslope = 0.0;
};

void store_row(const TensorArg& tensor, int64_t offset, const double* values, int64_t count) {
  for (int64_t d = 0; d < count; ++d) {
    store(tensor.data, tensor.dtype, offset + d, values[d]);
  }
}

void backward_row(const AttentionArgs& args, const SequenceExtent& extent, const RowId& row,
                  KeyValueRows* rows, BiasGradient* dbias, KeySums* key_sums, HeadSums* head_sums) {
  const ShapeArgs& shape = args.shape;
  const GradientArgs& grad = args.grad;
  const std::vector<double> q =
      load_row(args.q, query_offset(args.q, extent, row.b, row.i, row.head), shape.head_dim);
  const std::vector<double> dout = load_row(
      grad.dout, query_offset(grad.dout, extent, row.b, row.i, row.head), shape.head_dim_v);
  std::vector<ScoredKey> keys = score_row(args, extent, row, q.data(), rows);
  const RowSoftmax softmax = softmax_row(args, row, &keys);

  std::vector<double> dq(static_cast<size_t>(shape.head_dim), 0.0);
  if (softmax.lse != -INFINITY) {
    double dlse = 0.0;
    if (grad.dlse.data != nullptr) {
      dlse = load(grad.dlse.data, grad.dlse.dtype,
                  row_offset(grad.dlse, extent, row.b, row.i, row.head));
    }
    std::vector<double> dp(keys.size());  // gradient of the probabilities before dropout
    double delta = 0.0;
    for (size_t n = 0; n < keys.size(); ++n) {
      const ScoredKey& entry = keys[n];
      if (entry.kept != 0.0) {
        dp[n] = entry.kept * dot(dout.data(), rows->value(entry.key), shape.head_dim_v);
        add_scaled(entry.weight * entry.kept, dout.data(), shape.head_dim_v,
                   key_sums->dv.data() + entry.key * shape.head_dim_v);
      }
      delta += entry.weight * dp[n];
    }
    for (size_t n = 0; n < keys.size(); ++n) {
      const ScoredKey& entry = keys[n];
      const double dlogit = entry.weight * (dp[n] - delta + dlse);
      dbias->add(row, entry.key, dlogit);
      head_sums->dslope -= dlogit * entry.distance;
      const double dproduct = args.score.scale * dlogit * entry.cap_slope;
      add_scaled(dproduct, rows->key(entry.key), shape.head_dim, dq.data());
      add_scaled(dproduct, q.data(), shape.head_dim,
                 key_sums->dk.data() + entry.key * shape.head_dim);
    }
    head_sums->dsink += softmax.sink_weight * (dlse - delta);
  }
  if (grad.dq.data != nullptr) {
    store_row(grad.dq, query_offset(grad.dq, extent, row.b, row.i, row.head), dq.data(),
              shape.head_dim);
  }
}

void store_slope(const AttentionArgs& args, int64_t b, int64_t head, HeadSums* sums) {
  if (args.grad.dslopes != nullptr) {
    args.grad.dslopes[b * args.grad.dslope_batch + head * args.grad.dslope_head] =
        static_cast<float>(sums->dslope);
  }
  sums->dslope = 0.0;
}

// dK and dV of one (batch element, kv head), summed over its query heads; `heads` holds the sums of
// each of them.
void backward_kv_head(const AttentionArgs& args, int64_t b, int64_t head_kv, BiasGradient* dbias,
                      std::vector<HeadSums>* heads) {
  const ShapeArgs& shape = args.shape;
  const int64_t group = shape.heads_q / shape.heads_kv;
  const SequenceExtent extent = sequence_extent(args, b);
  KeyValueRows rows(args, extent, b, head_kv);
  KeySums key_sums;
  key_sums.dk.assign(static_cast<size_t>(extent.k_len * shape.head_dim), 0.0);
  key_sums.dv.assign(static_cast<size_t>(extent.k_len * shape.head_dim_v), 0.0);
  for (int64_t g = 0; g < group; ++g) {
    RowId row;
    row.b = b;
    row.head = head_kv * group + g;
    for (row.i = 0; row.i < extent.q_len; ++row.i) {
      backward_row(args, extent, row, &rows, dbias, &key_sums, &(*heads)[static_cast<size_t>(g)]);
    }
  }
  for (int64_t j = 0; j < extent.k_len; ++j) {
    if (args.grad.dk.data != nullptr) {
      store_row(args.grad.dk, key_offset(args, args.grad.dk, extent, b, j, head_kv),
                key_sums.dk.data() + j * shape.head_dim, shape.head_dim);
    }
    if (args.grad.dv.data != nullptr) {
      store_row(args.grad.dv, key_offset(args, args.grad.dv, extent, b, j, head_kv),
                key_sums.dv.data() + j * shape.head_dim_v, shape.head_dim_v);
    }
  }
}

void backward_kv_heads(const AttentionArgs& args, int64_t begin, int64_t end) {
  const ShapeArgs& shape = args.shape;
  const int64_t group = shape.heads_q / shape.heads_kv;
  const bool slope_per_batch = args.grad.dslope_batch != 0;
  BiasGradient dbias(args, begin * group, end * group);
  for (int64_t head_kv = begin; head_kv < end; ++head_kv) {
    std::vector<HeadSums> heads(static_cast<size_t>(group));
    for (int64_t b = 0; b < shape.batch; ++b) {
      backward_kv_head(args, b, head_kv, &dbias, &heads);
      for (int64_t g = 0; g < group && slope_per_batch; ++g) {
        store_slope(args, b, head_kv * group + g, &heads[static_cast<size_t>(g)]);
      }
    }
    for (int64_t g = 0; g < group; ++g) {
      const int64_t head = head_kv * group + g;
      HeadSums& sums = heads[static_cast<size_t>(g)];
      if (!slope_per_batch) {
        store_slope(args, 0, head, &sums);
      }
      if (args.grad.dsinks != nullptr) {
        args.grad.dsinks[head * args.grad.dsink_stride] = static_cast<float>(sums.dsink);
      }
    }
  }
  dbias.write();
}

}  // namespace

// An item is one kv head over the whole batch: it owns its heads' dsinks, dslopes and rows of
// dbias. A dbias that is summed over the heads makes one item of everything.
void run_backward(const KernelLaunch& launch, int /*worker*/) {
  const AttentionArgs& args = *launch.args;
  const bool shared_bias = args.grad.dbias.data != nullptr && !args.grad.dbias.full_heads;
  const int64_t heads_per_item = shared_bias ? args.shape.heads_kv : 1;
  const int64_t items = shared_bias ? 1 : args.shape.heads_kv;
  for_each_item(launch, items, [&](int64_t item) {
    backward_kv_heads(args, item * heads_per_item, (item + 1) * heads_per_item);
  });
}

}  // namespace rowmax::reference
