// Values of a case's tensors. Memory starts as NaN; only what may reach a result is overwritten.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/reference/registry.h"
#include "backend/reference/scores.h"
#include "testkit/inputs.h"

namespace rowmax::testkit {
namespace {

using reference::key_offset;
using reference::query_offset;
using reference::row_offset;
using reference::store;

// Standard deviation of Q and K for InputKind::kLarge: logits of a few hundred.
constexpr double kLargeDeviation = 6.0;
constexpr double kEqualValue = 32.0;
constexpr double kOutlierFactor = 20.0;

// The logit that every pair of a case has, apart from small noise; 0 for the other kinds.
double target_logit(InputKind kind) {
  return kind == InputKind::kNear100 ? -100.0 : kind == InputKind::kMinus5e5 ? -5e5 : 0.0;
}

// One row of Q or K. `is_query` tells the sides apart, `chosen` marks the key of kOneKey.
void make_row(const Case& spec, bool is_query, bool chosen, Random* random,
              std::vector<double>* row) {
  for (double& value : *row) {
    value = random->normal();
  }
  const double scale = spec.problem.effective_scale();
  const double target = target_logit(spec.inputs);
  if (target != 0.0) {
    for (double& value : *row) {
      value *= 0.1;
    }
    const double size = std::sqrt(std::fabs(target / scale));
    (*row)[0] = is_query ? size : target / scale / size;
    return;
  }
  switch (spec.inputs) {
    case InputKind::kLarge:
      for (double& value : *row) {
        value *= kLargeDeviation;
      }
      break;
    case InputKind::kEqual:
      row->assign(row->size(), kEqualValue);
      break;
    case InputKind::kOneKey:
      if (is_query || chosen) {
        (*row)[0] = is_query ? 8.0 : 5.0 / scale;
      }
      break;
    case InputKind::kOutlier:
      for (size_t d = 1; d < row->size(); d += 17) {
        (*row)[d] *= kOutlierFactor;
      }
      break;
    default:
      break;
  }
}

// Spoils a row of the sequence that holds NaN.
void spoil_row(const Case& spec, int64_t batch, std::vector<double>* row) {
  if (spec.inputs == InputKind::kNanSequence && batch == 1) {
    row->assign(row->size(), std::numeric_limits<double>::quiet_NaN());
  }
}

void store_values(const TensorArg& tensor, int64_t offset, const std::vector<double>& row) {
  for (size_t d = 0; d < row.size(); ++d) {
    store(tensor.data, tensor.dtype, offset + static_cast<int64_t>(d), row[d]);
  }
}

// The most negative finite value that both the bias's type and fp32 arithmetic hold.
double lowest_bias(DType dtype) {
  return dtype == DType::kF16    ? -65504.0
         : dtype == DType::kBF16 ? -0x1.fep127
                                 : -static_cast<double>(std::numeric_limits<float>::max());
}

}  // namespace

// Without a row axis the mask is a padding mask: a visible prefix with a few holes. With one, rows
// are of three sorts: nothing visible, the second half only (leading tiles empty), three quarters.
void CaseInputs::fill_mask() {
  const BroadcastArg& mask = args_.score.mask;
  if (mask.data == nullptr) {
    return;
  }
  const Sizes& s = spec_.problem.sizes;
  auto* bytes = static_cast<uint8_t*>(mask.data);
  const int64_t cols = mask.full_cols ? s.seqlen_k : 1;
  for (int64_t b = 0; b < (mask.full_batch ? s.batch : 1); ++b) {
    for (int64_t h = 0; h < (mask.full_heads ? s.heads_q : 1); ++h) {
      const int64_t prefix = random_.integer(0, cols);
      for (int64_t i = 0; i < (mask.full_rows ? s.seqlen_q : 1); ++i) {
        const int64_t sort = random_.integer(0, 7);
        for (int64_t j = 0; j < cols; ++j) {
          bool visible = random_.chance(mask.full_cols ? 0.75 : 0.9);
          if (mask.full_cols && !mask.full_rows) {
            visible = j < prefix && !random_.chance(0.05);
          } else if (mask.full_cols && sort == 0) {
            visible = false;
          } else if (mask.full_cols && sort <= 2) {
            visible = j >= cols / 2;
          }
          const uint8_t nonzero = random_.chance(0.5) ? 1 : 0xff;
          bytes[b * mask.batch + h * mask.head + i * mask.row + j * mask.col] =
              visible ? nonzero : 0;
        }
      }
    }
  }
}

// Documents of random length, numbered upwards on both sides; the two sides' cuts differ.
void CaseInputs::fill_documents() {
  const ScoreArgs& score = args_.score;
  if (score.documents_q.data == nullptr) {
    return;
  }
  for (int64_t b = 0; b < args_.shape.batch; ++b) {
    const SequenceExtent extent = sequence_extent(args_, b);
    const auto fill = [&](const DocumentArg& documents, int64_t begin, int64_t length) {
      auto* ids = const_cast<int32_t*>(documents.data);
      int32_t id = 0;
      for (int64_t n = 0; n < length; ++n) {
        id += random_.chance(1.0 / 24.0) ? 1 : 0;
        ids[b * documents.batch + (begin + n) * documents.seq] = id;
      }
    };
    fill(score.documents_q, extent.q_begin, extent.q_len);
    fill(score.documents_k, extent.k_begin, extent.k_len);
  }
}

// Only pairs inside the lengths and the band get a value.
void CaseInputs::fill_bias() {
  const BroadcastArg& bias = args_.score.bias;
  if (bias.data == nullptr) {
    return;
  }
  const Sizes& s = spec_.problem.sizes;
  const double lowest = lowest_bias(bias.dtype);
  for (int64_t b = 0; b < s.batch; ++b) {
    const SequenceExtent extent = sequence_extent(args_, b);
    const RowBand band = resolve_band(args_.score.band, extent.q_len, extent.k_len);
    for (int64_t h = 0; h < (bias.full_heads ? s.heads_q : 1); ++h) {
      for (int64_t i = 0; i < extent.q_len; ++i) {
        const KeyRange keys = row_keys(band, i, extent.k_len);
        for (int64_t j = keys.begin; j < keys.end; ++j) {
          double value = random_.normal();
          if (bias.full_cols && random_.chance(1.0 / 32.0)) {
            value = -std::numeric_limits<double>::infinity();
          } else if (spec_.inputs == InputKind::kLarge && random_.chance(1.0 / 8.0)) {
            value = lowest;
          }
          store(bias.data, bias.dtype, b * bias.batch + h * bias.head + i * bias.row + j * bias.col,
                value);
        }
      }
    }
  }
}

void CaseInputs::fill_per_head() {
  const ScoreArgs& score = args_.score;
  for (int64_t h = 0; h < args_.shape.heads_q; ++h) {
    if (score.sinks != nullptr) {
      const_cast<float*>(score.sinks)[h * score.sink_stride] =
          static_cast<float>(random_.normal() + target_logit(spec_.inputs));
    }
    for (int64_t b = 0; score.slopes != nullptr && b < args_.shape.batch; ++b) {
      const double exponent =
          -8.0 * static_cast<double>(h + 1) / static_cast<double>(args_.shape.heads_q);
      const_cast<float*>(score.slopes)[b * score.slope_batch + h * score.slope_head] =
          static_cast<float>(std::exp2(exponent) * (0.5 + random_.uniform()));
    }
  }
}

void CaseInputs::fill_queries() {
  const ShapeArgs& shape = args_.shape;
  const GradientArgs& grad = args_.grad;
  std::vector<double> q(static_cast<size_t>(shape.head_dim));
  std::vector<double> dout(static_cast<size_t>(shape.head_dim_v));
  for (int64_t b = 0; b < shape.batch; ++b) {
    const SequenceExtent extent = sequence_extent(args_, b);
    for (int64_t h = 0; h < shape.heads_q; ++h) {
      for (int64_t i = 0; i < extent.q_len; ++i) {
        make_row(spec_, true, false, &random_, &q);
        spoil_row(spec_, b, &q);
        store_values(args_.q, query_offset(args_.q, extent, b, i, h), q);
        if (spec_.problem.op == Op::kForward) {
          continue;
        }
        std::generate(dout.begin(), dout.end(), [this] { return random_.normal(); });
        store_values(grad.dout, query_offset(grad.dout, extent, b, i, h), dout);
        if (grad.dlse.data != nullptr) {
          store(grad.dlse.data, grad.dlse.dtype, row_offset(grad.dlse, extent, b, i, h),
                random_.normal());
        }
      }
    }
  }
}

bool CaseInputs::hidden_by_padding(int64_t b, int64_t head_kv, int64_t j) const {
  const BroadcastArg& mask = args_.score.mask;
  if (mask.data == nullptr || mask.full_rows) {
    return false;
  }
  const int64_t group = args_.shape.heads_q / args_.shape.heads_kv;
  for (int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
    if (static_cast<const uint8_t*>(mask.data)[b * mask.batch + h * mask.head + j * mask.col] !=
        0) {
      return false;
    }
  }
  return true;
}

void CaseInputs::fill_keys() {
  const ShapeArgs& shape = args_.shape;
  std::vector<double> k(static_cast<size_t>(shape.head_dim));
  std::vector<double> v(static_cast<size_t>(shape.head_dim_v));
  for (int64_t b = 0; b < shape.batch; ++b) {
    const SequenceExtent extent = sequence_extent(args_, b);
    for (int64_t h = 0; h < shape.heads_kv; ++h) {
      const int64_t chosen = extent.k_len > 0 ? random_.integer(0, extent.k_len - 1) : 0;
      for (int64_t j = 0; j < extent.k_len; ++j) {
        make_row(spec_, false, j == chosen, &random_, &k);
        std::generate(v.begin(), v.end(), [this] { return random_.normal(); });
        spoil_row(spec_, b, &k);
        spoil_row(spec_, b, &v);
        if (!hidden_by_padding(b, h, j)) {
          store_values(args_.k, key_offset(args_, args_.k, extent, b, j, h), k);
          store_values(args_.v, key_offset(args_, args_.v, extent, b, j, h), v);
        }
      }
    }
  }
}

void CaseInputs::fill_forward_results() {
  int64_t next_item = 0;
  KernelLaunch launch;
  launch.args = &args_;
  launch.next_item = &next_item;
  reference::run_forward(launch, 0);
}

}  // namespace rowmax::testkit
