// Allocation and lengths; the values are in values.cpp.
#include "testkit/inputs.h"

#include <algorithm>
#include <utility>

#include "api/bind.h"
#include "testkit/layouts.h"

namespace rowmax::testkit {
namespace {

// Outputs never share memory with themselves; K and V may.
StrideKind output_strides(StrideKind kind) {
  return kind == StrideKind::kBroadcastKv ? StrideKind::kContiguous : kind;
}

bool has_gaps(StrideKind kind) {
  return kind == StrideKind::kPadded || kind == StrideKind::kAligned;
}

DType statistics_dtype(const AttentionProblem& problem) {
  return problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

TensorView view_of(void* data, DType dtype, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(sizes.size());
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    view.sizes[axis] = sizes[axis];
    view.strides[axis] = strides[axis];
  }
  return view;
}

// Sizes of the tensors of a side: dense (B, S, H, D), ragged (total, H, D), paged pool.
std::vector<int64_t> query_sizes(const AttentionProblem& p, int64_t width) {
  if (p.storage.query == Source::kRagged) {
    return {p.storage.total_q, p.sizes.heads_q, width};
  }
  return {p.sizes.batch, p.sizes.seqlen_q, p.sizes.heads_q, width};
}

std::vector<int64_t> key_sizes(const AttentionProblem& p, int64_t width) {
  switch (p.storage.key) {
    case Source::kRagged:
      return {p.storage.total_k, p.sizes.heads_kv, width};
    case Source::kPaged:
      return {p.storage.num_pages, p.storage.page_size, p.sizes.heads_kv, width};
    case Source::kDense:
      break;
  }
  return {p.sizes.batch, p.sizes.seqlen_k, p.sizes.heads_kv, width};
}

std::vector<int64_t> lse_sizes(const AttentionProblem& p) {
  if (p.storage.query == Source::kRagged) {
    return {p.sizes.heads_q, p.storage.total_q};
  }
  return {p.sizes.batch, p.sizes.heads_q, p.sizes.seqlen_q};
}

std::vector<int64_t> broadcast_sizes(const AttentionProblem& p, const BroadcastShape& shape) {
  return {shape.batch ? p.sizes.batch : 1, shape.heads ? p.sizes.heads_q : 1,
          shape.rows ? p.sizes.seqlen_q : 1, shape.cols ? p.sizes.seqlen_k : 1};
}

std::vector<int64_t> slope_sizes(const AttentionProblem& p) {
  if (p.score.alibi_per_batch) {
    return {p.sizes.batch, p.sizes.heads_q};
  }
  return {p.sizes.heads_q};
}

bool every_row_sees_a_key(const AttentionArgs& args, int64_t batch) {
  const SequenceExtent extent = sequence_extent(args, batch);
  const RowBand band = resolve_band(args.score.band, extent.q_len, extent.k_len);
  for (int64_t row = 0; row < extent.q_len; ++row) {
    const KeyRange keys = row_keys(band, row, extent.k_len);
    if (keys.begin >= keys.end) {
      return false;
    }
  }
  return true;
}

// The second sequence is of NaN: all of its results must be, and another's must not.
Status check_nan_sequence(const AttentionArgs& args) {
  if (!every_row_sees_a_key(args, 1)) {
    return Status::invalid(
        "inputs=nansequence: a row of the second sequence sees no key; accepted: lengths and a "
        "band with which every row sees one");
  }
  int64_t others = 0;  // without keys their results are zeros, not NaN
  for (int64_t batch = 0; batch < args.shape.batch; ++batch) {
    others += batch == 1 ? 0 : sequence_extent(args, batch).q_len;
  }
  if (others == 0) {
    return Status::invalid(
        "inputs=nansequence: no other sequence has query rows; accepted: lengths with a neighbour "
        "whose results are looked at");
  }
  return {};
}

void write_index(const TensorView& view, int64_t at, int64_t value) {
  if (view.dtype == DType::kI64) {
    static_cast<int64_t*>(view.data)[at] = value;
  } else {
    static_cast<int32_t*>(view.data)[at] = static_cast<int32_t>(value);
  }
}

}  // namespace

Result<std::unique_ptr<CaseInputs>> CaseInputs::create(const Case& spec) {
  if (Status status = validate(spec.problem); !status.ok()) {
    return status;
  }
  std::unique_ptr<CaseInputs> inputs(new CaseInputs(spec));
  inputs->allocate_operands();
  inputs->allocate_gradients();
  inputs->allocate_score();
  inputs->allocate_lengths();
  Result<AttentionArgs> args = bind_arguments(spec.problem, inputs->tensors_);
  if (!args.ok()) {
    return args.status();
  }
  inputs->args_ = *args;
  if (spec.inputs == InputKind::kNanSequence) {
    if (Status status = check_nan_sequence(*args); !status.ok()) {
      return status;
    }
  }
  inputs->fill_mask();
  inputs->fill_documents();
  inputs->fill_bias();
  inputs->fill_per_head();
  inputs->fill_queries();
  inputs->fill_keys();
  if (spec.problem.op == Op::kBackward) {
    inputs->fill_forward_results();
  }
  for (int output = 0; output < kOutputCount; ++output) {
    for (const OutputRow& row :
         output_rows(spec.problem, inputs->args_, static_cast<Output>(output))) {
      const size_t element = size_of(row.dtype);
      for (int64_t n = 0; n < row.count; ++n) {
        const int64_t at = row.offset + n * row.stride;
        inputs->arena_.expect_write(
            static_cast<const char*>(row.data) + at * static_cast<int64_t>(element), element);
      }
    }
  }
  inputs->arena_.seal();
  return inputs;
}

CaseInputs::CaseInputs(const Case& spec) : spec_(spec), random_(spec.seed) {}

TensorView CaseInputs::allocate(const char* name, DType dtype, std::vector<int64_t> sizes,
                                StrideKind strides) {
  const std::vector<int64_t> steps = strides_of(sizes, strides);
  return view_of(
      arena_.allocate(name, dtype, span_of(sizes, steps), static_cast<int>(offset_of(strides))),
      dtype, sizes, steps);
}

void CaseInputs::allocate_operands() {
  const AttentionProblem& p = spec_.problem;
  const StrideKind query_strides = output_strides(spec_.strides);
  if (spec_.strides == StrideKind::kFusedQkv) {
    allocate_fused();
  } else {
    tensors_.q = allocate("q", p.dtype, query_sizes(p, p.sizes.head_dim), query_strides);
    tensors_.k = allocate("k", p.dtype, key_sizes(p, p.sizes.head_dim), spec_.strides);
    tensors_.v = allocate("v", p.dtype, key_sizes(p, p.sizes.head_dim_v), spec_.strides);
  }
  tensors_.out = allocate("out", p.out_dtype, query_sizes(p, p.sizes.head_dim_v), query_strides);
  if (p.lse) {
    tensors_.lse = allocate("lse", statistics_dtype(p), lse_sizes(p),
                            has_gaps(query_strides) ? query_strides : StrideKind::kContiguous);
  }
}

// One buffer of rows [q heads | k heads | v heads]; q apart when the two sides have different rows.
// Backward: dq, dk, dv in the same way.
void CaseInputs::allocate_fused() {
  const AttentionProblem& p = spec_.problem;
  const Sizes& s = p.sizes;
  const bool backward = p.op == Op::kBackward;
  const bool same_rows = p.storage.query == p.storage.key && s.seqlen_q == s.seqlen_k &&
                         p.storage.total_q == p.storage.total_k;
  const int64_t q_width = same_rows ? s.heads_q * s.head_dim : 0;
  const int64_t row = q_width + s.heads_kv * (s.head_dim + s.head_dim_v);
  const auto slice = [&](void* base, std::vector<int64_t> sizes, int64_t at) {
    std::vector<int64_t> strides = strides_of(sizes, StrideKind::kContiguous);
    const size_t seq = sizes.size() - 3;
    strides[seq] = row;
    if (seq == 1) {
      strides[0] = row * std::max<int64_t>(sizes[1], 1);
    }
    return view_of(static_cast<char*>(base) + at * static_cast<int64_t>(size_of(p.dtype)), p.dtype,
                   sizes, strides);
  };
  const std::vector<int64_t> keys = key_sizes(p, s.head_dim);
  const int64_t rows = keys.size() == 4 ? keys[0] * keys[1] : keys[0];
  const auto make = [&](const char* name, TensorView* k, TensorView* v) {
    void* base = arena_.allocate(name, p.dtype, rows * row, 0);
    *k = slice(base, keys, q_width);
    *v = slice(base, key_sizes(p, s.head_dim_v), q_width + s.heads_kv * s.head_dim);
    return base;
  };
  TensorView k;
  TensorView v;
  void* base = make("qkv", &k, &v);
  tensors_.k = k;
  tensors_.v = v;
  tensors_.q = same_rows
                   ? slice(base, query_sizes(p, s.head_dim), 0)
                   : allocate("q", p.dtype, query_sizes(p, s.head_dim), StrideKind::kContiguous);
  if (backward && p.gradients.dk && p.gradients.dv) {
    base = make("dqkv", &tensors_.grad.dk, &tensors_.grad.dv);
    if (p.gradients.dq && same_rows) {
      tensors_.grad.dq = slice(base, query_sizes(p, s.head_dim), 0);
    }
  }
}

void CaseInputs::allocate_gradients() {
  const AttentionProblem& p = spec_.problem;
  if (p.op != Op::kBackward) {
    return;
  }
  const StrideKind strides = output_strides(spec_.strides);
  GradientTensors& grad = tensors_.grad;
  grad.dout = allocate("dout", p.dtype, query_sizes(p, p.sizes.head_dim_v), strides);
  if (p.gradients.dlse) {
    grad.dlse = allocate("dlse", statistics_dtype(p), lse_sizes(p), StrideKind::kContiguous);
  }
  if (p.gradients.dq && !grad.dq.present()) {
    grad.dq = allocate("dq", p.dtype, query_sizes(p, p.sizes.head_dim), strides);
  }
  if (p.gradients.dk && !grad.dk.present()) {
    grad.dk = allocate("dk", p.dtype, key_sizes(p, p.sizes.head_dim), strides);
  }
  if (p.gradients.dv && !grad.dv.present()) {
    grad.dv = allocate("dv", p.dtype, key_sizes(p, p.sizes.head_dim_v), strides);
  }
  if (p.gradients.dbias) {
    grad.dbias = allocate("dbias", p.score.bias.dtype, broadcast_sizes(p, p.score.bias),
                          StrideKind::kContiguous);
  }
  if (p.gradients.dsinks) {
    grad.dsinks = allocate("dsinks", DType::kF32, {p.sizes.heads_q}, StrideKind::kContiguous);
  }
  if (p.gradients.dslopes) {
    grad.dslopes = allocate("dslopes", DType::kF32, slope_sizes(p), StrideKind::kContiguous);
  }
}

void CaseInputs::allocate_score() {
  const AttentionProblem& p = spec_.problem;
  const StrideKind strides = has_gaps(spec_.strides) ? spec_.strides : StrideKind::kContiguous;
  ScoreTensors& score = tensors_.score;
  if (p.score.mask.present) {
    score.mask = allocate("mask", DType::kBool, broadcast_sizes(p, p.score.mask), strides);
  }
  if (p.score.bias.present) {
    score.bias = allocate("bias", p.score.bias.dtype, broadcast_sizes(p, p.score.bias), strides);
  }
  if (p.score.alibi) {
    score.slopes = allocate("slopes", DType::kF32, slope_sizes(p), StrideKind::kContiguous);
  }
  if (p.score.sinks) {
    score.sinks = allocate("sinks", DType::kF32, {p.sizes.heads_q}, StrideKind::kContiguous);
  }
  if (p.score.document_ids) {
    const auto sizes = [&p](bool ragged, int64_t length, int64_t total) {
      return ragged ? std::vector<int64_t>{total} : std::vector<int64_t>{p.sizes.batch, length};
    };
    score.documents_q = allocate(
        "documents_q", DType::kI32,
        sizes(p.storage.query == Source::kRagged, p.sizes.seqlen_q, p.storage.total_q), strides);
    score.documents_k = allocate(
        "documents_k", DType::kI32,
        sizes(p.storage.key == Source::kRagged, p.sizes.seqlen_k, p.storage.total_k), strides);
  }
  if (p.score.dropout_p > 0.0) {
    tensors_.dropout.seed = random_.bits();
    tensors_.dropout.offset = random_.bits();
    if (random_.chance(0.5)) {
      tensors_.dropout.row_base = random_.integer(0, 100);
      tensors_.dropout.col_base = random_.integer(0, 100);
    }
  }
}

int64_t CaseInputs::draw_length(int64_t bound) {
  switch (spec_.lengths) {
    case LengthKind::kFull:
      return bound;
    case LengthKind::kZero:
      return 0;
    case LengthKind::kOne:
      return std::min<int64_t>(bound, 1);
    case LengthKind::kRandom:
      break;
  }
  const double kind = random_.uniform();
  if (kind < 0.15) {
    return 0;
  }
  return kind < 0.3 ? bound : random_.integer(0, bound);
}

// Lengths of a ragged side, cut so that their sum fits the storage.
std::vector<int64_t> CaseInputs::sequence_lengths(const std::vector<int64_t>& given, int64_t bound,
                                                  int64_t total) {
  std::vector<int64_t> lengths = given;
  int64_t left = total;
  for (int64_t b = 0; given.empty() && b < spec_.problem.sizes.batch; ++b) {
    lengths.push_back(std::min(draw_length(bound), left));
    left -= lengths.back();
  }
  return lengths;
}

void CaseInputs::allocate_lengths() {
  const AttentionProblem& p = spec_.problem;
  const Storage& storage = p.storage;
  const DType dtype = random_.chance(0.5) ? DType::kI32 : DType::kI64;
  struct Side {
    bool ragged;
    bool used;
    const std::vector<int64_t>& given;
    int64_t bound;
    int64_t total;
    const char* names[2];
    ConstTensorView* cu;
    ConstTensorView* seqused;
  };
  int64_t key_bound = p.sizes.seqlen_k;
  if (storage.key == Source::kPaged && storage.num_pages == 0) {
    key_bound = 0;
  }
  LengthTensors& t = tensors_.lengths;
  const Side sides[] = {
      {storage.query == Source::kRagged,
       storage.seqused_q,
       spec_.query_lengths,
       p.sizes.seqlen_q,
       storage.total_q,
       {"cu_seqlens_q", "seqused_q"},
       &t.cu_seqlens_q,
       &t.seqused_q},
      {storage.key == Source::kRagged,
       storage.seqused_k,
       spec_.key_lengths,
       key_bound,
       storage.total_k,
       {"cu_seqlens_k", "seqused_k"},
       &t.cu_seqlens_k,
       &t.seqused_k},
  };
  for (const Side& side : sides) {
    std::vector<int64_t> lengths(static_cast<size_t>(p.sizes.batch), side.bound);
    if (side.ragged) {
      lengths = sequence_lengths(side.given, side.bound, side.total);
      const TensorView cu =
          allocate(side.names[0], dtype, {p.sizes.batch + 1}, StrideKind::kContiguous);
      int64_t offset = 0;
      write_index(cu, 0, 0);
      for (int64_t b = 0; b < p.sizes.batch; ++b) {
        offset += lengths[static_cast<size_t>(b)];
        write_index(cu, b + 1, offset);
      }
      *side.cu = cu;
    }
    if (side.used) {
      const bool given = !side.ragged && !side.given.empty();
      const TensorView used =
          allocate(side.names[1], dtype, {p.sizes.batch}, StrideKind::kContiguous);
      for (int64_t b = 0; b < p.sizes.batch; ++b) {
        const auto n = static_cast<size_t>(b);
        write_index(used, b, given ? side.given[n] : draw_length(lengths[n]));
      }
      *side.seqused = used;
    }
  }
  if (storage.key == Source::kPaged) {
    fill_block_table();
  }
}

// Needed entries get distinct pages in shuffled order as long as the pool lasts, then shared ones;
// the entries behind them hold ids that must never be followed.
void CaseInputs::fill_block_table() {
  const AttentionProblem& p = spec_.problem;
  const Storage& storage = p.storage;
  const TensorView table = allocate("block_table", DType::kI32, {p.sizes.batch, storage.max_pages},
                                    StrideKind::kContiguous);
  auto* ids = static_cast<int32_t*>(table.data);
  std::vector<int32_t> order;
  for (int64_t page = 0; page < storage.num_pages; ++page) {
    order.push_back(static_cast<int32_t>(page));
    std::swap(order.back(), order[static_cast<size_t>(random_.integer(0, page))]);
  }
  const ConstTensorView& used = tensors_.lengths.seqused_k;
  IndexArg lengths;
  lengths.data = used.data;
  lengths.is_int64 = used.dtype == DType::kI64;
  static constexpr int32_t kGarbage[] = {-1, 0x7fffffff, -0x7fffffff, 0x01234567};
  size_t next = 0;
  for (int64_t b = 0; b < p.sizes.batch; ++b) {
    const int64_t pages = (read_index(lengths, b) + storage.page_size - 1) / storage.page_size;
    for (int64_t n = 0; n < storage.max_pages; ++n) {
      int32_t& id = ids[b * storage.max_pages + n];
      id = n < pages ? order[next++ % order.size()] : kGarbage[random_.integer(0, 3)];
    }
  }
  tensors_.lengths.block_table = table;
}

}  // namespace rowmax::testkit
