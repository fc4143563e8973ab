#include "testkit/bounds.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/reference/scores.h"
#include "kernel_api/layout.h"

namespace rowmax::testkit {
namespace {

using reference::KeyValueRows;
using reference::load_row;
using reference::query_offset;
using reference::RowId;
using reference::RowSoftmax;
using reference::ScoredKey;

double unit_roundoff(DType dtype) { return epsilon_of(dtype) / 2.0; }

// Half the distance between neighbours of a type at its smallest numbers.
double half_smallest(DType dtype) {
  return dtype == DType::kF64 ? 0x1p-1074 : dtype == DType::kF16 ? 0x1p-25 : 0x1p-126;
}

// Relative error of a sum of n terms, in unit roundoffs, after which kBoundFactor counts
// deviations: sqrt(n) by the probabilistic model, and one for the product in each term.
double sum_roundings(int64_t n) { return 1.0 + std::sqrt(static_cast<double>(n)); }

double abs_dot(const double* a, const double* b, int64_t count) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < count; ++d) {
    sum += std::fabs(a[d] * b[d]);
  }
  return sum;
}

void add_abs(double factor, const double* source, int64_t count, double* target) {
#pragma omp simd
  for (int64_t d = 0; d < count; ++d) {
    target[d] += factor * std::fabs(source[d]);
  }
}

void add_square(double factor, const double* source, int64_t count, double* target) {
#pragma omp simd
  for (int64_t d = 0; d < count; ++d) {
    target[d] += factor * factor * source[d] * source[d];
  }
}

// A bound under accumulation: systematic parts add up, independent roundings add in squares.
struct Accumulator {
  std::vector<double> linear;
  std::vector<double> square;

  void resize(size_t size) {
    linear.assign(size, 0.0);
    square.assign(size, 0.0);
  }
  double total(size_t at) const { return linear[at] + std::sqrt(square[at]); }
};

class BoundBuilder {
 public:
  BoundBuilder(const AttentionProblem& problem, const AttentionArgs& args)
      : problem_(problem),
        args_(args),
        u_(unit_roundoff(problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32)),
        // Kernels may round P and dS to a 16-bit compute type before the second products.
        u_operand_(size_of(problem.dtype) == 2 ? unit_roundoff(problem.dtype) : 0.0),
        floor_(problem.dtype == DType::kF64 ? kProbabilityFloorF64 : kProbabilityFloorF32),
        tiny_(problem.dtype == DType::kF64 ? 0x1p-1022 : 0x1p-126) {
    for (int output = 0; output < kOutputCount; ++output) {
      if (is_written(problem, static_cast<Output>(output))) {
        sums_[static_cast<size_t>(output)].resize(
            static_cast<size_t>(flat_size(problem, static_cast<Output>(output))));
      }
    }
  }

  void run();
  OutputBounds finish(const OutputValues& oracle) const;

 private:
  // Absolute error of a logit, and what backward needs of the softcap.
  struct KeyError {
    double logit = 0.0;
    double cap_slope = 0.0;
  };
  struct RowGradient;
  // Magnitudes and absolute errors of one (row, key) pair.
  struct PairError {
    double p = 0.0;       // error of the probability
    double dlogit = 0.0;  // |dS|
    double dlogit_error = 0.0;
    double dproduct = 0.0;  // |scale * dS * softcap slope|
    double dproduct_error = 0.0;
  };

  void row(const SequenceExtent& extent, const RowId& id, KeyValueRows* rows);
  void forward_row(const SequenceExtent& extent, const RowId& id, KeyValueRows* rows);
  void backward_row(const SequenceExtent& extent, const RowId& id, KeyValueRows* rows);
  KeyError key_error(const double* q, const double* k, const RowId& id,
                     const ScoredKey& entry) const;
  RowGradient row_gradient(const SequenceExtent& extent, const RowId& id, KeyValueRows* rows) const;
  PairError pair_error(const RowGradient& row, size_t n, const RowId& id, KeyValueRows* rows) const;
  void add_terms(Output output, int64_t flat, double error, double operand, const double* vector,
                 int64_t count);
  void add_bias(const SequenceExtent& extent, const RowId& id, int64_t key, const PairError& pair);
  void add_sink(const SequenceExtent& extent, const RowId& id, const RowGradient& row);
  double slope(const RowId& id) const;
  double delta_error(const std::vector<double>& dout, const std::vector<double>& out) const;
  double* at(Output output, int64_t flat) {
    return sums_[static_cast<size_t>(output)].linear.data() + flat;
  }
  bool written(Output output) const { return is_written(problem_, output); }
  DType type_of(Output output) const;

  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  double u_;
  double u_operand_;
  double floor_;  // of probabilities
  double tiny_;   // smallest normal number
  std::array<Accumulator, kOutputCount> sums_;
  // Of the row at hand.
  std::vector<double> q_;
  std::vector<ScoredKey> keys_;
  RowSoftmax softmax_;
};

double BoundBuilder::slope(const RowId& id) const {
  const ScoreArgs& score = args_.score;
  return score.slopes == nullptr
             ? 0.0
             : score.slopes[id.b * score.slope_batch + id.head * score.slope_head];
}

BoundBuilder::KeyError BoundBuilder::key_error(const double* q, const double* k, const RowId& id,
                                               const ScoredKey& entry) const {
  const ScoreArgs& score = args_.score;
  const int64_t dim = args_.shape.head_dim;
  const double magnitude = std::fabs(score.scale) * abs_dot(q, k, dim);
  const double product = u_ * ((kProductRoundings + sum_roundings(dim)) * magnitude);
  KeyError error;
  double capped = entry.product;
  double cap_error = product;
  if (score.softcap > 0.0) {
    const double t = std::tanh(entry.product / score.softcap);
    capped = score.softcap * t;
    // tanh is accurate relative to its value; far out its slope damps the product's error.
    cap_error = product * entry.cap_slope + u_ * kTanhRoundings * std::fabs(capped);
    error.cap_slope = 2.0 * std::fabs(t) * entry.cap_slope * product / score.softcap +
                      u_ * (kTanhRoundings * 2.0 * t * t + 1.0);
  }
  const double distance_term = std::fabs(slope(id) * entry.distance);
  // Each addition rounds its result; partial sums are at most the sum of magnitudes.
  double additions = 0.0;
  if (score.bias.data != nullptr) {
    additions += std::fabs(capped + entry.bias) + std::fabs(entry.bias);
  }
  if (score.slopes != nullptr) {
    additions += std::fabs(entry.logit) + 2.0 * distance_term;
  }
  error.logit = cap_error + u_ * additions;
  return error;
}

void BoundBuilder::row(const SequenceExtent& extent, const RowId& id, KeyValueRows* rows) {
  q_ = load_row(args_.q, query_offset(args_.q, extent, id.b, id.i, id.head), args_.shape.head_dim);
  keys_ = reference::score_row(args_, extent, id, q_.data(), rows);
  softmax_ = reference::softmax_row(args_, id, &keys_);
  if (softmax_.lse == -INFINITY) {
    return;
  }
  if (problem_.op == Op::kForward) {
    forward_row(extent, id, rows);
  } else {
    backward_row(extent, id, rows);
  }
}

// O = sum_j p_j v_j with p_j = e_j / l: errors of e_j are their own, the error of l is common.
void BoundBuilder::forward_row(const SequenceExtent& extent, const RowId& id, KeyValueRows* rows) {
  const ShapeArgs& shape = args_.shape;
  const double sums = sum_roundings(static_cast<int64_t>(keys_.size()));
  double max = args_.score.sinks == nullptr
                   ? -INFINITY
                   : static_cast<double>(args_.score.sinks[id.head * args_.score.sink_stride]);
  const double sink = max;
  for (const ScoredKey& entry : keys_) {
    max = std::max(max, entry.logit);
  }
  // The exponent l_j - m in base 2: rounding of l_j, of m, of their conversion and difference.
  const auto exponent_error = [&](double logit) {
    return u_ * (2.0 * (std::fabs(logit) + std::fabs(max)) + kExpRoundings);
  };
  std::vector<double> relative(keys_.size());
  double common = 0.0;  // relative error of l
  for (size_t n = 0; n < keys_.size(); ++n) {
    if (keys_[n].weight == 0.0) {
      continue;
    }
    const KeyError error = key_error(q_.data(), rows->key(keys_[n].key), id, keys_[n]);
    relative[n] = error.logit + exponent_error(keys_[n].logit);
    common += keys_[n].weight * relative[n];
  }
  if (softmax_.sink_weight > 0.0) {
    common += softmax_.sink_weight * exponent_error(sink);
  }
  common += u_ * sums + floor_ * static_cast<double>(keys_.size());
  const int64_t flat_row = flat_query_row(args_, extent, id.b, id.i);
  if (written(Output::kLse)) {
    const double saturated =
        problem_.dtype == DType::kF64 ? 0.0 : std::fabs(softmax_.lse) - kLargestScoreF32;
    *at(Output::kLse, id.head * flat_query_rows(args_) + flat_row) =
        common + u_ * (kLogRoundings + 2.0 * std::fabs(softmax_.lse) + 2.0 * std::fabs(max)) +
        std::max(saturated, 0.0);
  }
  const int64_t flat = (flat_row * shape.heads_q + id.head) * shape.head_dim_v;
  for (size_t n = 0; n < keys_.size(); ++n) {
    const ScoredKey& entry = keys_[n];
    if (entry.kept == 0.0) {
      continue;
    }
    const double weight = entry.weight * entry.kept;
    const double error = weight * (relative[n] + common + u_ * (sums + 2.0)) + entry.kept * floor_;
    const double* v = rows->value(entry.key);
    add_terms(Output::kOut, flat, error, weight, v, shape.head_dim_v);
  }
}

// delta = dot(dO, O) with O as stored: its roundings are independent, relative for normal numbers
// and absolute below them (fp16 has few exponents).
double BoundBuilder::delta_error(const std::vector<double>& dout,
                                 const std::vector<double>& out) const {
  const int64_t dim = args_.shape.head_dim_v;
  double squares = 0.0;
  for (size_t d = 0; d < out.size(); ++d) {
    const double rounding = std::max(unit_roundoff(problem_.out_dtype) * std::fabs(out[d]),
                                     out[d] == 0.0 ? 0.0 : half_smallest(problem_.out_dtype));
    squares += dout[d] * dout[d] * rounding * rounding;
  }
  return std::sqrt(squares) + u_ * sum_roundings(dim) * abs_dot(dout.data(), out.data(), dim);
}

// What backward knows of a row before it visits the row's keys.
struct BoundBuilder::RowGradient {
  std::vector<double> dout;  // (Dv)
  std::vector<double> dp;    // gradient of each visible key's probability
  double dlse = 0.0;
  double delta = 0.0;
  double delta_error = 0.0;
  // P = exp(l - LSE) with the LSE as stored: one rounding of LSE, one of its conversion to base 2,
  // one of the difference; near LSE = -5e5 this is several percent in fp32.
  double lse_error = 0.0;
};

BoundBuilder::RowGradient BoundBuilder::row_gradient(const SequenceExtent& extent, const RowId& id,
                                                     KeyValueRows* rows) const {
  const int64_t dim = args_.shape.head_dim_v;
  const GradientArgs& grad = args_.grad;
  RowGradient row;
  row.dout = load_row(grad.dout, query_offset(grad.dout, extent, id.b, id.i, id.head), dim);
  if (grad.dlse.data != nullptr) {
    row.dlse = reference::load(grad.dlse.data, grad.dlse.dtype,
                               reference::row_offset(grad.dlse, extent, id.b, id.i, id.head));
  }
  std::vector<double> out(static_cast<size_t>(dim), 0.0);
  row.dp.resize(keys_.size());
  for (size_t n = 0; n < keys_.size(); ++n) {
    const ScoredKey& entry = keys_[n];
    if (entry.kept != 0.0) {
      const double* v = rows->value(entry.key);
      reference::add_scaled(entry.weight * entry.kept, v, dim, out.data());
      row.dp[n] = entry.kept * reference::dot(row.dout.data(), v, dim);
    }
    row.delta += entry.weight * row.dp[n];
  }
  row.delta_error = delta_error(row.dout, out) + 2.0 * u_ * std::fabs(row.dlse);
  row.lse_error = u_ * (4.0 * std::fabs(softmax_.lse) + kExpRoundings);
  return row;
}

// Error of dS for the n-th visible key; `dlogit` is dS itself.
BoundBuilder::PairError BoundBuilder::pair_error(const RowGradient& row, size_t n, const RowId& id,
                                                 KeyValueRows* rows) const {
  const int64_t dim = args_.shape.head_dim_v;
  const ScoredKey& entry = keys_[n];
  const KeyError key = key_error(q_.data(), rows->key(entry.key), id, entry);
  PairError pair;
  pair.p = entry.weight * (key.logit + 2.0 * u_ * std::fabs(entry.logit) + row.lse_error) + floor_;
  double dp_error = 0.0;
  if (entry.kept != 0.0) {
    dp_error = entry.kept * u_ * (1.0 + sum_roundings(dim)) *
               abs_dot(row.dout.data(), rows->value(entry.key), dim);
  }
  const double inner = row.dp[n] - row.delta + row.dlse;
  const double dlogit = std::fabs(entry.weight * inner);
  pair.dlogit = dlogit;
  pair.dlogit_error = pair.p * std::fabs(inner) + 2.0 * u_ * dlogit +
                      entry.weight * (dp_error + row.delta_error +
                                      u_ * (std::fabs(row.dp[n]) + 2.0 * std::fabs(row.delta)));
  const double scale = std::fabs(args_.score.scale);
  pair.dproduct = scale * dlogit * entry.cap_slope;
  pair.dproduct_error = scale * (pair.dlogit_error * entry.cap_slope + dlogit * key.cap_slope) +
                        2.0 * u_ * pair.dproduct;
  return pair;
}

void BoundBuilder::backward_row(const SequenceExtent& extent, const RowId& id, KeyValueRows* rows) {
  const ShapeArgs& shape = args_.shape;
  const int64_t group = shape.heads_q / shape.heads_kv;
  const RowGradient row = row_gradient(extent, id, rows);
  const double row_sums = sum_roundings(static_cast<int64_t>(keys_.size()));
  const double column_sums = sum_roundings(extent.q_len * group);
  const int64_t flat_q =
      (flat_query_row(args_, extent, id.b, id.i) * shape.heads_q + id.head) * shape.head_dim;
  const bool ragged_k = args_.sequence.cu_k.data != nullptr;
  const int64_t first_key = ragged_k ? extent.k_begin : id.b * shape.seqlen_k;
  for (size_t n = 0; n < keys_.size(); ++n) {
    const ScoredKey& entry = keys_[n];
    const PairError pair = pair_error(row, n, id, rows);
    const int64_t flat_k = (first_key + entry.key) * shape.heads_kv + id.head / group;
    if (written(Output::kDq)) {
      add_terms(Output::kDq, flat_q, pair.dproduct_error + row_sums * u_ * pair.dproduct,
                pair.dproduct, rows->key(entry.key), shape.head_dim);
    }
    if (written(Output::kDk)) {
      add_terms(Output::kDk, flat_k * shape.head_dim,
                pair.dproduct_error + column_sums * u_ * pair.dproduct, pair.dproduct, q_.data(),
                shape.head_dim);
    }
    if (written(Output::kDv) && entry.kept != 0.0) {
      add_terms(Output::kDv, flat_k * shape.head_dim_v,
                entry.kept * (pair.p + (column_sums + 2.0) * u_ * entry.weight),
                entry.kept * entry.weight, row.dout.data(), shape.head_dim_v);
    }
    if (written(Output::kDbias)) {
      add_bias(extent, id, entry.key, pair);
    }
    if (written(Output::kDslopes)) {
      const int64_t pairs = extent.q_len * static_cast<int64_t>(keys_.size());
      const int64_t b = problem_.score.alibi_per_batch ? id.b : 0;
      *at(Output::kDslopes, b * shape.heads_q + id.head) +=
          entry.distance * (pair.dlogit_error + (1.0 + sum_roundings(pairs)) * u_ * pair.dlogit);
    }
  }
  if (written(Output::kDsinks)) {
    add_sink(extent, id, row);
  }
}

// One term `error * |vector|` of a row of an output; kernels may have rounded `operand` to 16 bits.
void BoundBuilder::add_terms(Output output, int64_t flat, double error, double operand,
                             const double* vector, int64_t count) {
  add_abs(error, vector, count, at(output, flat));
  if (u_operand_ > 0.0) {
    add_square(u_operand_ * operand, vector, count,
               sums_[static_cast<size_t>(output)].square.data() + flat);
  }
}

void BoundBuilder::add_bias(const SequenceExtent& extent, const RowId& id, int64_t key,
                            const PairError& pair) {
  const ShapeArgs& shape = args_.shape;
  const BroadcastShape& bias = problem_.score.bias;
  const int64_t heads = bias.heads ? shape.heads_q : 1;
  const int64_t positions = bias.rows ? shape.seqlen_q : 1;
  const int64_t width = bias.cols ? shape.seqlen_k : 1;
  const int64_t terms = (bias.batch ? 1 : shape.batch) * (bias.heads ? 1 : shape.heads_q) *
                        (bias.rows ? 1 : extent.q_len) * (bias.cols ? 1 : extent.k_len);
  const int64_t head = (bias.batch ? id.b : 0) * heads + (bias.heads ? id.head : 0);
  const int64_t row = head * positions + (bias.rows ? id.i : 0);
  *at(Output::kDbias, row * width + (bias.cols ? key : 0)) +=
      pair.dlogit_error + sum_roundings(terms) * u_ * pair.dlogit;
}

void BoundBuilder::add_sink(const SequenceExtent& extent, const RowId& id, const RowGradient& row) {
  const double sink = args_.score.sinks[id.head * args_.score.sink_stride];
  const double p_error =
      softmax_.sink_weight * (2.0 * u_ * std::fabs(sink) + row.lse_error) + floor_;
  const double sums = 2.0 + sum_roundings(extent.q_len * args_.shape.batch);
  *at(Output::kDsinks, id.head) +=
      p_error * std::fabs(row.dlse - row.delta) +
      softmax_.sink_weight *
          (row.delta_error + sums * u_ * (std::fabs(row.delta) + std::fabs(row.dlse)));
}

void BoundBuilder::run() {
  const int64_t group = args_.shape.heads_q / args_.shape.heads_kv;
  for (int64_t b = 0; b < args_.shape.batch; ++b) {
    const SequenceExtent extent = sequence_extent(args_, b);
    for (int64_t head_kv = 0; head_kv < args_.shape.heads_kv; ++head_kv) {
      KeyValueRows rows(args_, extent, b, head_kv);
      for (int64_t head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        for (int64_t i = 0; i < extent.q_len; ++i) {
          row(extent, {b, head, i}, &rows);
        }
      }
    }
  }
}

DType BoundBuilder::type_of(Output output) const {
  switch (output) {
    case Output::kOut:
      return problem_.out_dtype;
    case Output::kLse:
      return problem_.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    case Output::kDbias:
      return problem_.score.bias.dtype;
    case Output::kDsinks:
    case Output::kDslopes:
      return DType::kF32;
    default:
      return problem_.dtype;
  }
}

OutputBounds BoundBuilder::finish(const OutputValues& oracle) const {
  OutputBounds bounds;
  for (size_t n = 0; n < kOutputCount; ++n) {
    const Accumulator& sum = sums_[n];
    const DType dtype = type_of(static_cast<Output>(n));
    bounds[n].bound.resize(sum.linear.size());
    bounds[n].rounding.resize(sum.linear.size());
    for (size_t element = 0; element < sum.linear.size(); ++element) {
      const double total = sum.total(element);
      bounds[n].bound[element] = total;
      if (total > 0.0) {  // else nothing contributes and the result is exact
        bounds[n].rounding[element] =
            unit_roundoff(dtype) * (std::fabs(oracle[n][element]) + kBoundFactor * total) +
            half_smallest(dtype) + tiny_;
      }
    }
  }
  return bounds;
}

}  // namespace

OutputBounds error_bounds(const AttentionProblem& problem, const AttentionArgs& args,
                          const OutputValues& oracle) {
  BoundBuilder builder(problem, args);
  builder.run();
  return builder.finish(oracle);
}

}  // namespace rowmax::testkit
