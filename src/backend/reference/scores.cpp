#include "backend/reference/scores.h"

#include <cmath>
#include <limits>

#include "core/half.h"

namespace rowmax::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// fp32 with rounding to odd: the last bit tells that something was cut off, so that a second
// rounding to a 16-bit type gives what one rounding from fp64 would give.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) {
    return nearest;
  }
  const uint32_t bits = float_to_bits(nearest);
  if ((bits & 1u) != 0) {
    return nearest;
  }
  return bits_to_float(std::fabs(static_cast<double>(nearest)) > std::fabs(value) ? bits - 1
                                                                                  : bits + 1);
}

bool is_visible(const AttentionArgs& args, const SequenceExtent& extent, const RowId& row,
                int64_t j) {
  const ScoreArgs& score = args.score;
  if (score.mask.data != nullptr) {
    const BroadcastArg& mask = score.mask;
    const int64_t index =
        row.b * mask.batch + row.head * mask.head + row.i * mask.row + j * mask.col;
    if (static_cast<const uint8_t*>(mask.data)[index] == 0) {
      return false;
    }
  }
  if (score.documents_q.data != nullptr) {
    const DocumentArg& q = score.documents_q;
    const DocumentArg& k = score.documents_k;
    return q.data[row.b * q.batch + (extent.q_begin + row.i) * q.seq] ==
           k.data[row.b * k.batch + (extent.k_begin + j) * k.seq];
  }
  return true;
}

}  // namespace

double load(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<const double*>(data)[index];
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return bf16_to_float(static_cast<const uint16_t*>(data)[index]);
    case DType::kF16:
      return f16_to_float(static_cast<const uint16_t*>(data)[index]);
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

void store(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(data)[index] = value;
      return;
    case DType::kF32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[index] = float_to_bf16(round_to_odd(value));
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = float_to_f16(round_to_odd(value));
      return;
    default:
      return;
  }
}

int64_t query_offset(const TensorArg& tensor, const SequenceExtent& extent, int64_t b, int64_t i,
                     int64_t head) {
  return b * tensor.batch + (extent.q_begin + i) * tensor.seq + head * tensor.head;
}

int64_t key_offset(const AttentionArgs& args, const TensorArg& tensor, const SequenceExtent& extent,
                   int64_t b, int64_t j, int64_t head_kv) {
  const SequenceArgs& sequence = args.sequence;
  if (sequence.block_table == nullptr) {
    return b * tensor.batch + (extent.k_begin + j) * tensor.seq + head_kv * tensor.head;
  }
  const int64_t page = sequence.block_table[b * sequence.table_stride + j / sequence.page_size];
  return page * tensor.batch + (j % sequence.page_size) * tensor.seq + head_kv * tensor.head;
}

int64_t row_offset(const RowArg& tensor, const SequenceExtent& extent, int64_t b, int64_t i,
                   int64_t head) {
  return b * tensor.batch + head * tensor.head + (extent.q_begin + i) * tensor.seq;
}

std::vector<double> load_row(const TensorArg& tensor, int64_t offset, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t d = 0; d < count; ++d) {
    values[static_cast<size_t>(d)] = load(tensor.data, tensor.dtype, offset + d);
  }
  return values;
}

double dot(const double* a, const double* b, int64_t count) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t d = 0; d < count; ++d) {
    sum += a[d] * b[d];
  }
  return sum;
}

void add_scaled(double factor, const double* source, int64_t count, double* target) {
#pragma omp simd
  for (int64_t d = 0; d < count; ++d) {
    target[d] += factor * source[d];
  }
}

KeyValueRows::KeyValueRows(const AttentionArgs& args, const SequenceExtent& extent, int64_t b,
                           int64_t head_kv)
    : args_(args),
      extent_(extent),
      b_(b),
      head_kv_(head_kv),
      keys_(static_cast<size_t>(extent.k_len * args.shape.head_dim)),
      values_(static_cast<size_t>(extent.k_len * args.shape.head_dim_v)),
      key_loaded_(static_cast<size_t>(extent.k_len)),
      value_loaded_(static_cast<size_t>(extent.k_len)) {}

const double* KeyValueRows::key(int64_t j) {
  return row(args_.k, args_.shape.head_dim, j, &keys_, &key_loaded_);
}

const double* KeyValueRows::value(int64_t j) {
  return row(args_.v, args_.shape.head_dim_v, j, &values_, &value_loaded_);
}

const double* KeyValueRows::row(const TensorArg& tensor, int64_t width, int64_t j,
                                std::vector<double>* rows, std::vector<bool>* loaded) const {
  double* values = rows->data() + j * width;
  if (!(*loaded)[static_cast<size_t>(j)]) {
    const int64_t offset = key_offset(args_, tensor, extent_, b_, j, head_kv_);
    for (int64_t d = 0; d < width; ++d) {
      values[d] = load(tensor.data, tensor.dtype, offset + d);
    }
    (*loaded)[static_cast<size_t>(j)] = true;
  }
  return values;
}

std::vector<ScoredKey> score_row(const AttentionArgs& args, const SequenceExtent& extent,
                                 const RowId& row, const double* q, KeyValueRows* rows) {
  const ScoreArgs& score = args.score;
  const RowBand band = resolve_band(score.band, extent.q_len, extent.k_len);
  const int64_t shift = score.band.top_left ? 0 : extent.k_len - extent.q_len;
  const BroadcastArg& bias = score.bias;
  const int64_t head_bh = row.b * args.shape.heads_q + row.head;
  std::vector<ScoredKey> keys;
  for (int64_t j = 0; j < extent.k_len; ++j) {
    const bool below = band.has_lo && j < row.i + band.lo;
    const bool above = band.has_hi && j > row.i + band.hi;
    if (below || above || !is_visible(args, extent, row, j)) {
      continue;
    }
    ScoredKey entry;
    entry.key = j;
    if (bias.data != nullptr) {
      entry.bias =
          load(bias.data, bias.dtype,
               row.b * bias.batch + row.head * bias.head + row.i * bias.row + j * bias.col);
      if (entry.bias == -kInfinity) {  // hides the key, whatever its K and V hold
        continue;
      }
    }
    entry.product = score.scale * dot(q, rows->key(j), args.shape.head_dim);
    entry.logit = entry.product;
    if (score.softcap > 0.0) {
      const double t = std::tanh(entry.product / score.softcap);
      entry.logit = score.softcap * t;
      entry.cap_slope = 1.0 - t * t;
    }
    entry.logit += entry.bias;
    if (score.slopes != nullptr) {
      entry.distance = std::fabs(static_cast<double>(row.i + shift - j));
      entry.logit -= static_cast<double>(
                         score.slopes[row.b * score.slope_batch + row.head * score.slope_head]) *
                     entry.distance;
    }
    if (args.dropout.on) {
      entry.kept = dropout_keeps(args.dropout, head_bh, row.i, j)
                       ? static_cast<double>(args.dropout.keep_scale)
                       : 0.0;
    }
    keys.push_back(entry);
  }
  return keys;
}

RowSoftmax softmax_row(const AttentionArgs& args, const RowId& row, std::vector<ScoredKey>* keys) {
  double sink = -kInfinity;
  if (args.score.sinks != nullptr) {
    sink = static_cast<double>(args.score.sinks[row.head * args.score.sink_stride]);
  }
  double max = sink;
  bool undefined = std::isnan(sink);
  for (const ScoredKey& entry : *keys) {
    undefined = undefined || std::isnan(entry.logit) || entry.logit == kInfinity;
    max = entry.logit > max ? entry.logit : max;
  }
  RowSoftmax result;
  if (undefined) {
    max = std::numeric_limits<double>::quiet_NaN();
  } else if (max == -kInfinity) {
    result.lse = -kInfinity;
    return result;
  } else if (max == kInfinity) {  // the sink takes all
    result.sink_weight = 1.0;
    result.lse = kInfinity;
    return result;
  }
  double sum = std::exp(sink - max);
  for (const ScoredKey& entry : *keys) {
    sum += std::exp(entry.logit - max);
  }
  for (ScoredKey& entry : *keys) {
    entry.weight = std::exp(entry.logit - max) / sum;
  }
  result.sink_weight = std::exp(sink - max) / sum;
  result.lse = max + std::log(sum);
  return result;
}

}  // namespace rowmax::reference
