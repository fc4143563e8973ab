#include "testkit/naive.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "api/bind.h"
#include "backend/reference/scores.h"

namespace rowmax::testkit {
namespace {

using reference::key_offset;
using reference::load;
using reference::query_offset;
using reference::row_offset;
using reference::store;

template <class T>
T dot(const T* a, const T* b, int64_t count) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < count; ++d) {
    sum += a[d] * b[d];
  }
  return sum;
}

template <class T>
void add_scaled(T factor, const T* source, int64_t count, T* target) {
#pragma omp simd
  for (int64_t d = 0; d < count; ++d) {
    target[d] += factor * source[d];
  }
}

// One (batch element, query head): its operands and its score matrix, row by row.
template <class T>
class NaiveHead {
 public:
  NaiveHead(const AttentionArgs& args, int64_t b, int64_t head)
      : args_(args),
        shape_(args.shape),
        b_(b),
        head_(head),
        head_kv_(head / (shape_.heads_q / shape_.heads_kv)),
        extent_(sequence_extent(args, b)),
        band_(resolve_band(args.score.band, extent_.q_len, extent_.k_len)) {}

  void forward();
  // Adds to dk and dv (k_len rows) and to `dbias` (dense over the full axes, (B, Hq, Sq, Sk)
  // strides of args.grad.dbias) when given.
  void backward(T* dk, T* dv, T* dbias, T* dsink, T* dslope);

  const SequenceExtent& extent() const { return extent_; }

 private:
  using Row = std::vector<T>;

  void load_queries();
  void load_keys();
  void softmax();
  bool hidden(int64_t i, int64_t j) const;
  T logit(int64_t i, int64_t j, T product, T* cap_slope) const;
  T kept(int64_t i, int64_t j) const;
  T* score(int64_t i) { return scores_.data() + i * extent_.k_len; }

  const AttentionArgs& args_;
  const ShapeArgs& shape_;
  int64_t b_;
  int64_t head_;
  int64_t head_kv_;
  SequenceExtent extent_;
  RowBand band_;
  Row q_;       // (q_len, D)
  Row k_;       // (k_len, D)
  Row v_;       // (k_len, Dv)
  Row scores_;  // (q_len, k_len): logits, then probabilities
  Row lse_;     // (q_len)
};

template <class T>
std::vector<T> load_rows(const TensorArg& tensor, int64_t count, int64_t width,
                         const std::vector<int64_t>& offsets) {
  std::vector<T> rows(static_cast<size_t>(count * width));
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t d = 0; d < width; ++d) {
      rows[static_cast<size_t>(n * width + d)] =
          static_cast<T>(load(tensor.data, tensor.dtype, offsets[static_cast<size_t>(n)] + d));
    }
  }
  return rows;
}

template <class T>
void NaiveHead<T>::load_queries() {
  std::vector<int64_t> offsets;
  for (int64_t i = 0; i < extent_.q_len; ++i) {
    offsets.push_back(query_offset(args_.q, extent_, b_, i, head_));
  }
  q_ = load_rows<T>(args_.q, extent_.q_len, shape_.head_dim, offsets);
}

template <class T>
void NaiveHead<T>::load_keys() {
  std::vector<int64_t> k_offsets;
  std::vector<int64_t> v_offsets;
  for (int64_t j = 0; j < extent_.k_len; ++j) {
    k_offsets.push_back(key_offset(args_, args_.k, extent_, b_, j, head_kv_));
    v_offsets.push_back(key_offset(args_, args_.v, extent_, b_, j, head_kv_));
  }
  k_ = load_rows<T>(args_.k, extent_.k_len, shape_.head_dim, k_offsets);
  v_ = load_rows<T>(args_.v, extent_.k_len, shape_.head_dim_v, v_offsets);
}

template <class T>
bool NaiveHead<T>::hidden(int64_t i, int64_t j) const {
  const ScoreArgs& score = args_.score;
  if (score.mask.data != nullptr) {
    const BroadcastArg& mask = score.mask;
    const auto* bytes = static_cast<const uint8_t*>(mask.data);
    if (bytes[b_ * mask.batch + head_ * mask.head + i * mask.row + j * mask.col] == 0) {
      return true;
    }
  }
  if (score.documents_q.data != nullptr) {
    const DocumentArg& q = score.documents_q;
    const DocumentArg& k = score.documents_k;
    return q.data[b_ * q.batch + (extent_.q_begin + i) * q.seq] !=
           k.data[b_ * k.batch + (extent_.k_begin + j) * k.seq];
  }
  return false;
}

template <class T>
T NaiveHead<T>::logit(int64_t i, int64_t j, T product, T* cap_slope) const {
  const ScoreArgs& score = args_.score;
  T value = product;
  *cap_slope = 1;
  if (score.softcap > 0.0) {
    const T cap = static_cast<T>(score.softcap);
    const T t = std::tanh(product / cap);
    value = cap * t;
    *cap_slope = 1 - t * t;
  }
  const BroadcastArg& bias = score.bias;
  if (bias.data != nullptr) {
    value += static_cast<T>(load(
        bias.data, bias.dtype, b_ * bias.batch + head_ * bias.head + i * bias.row + j * bias.col));
  }
  if (score.slopes != nullptr) {
    const int64_t shift = score.band.top_left ? 0 : extent_.k_len - extent_.q_len;
    value -= static_cast<T>(score.slopes[b_ * score.slope_batch + head_ * score.slope_head]) *
             static_cast<T>(std::llabs(i + shift - j));
  }
  return value;
}

template <class T>
T NaiveHead<T>::kept(int64_t i, int64_t j) const {
  if (!args_.dropout.on) {
    return 1;
  }
  return dropout_keeps(args_.dropout, b_ * shape_.heads_q + head_, i, j)
             ? static_cast<T>(args_.dropout.keep_scale)
             : 0;
}

// The whole matrix of logits (-inf where hidden), then of probabilities before dropout.
template <class T>
void NaiveHead<T>::softmax() {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  load_queries();
  load_keys();
  scores_.assign(static_cast<size_t>(extent_.q_len * extent_.k_len), -kInfinity);
  lse_.assign(static_cast<size_t>(extent_.q_len), -kInfinity);
  const T scale = static_cast<T>(args_.score.scale);
  const T sink = args_.score.sinks == nullptr
                     ? -kInfinity
                     : static_cast<T>(args_.score.sinks[head_ * args_.score.sink_stride]);
  for (int64_t i = 0; i < extent_.q_len; ++i) {
    T* row = score(i);
    T max = sink;
    const KeyRange keys = row_keys(band_, i, extent_.k_len);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      if (hidden(i, j)) {
        continue;
      }
      T cap_slope = 1;
      row[j] = logit(i, j,
                     scale * dot(q_.data() + i * shape_.head_dim, k_.data() + j * shape_.head_dim,
                                 shape_.head_dim),
                     &cap_slope);
      max = row[j] > max ? row[j] : max;
    }
    if (max == -kInfinity) {
      std::fill(row, row + extent_.k_len, T{0});
      continue;
    }
    T sum = std::exp(sink - max);
    for (int64_t j = 0; j < extent_.k_len; ++j) {
      row[j] = std::exp(row[j] - max);
      sum += row[j];
    }
    for (int64_t j = 0; j < extent_.k_len; ++j) {
      row[j] /= sum;
    }
    lse_[static_cast<size_t>(i)] = max + std::log(sum);
  }
}

template <class T>
void store_row(const TensorArg& tensor, int64_t offset, const T* values, int64_t count) {
  for (int64_t d = 0; d < count; ++d) {
    store(tensor.data, tensor.dtype, offset + d, static_cast<double>(values[d]));
  }
}

template <class T>
void NaiveHead<T>::forward() {
  softmax();
  Row out(static_cast<size_t>(shape_.head_dim_v));
  for (int64_t i = 0; i < extent_.q_len; ++i) {
    std::fill(out.begin(), out.end(), T{0});
    for (int64_t j = 0; j < extent_.k_len; ++j) {
      const T weight = score(i)[j] == 0 ? T{0} : score(i)[j] * kept(i, j);
      if (weight != 0) {
        add_scaled(weight, v_.data() + j * shape_.head_dim_v, shape_.head_dim_v, out.data());
      }
    }
    store_row(args_.out, query_offset(args_.out, extent_, b_, i, head_), out.data(),
              shape_.head_dim_v);
    if (args_.lse.data != nullptr) {
      store(args_.lse.data, args_.lse.dtype, row_offset(args_.lse, extent_, b_, i, head_),
            static_cast<double>(lse_[static_cast<size_t>(i)]));
    }
  }
}

template <class T>
void NaiveHead<T>::backward(T* dk, T* dv, T* dbias, T* dsink, T* dslope) {
  softmax();
  const GradientArgs& grad = args_.grad;
  const T scale = static_cast<T>(args_.score.scale);
  const int64_t shift = args_.score.band.top_left ? 0 : extent_.k_len - extent_.q_len;
  Row dout(static_cast<size_t>(shape_.head_dim_v));
  Row dq(static_cast<size_t>(shape_.head_dim));
  Row dp(static_cast<size_t>(extent_.k_len));
  for (int64_t i = 0; i < extent_.q_len; ++i) {
    const T* p = score(i);
    const T* q = q_.data() + i * shape_.head_dim;
    const T lse = lse_[static_cast<size_t>(i)];
    const int64_t dout_offset = query_offset(grad.dout, extent_, b_, i, head_);
    for (int64_t d = 0; d < shape_.head_dim_v; ++d) {
      dout[static_cast<size_t>(d)] =
          static_cast<T>(load(grad.dout.data, grad.dout.dtype, dout_offset + d));
    }
    T dlse = 0;
    if (grad.dlse.data != nullptr) {
      dlse = static_cast<T>(
          load(grad.dlse.data, grad.dlse.dtype, row_offset(grad.dlse, extent_, b_, i, head_)));
    }
    std::fill(dq.begin(), dq.end(), T{0});
    T delta = 0;
    for (int64_t j = 0; j < extent_.k_len; ++j) {
      T& gradient = dp[static_cast<size_t>(j)];
      gradient = 0;
      if (p[j] != 0) {
        const T keep = kept(i, j);
        gradient = keep * dot(dout.data(), v_.data() + j * shape_.head_dim_v, shape_.head_dim_v);
        delta += p[j] * gradient;
        add_scaled(p[j] * keep, dout.data(), shape_.head_dim_v, dv + j * shape_.head_dim_v);
      }
    }
    for (int64_t j = 0; j < extent_.k_len; ++j) {
      if (p[j] == 0) {
        continue;
      }
      const T dlogit = p[j] * (dp[static_cast<size_t>(j)] - delta + dlse);
      const T* k = k_.data() + j * shape_.head_dim;
      T cap_slope = 1;
      if (args_.score.softcap > 0.0) {
        logit(i, j, scale * dot(q, k, shape_.head_dim), &cap_slope);
      }
      if (dbias != nullptr) {
        const BroadcastArg& bias = grad.dbias;
        dbias[b_ * bias.batch + head_ * bias.head + i * bias.row + j * bias.col] += dlogit;
      }
      *dslope -= dlogit * static_cast<T>(std::llabs(i + shift - j));
      const T dproduct = scale * dlogit * cap_slope;
      add_scaled(dproduct, k, shape_.head_dim, dq.data());
      add_scaled(dproduct, q, shape_.head_dim, dk + j * shape_.head_dim);
    }
    if (args_.score.sinks != nullptr && lse != -std::numeric_limits<T>::infinity()) {
      const T sink = static_cast<T>(args_.score.sinks[head_ * args_.score.sink_stride]);
      *dsink += std::exp(sink - lse) * (dlse - delta);
    }
    if (grad.dq.data != nullptr) {
      store_row(grad.dq, query_offset(grad.dq, extent_, b_, i, head_), dq.data(), shape_.head_dim);
    }
  }
}

template <class T>
void naive_forward(const AttentionArgs& args, int threads) {
  const int64_t items = args.shape.batch * args.shape.heads_q;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t item = 0; item < items; ++item) {
    NaiveHead<T>(args, item / args.shape.heads_q, item % args.shape.heads_q).forward();
  }
}

// Sums over heads and batch elements that only exist once.
template <class T>
struct SharedSums {
  std::vector<T> dbias;    // at the offsets of args.grad.dbias
  std::vector<T> dsinks;   // (B, Hq)
  std::vector<T> dslopes;  // (B, Hq)
};

template <class T>
void naive_kv_head(const AttentionArgs& args, int64_t b, int64_t head_kv, SharedSums<T>* sums) {
  const ShapeArgs& shape = args.shape;
  const SequenceExtent extent = sequence_extent(args, b);
  const int64_t group = shape.heads_q / shape.heads_kv;
  std::vector<T> dk(static_cast<size_t>(extent.k_len * shape.head_dim));
  std::vector<T> dv(static_cast<size_t>(extent.k_len * shape.head_dim_v));
  for (int64_t head = head_kv * group; head < (head_kv + 1) * group; ++head) {
    const auto bh = static_cast<size_t>(b * shape.heads_q + head);
    NaiveHead<T>(args, b, head)
        .backward(dk.data(), dv.data(), sums->dbias.empty() ? nullptr : sums->dbias.data(),
                  &sums->dsinks[bh], &sums->dslopes[bh]);
  }
  for (int64_t j = 0; j < extent.k_len; ++j) {
    if (args.grad.dk.data != nullptr) {
      store_row(args.grad.dk, key_offset(args, args.grad.dk, extent, b, j, head_kv),
                dk.data() + j * shape.head_dim, shape.head_dim);
    }
    if (args.grad.dv.data != nullptr) {
      store_row(args.grad.dv, key_offset(args, args.grad.dv, extent, b, j, head_kv),
                dv.data() + j * shape.head_dim_v, shape.head_dim_v);
    }
  }
}

template <class T>
void store_shared(const AttentionArgs& args, const SharedSums<T>& sums) {
  const ShapeArgs& shape = args.shape;
  const BroadcastArg& bias = args.grad.dbias;
  for (int64_t b = 0; !sums.dbias.empty() && b < (bias.full_batch ? shape.batch : 1); ++b) {
    for (int64_t h = 0; h < (bias.full_heads ? shape.heads_q : 1); ++h) {
      for (int64_t i = 0; i < (bias.full_rows ? shape.seqlen_q : 1); ++i) {
        for (int64_t j = 0; j < (bias.full_cols ? shape.seqlen_k : 1); ++j) {
          const int64_t at = b * bias.batch + h * bias.head + i * bias.row + j * bias.col;
          store(bias.data, bias.dtype, at,
                static_cast<double>(sums.dbias[static_cast<size_t>(at)]));
        }
      }
    }
  }
  for (int64_t h = 0; h < shape.heads_q; ++h) {
    T dsink = 0;
    T dslope = 0;
    for (int64_t b = 0; b < shape.batch; ++b) {
      const auto bh = static_cast<size_t>(b * shape.heads_q + h);
      dsink += sums.dsinks[bh];
      dslope = args.grad.dslope_batch != 0 ? sums.dslopes[bh] : dslope + sums.dslopes[bh];
      if (args.grad.dslopes != nullptr) {
        args.grad.dslopes[b * args.grad.dslope_batch + h * args.grad.dslope_head] =
            static_cast<float>(dslope);
      }
    }
    if (args.grad.dsinks != nullptr) {
      args.grad.dsinks[h * args.grad.dsink_stride] = static_cast<float>(dsink);
    }
    if (args.grad.dslopes != nullptr && shape.batch == 0) {
      args.grad.dslopes[h * args.grad.dslope_head] = 0.0f;
    }
  }
}

template <class T>
void naive_backward(const AttentionArgs& args, int threads) {
  const ShapeArgs& shape = args.shape;
  SharedSums<T> sums;
  sums.dsinks.resize(static_cast<size_t>(shape.batch * shape.heads_q));
  sums.dslopes.resize(sums.dsinks.size());
  const BroadcastArg& bias = args.grad.dbias;
  if (bias.data != nullptr) {
    const auto last = [](bool full, int64_t size, int64_t stride) {
      return full && size > 0 ? (size - 1) * stride : 0;
    };
    sums.dbias.resize(static_cast<size_t>(last(bias.full_batch, shape.batch, bias.batch) +
                                          last(bias.full_heads, shape.heads_q, bias.head) +
                                          last(bias.full_rows, shape.seqlen_q, bias.row) +
                                          last(bias.full_cols, shape.seqlen_k, bias.col) + 1));
  }
  // dbias may be summed over heads: one thread then.
  const int workers = bias.data != nullptr ? 1 : threads;
  const int64_t items = shape.batch * shape.heads_kv;
#pragma omp parallel for schedule(dynamic) num_threads(workers)
  for (int64_t item = 0; item < items; ++item) {
    naive_kv_head<T>(args, item / shape.heads_kv, item % shape.heads_kv, &sums);
  }
  store_shared(args, sums);
}

}  // namespace

void run_naive(const AttentionProblem& problem, const AttentionArgs& args, int threads) {
  const int workers = threads > 0 ? threads : omp_get_max_threads();
  const bool f64 = problem.dtype == DType::kF64;
  if (problem.op == Op::kForward) {
    f64 ? naive_forward<double>(args, workers) : naive_forward<float>(args, workers);
  } else {
    f64 ? naive_backward<double>(args, workers) : naive_backward<float>(args, workers);
  }
}

Status execute_naive(const AttentionProblem& problem, const AttentionTensors& tensors,
                     int threads) {
  const Result<AttentionArgs> args = bind_arguments(problem, tensors);
  if (!args.ok()) {
    return args.status();
  }
  run_naive(problem, *args, threads);
  return {};
}

int64_t naive_bytes(const AttentionProblem& problem, int threads) {
  const Sizes& s = problem.sizes;
  const int64_t element = problem.dtype == DType::kF64 ? 8 : 4;
  const int64_t heads = s.batch * (problem.op == Op::kForward ? s.heads_q : s.heads_kv);
  const int64_t workers = std::min<int64_t>(threads > 0 ? threads : omp_get_max_threads(), heads);
  const int64_t operands = s.seqlen_q * s.head_dim + s.seqlen_k * (s.head_dim + s.head_dim_v);
  return workers * element * (s.seqlen_q * s.seqlen_k + s.seqlen_q + operands);
}

}  // namespace rowmax::testkit
