#include "testkit/outputs.h"

#include "backend/reference/scores.h"
#include "kernel_api/kernel.h"
#include "kernel_api/layout.h"

namespace rowmax::testkit {
namespace {

using reference::key_offset;
using reference::query_offset;
using reference::row_offset;

constexpr Output kAllOutputs[] = {Output::kOut, Output::kLse,   Output::kDq,     Output::kDk,
                                  Output::kDv,  Output::kDbias, Output::kDsinks, Output::kDslopes};

int64_t key_rows(const AttentionProblem& problem) {
  return problem.storage.key == Source::kRagged ? problem.storage.total_k
                                                : problem.sizes.batch * problem.sizes.seqlen_k;
}

void add_query_rows(const AttentionArgs& args, const TensorArg& tensor, int64_t width,
                    std::vector<OutputRow>* rows) {
  for (int64_t b = 0; b < args.shape.batch; ++b) {
    const SequenceExtent extent = sequence_extent(args, b);
    for (int64_t i = 0; i < extent.q_len; ++i) {
      for (int64_t h = 0; h < args.shape.heads_q; ++h) {
        const int64_t flat_row = flat_query_row(args, extent, b, i);
        rows->push_back({tensor.data, tensor.dtype, query_offset(tensor, extent, b, i, h), 1, width,
                         (flat_row * args.shape.heads_q + h) * width, b, h, i});
      }
    }
  }
}

void add_lse_rows(const AttentionArgs& args, std::vector<OutputRow>* rows) {
  for (int64_t b = 0; b < args.shape.batch; ++b) {
    const SequenceExtent extent = sequence_extent(args, b);
    for (int64_t h = 0; h < args.shape.heads_q; ++h) {
      for (int64_t i = 0; i < extent.q_len; ++i) {
        rows->push_back({args.lse.data, args.lse.dtype, row_offset(args.lse, extent, b, i, h), 1, 1,
                         h * flat_query_rows(args) + flat_query_row(args, extent, b, i), b, h, i});
      }
    }
  }
}

void add_key_rows(const AttentionArgs& args, const TensorArg& tensor, int64_t width,
                  std::vector<OutputRow>* rows) {
  const bool ragged = args.sequence.cu_k.data != nullptr;
  for (int64_t b = 0; b < args.shape.batch; ++b) {
    const SequenceExtent extent = sequence_extent(args, b);
    for (int64_t j = 0; j < extent.k_len; ++j) {
      for (int64_t h = 0; h < args.shape.heads_kv; ++h) {
        const int64_t flat_row = ragged ? extent.k_begin + j : b * args.shape.seqlen_k + j;
        rows->push_back({tensor.data, tensor.dtype, key_offset(args, tensor, extent, b, j, h), 1,
                         width, (flat_row * args.shape.heads_kv + h) * width, b, h, j});
      }
    }
  }
}

void add_bias_rows(const AttentionArgs& args, std::vector<OutputRow>* rows) {
  const BroadcastArg& bias = args.grad.dbias;
  const int64_t batches = bias.full_batch ? args.shape.batch : 1;
  const int64_t heads = bias.full_heads ? args.shape.heads_q : 1;
  const int64_t positions = bias.full_rows ? args.shape.seqlen_q : 1;
  const int64_t width = bias.full_cols ? args.shape.seqlen_k : 1;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < positions; ++i) {
        rows->push_back({bias.data, bias.dtype, b * bias.batch + h * bias.head + i * bias.row,
                         bias.col, width, ((b * heads + h) * positions + i) * width, b, h, i});
      }
    }
  }
}

}  // namespace

const char* to_string(Output output) {
  static constexpr const char* kNames[kOutputCount] = {"out", "lse",   "dq",     "dk",
                                                       "dv",  "dbias", "dsinks", "dslopes"};
  return kNames[static_cast<int>(output)];
}

bool is_written(const AttentionProblem& problem, Output output) {
  const bool backward = problem.op == Op::kBackward;
  const Gradients& grad = problem.gradients;
  switch (output) {
    case Output::kOut:
      return !backward;
    case Output::kLse:
      return !backward && problem.lse;
    case Output::kDq:
      return backward && grad.dq;
    case Output::kDk:
      return backward && grad.dk;
    case Output::kDv:
      return backward && grad.dv;
    case Output::kDbias:
      return backward && grad.dbias;
    case Output::kDsinks:
      return backward && grad.dsinks;
    case Output::kDslopes:
      return backward && grad.dslopes;
  }
  return false;
}

int64_t flat_size(const AttentionProblem& problem, Output output) {
  const Sizes& sizes = problem.sizes;
  const BroadcastShape& bias = problem.score.bias;
  switch (output) {
    case Output::kOut:
      return query_rows(problem) * sizes.heads_q * sizes.head_dim_v;
    case Output::kLse:
      return query_rows(problem) * sizes.heads_q;
    case Output::kDq:
      return query_rows(problem) * sizes.heads_q * sizes.head_dim;
    case Output::kDk:
      return key_rows(problem) * sizes.heads_kv * sizes.head_dim;
    case Output::kDv:
      return key_rows(problem) * sizes.heads_kv * sizes.head_dim_v;
    case Output::kDbias:
      return (bias.batch ? sizes.batch : 1) * (bias.heads ? sizes.heads_q : 1) *
             (bias.rows ? sizes.seqlen_q : 1) * (bias.cols ? sizes.seqlen_k : 1);
    case Output::kDsinks:
      return sizes.heads_q;
    case Output::kDslopes:
      return (problem.score.alibi_per_batch ? sizes.batch : 1) * sizes.heads_q;
  }
  return 0;
}

std::vector<OutputRow> output_rows(const AttentionProblem& problem, const AttentionArgs& args,
                                   Output output) {
  std::vector<OutputRow> rows;
  if (!is_written(problem, output)) {
    return rows;
  }
  const GradientArgs& grad = args.grad;
  const int64_t slope_batches = problem.score.alibi_per_batch ? args.shape.batch : 1;
  switch (output) {
    case Output::kOut:
      add_query_rows(args, args.out, args.shape.head_dim_v, &rows);
      break;
    case Output::kLse:
      add_lse_rows(args, &rows);
      break;
    case Output::kDq:
      add_query_rows(args, grad.dq, args.shape.head_dim, &rows);
      break;
    case Output::kDk:
      add_key_rows(args, grad.dk, args.shape.head_dim, &rows);
      break;
    case Output::kDv:
      add_key_rows(args, grad.dv, args.shape.head_dim_v, &rows);
      break;
    case Output::kDbias:
      add_bias_rows(args, &rows);
      break;
    case Output::kDsinks:
      for (int64_t h = 0; h < args.shape.heads_q; ++h) {
        rows.push_back({grad.dsinks, DType::kF32, h * grad.dsink_stride, 1, 1, h, 0, h, 0});
      }
      break;
    case Output::kDslopes:
      for (int64_t b = 0; b < slope_batches; ++b) {
        for (int64_t h = 0; h < args.shape.heads_q; ++h) {
          rows.push_back({grad.dslopes, DType::kF32, b * grad.dslope_batch + h * grad.dslope_head,
                          1, 1, b * args.shape.heads_q + h, b, h, 0});
        }
      }
      break;
  }
  return rows;
}

OutputValues gather(const AttentionProblem& problem, const AttentionArgs& args) {
  OutputValues all;
  for (const Output output : kAllOutputs) {
    if (!is_written(problem, output)) {
      continue;
    }
    std::vector<double>& values = all[static_cast<size_t>(output)];
    values.assign(static_cast<size_t>(flat_size(problem, output)), 0.0);
    for (const OutputRow& row : output_rows(problem, args, output)) {
      for (int64_t n = 0; n < row.count; ++n) {
        values[static_cast<size_t>(row.flat + n)] =
            reference::load(row.data, row.dtype, row.offset + n * row.stride);
      }
    }
  }
  return all;
}

DenseOutputs::DenseOutputs(const AttentionProblem& problem, Precision precision)
    : problem_(problem), precision_(precision) {
  for (const Output output : kAllOutputs) {
    if (is_written(problem, output)) {
      // One element more, so that an output without elements is not mistaken for an absent one.
      memory_[static_cast<size_t>(output)].resize(
          static_cast<size_t>(flat_size(problem, output) + 1) * sizeof(double));
    }
  }
}

AttentionArgs DenseOutputs::redirect(const AttentionArgs& args) {
  AttentionArgs result = args;
  const Sizes& s = problem_.sizes;
  const bool f64 = precision_ == Precision::kF64;
  const bool ragged_q = problem_.storage.query == Source::kRagged;
  const bool ragged_k = problem_.storage.key == Source::kRagged;
  const auto tensor = [&](Output output, DType dtype, bool ragged, int64_t length, int64_t heads,
                          int64_t width, TensorArg* arg) {
    if (is_written(problem_, output)) {
      *arg = {data(output), f64 ? DType::kF64 : dtype, ragged ? 0 : length * heads * width,
              heads * width, width};
    }
  };
  tensor(Output::kOut, problem_.out_dtype, ragged_q, s.seqlen_q, s.heads_q, s.head_dim_v,
         &result.out);
  tensor(Output::kDq, problem_.dtype, ragged_q, s.seqlen_q, s.heads_q, s.head_dim, &result.grad.dq);
  tensor(Output::kDk, problem_.dtype, ragged_k, s.seqlen_k, s.heads_kv, s.head_dim,
         &result.grad.dk);
  tensor(Output::kDv, problem_.dtype, ragged_k, s.seqlen_k, s.heads_kv, s.head_dim_v,
         &result.grad.dv);
  if (is_written(problem_, Output::kLse)) {
    result.lse = {data(Output::kLse),
                  f64 || problem_.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                  ragged_q ? 0 : s.seqlen_q, query_rows(problem_), 1};
  }
  if (is_written(problem_, Output::kDbias)) {
    BroadcastArg& dbias = result.grad.dbias;
    dbias.data = data(Output::kDbias);
    dbias.dtype = f64 ? DType::kF64 : dbias.dtype;
    dbias.col = dbias.full_cols ? 1 : 0;
    const int64_t cols = dbias.full_cols ? s.seqlen_k : 1;
    const int64_t rows = dbias.full_rows ? s.seqlen_q : 1;
    dbias.row = dbias.full_rows ? cols : 0;
    dbias.head = dbias.full_heads ? rows * cols : 0;
    dbias.batch = dbias.full_batch ? (dbias.full_heads ? s.heads_q : 1) * rows * cols : 0;
  }
  if (is_written(problem_, Output::kDsinks)) {
    result.grad.dsinks = static_cast<float*>(data(Output::kDsinks));
    result.grad.dsink_stride = 1;
  }
  if (is_written(problem_, Output::kDslopes)) {
    // One per batch element of an empty batch: absent, as binding has it.
    result.grad.dslopes = flat_size(problem_, Output::kDslopes) > 0
                              ? static_cast<float*>(data(Output::kDslopes))
                              : nullptr;
    result.grad.dslope_batch = problem_.score.alibi_per_batch ? s.heads_q : 0;
    result.grad.dslope_head = 1;
  }
  return result;
}

}  // namespace rowmax::testkit
