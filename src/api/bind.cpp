#include "api/bind.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "api/lengths.h"
#include "api/tensor_check.h"

namespace rowmax {
namespace {

constexpr int kMaxInputs = 20;
constexpr int kMaxOutputs = 8;

// Stands for a table of no columns, so that "paged" stays visible to kernels.
constexpr int32_t kEmptyTable = 0;

// Kernels share one pointer type for what they read and what they write.
void* data_of(const ConstTensorView& view) { return const_cast<void*>(view.data); }

TensorRule rule_of(const char* name, const char* shape, DType dtype,
                   std::initializer_list<int64_t> sizes) {
  TensorRule rule;
  rule.name = name;
  rule.shape = shape;
  rule.dtype = dtype;
  rule.other_dtype = dtype;
  for (const int64_t size : sizes) {
    rule.sizes[rule.rank++] = size;
  }
  return rule;
}

// A mask or bias of fewer axes, aligned at the right end, as one of four axes.
ConstTensorView with_four_axes(const ConstTensorView& view) {
  ConstTensorView out = view;
  out.rank = 4;
  const int missing = 4 - view.rank;
  for (int axis = 3; axis >= 0; --axis) {
    out.sizes[axis] = axis >= missing ? view.sizes[axis - missing] : 1;
    out.strides[axis] = axis >= missing ? view.strides[axis - missing] : 0;
  }
  return out;
}

// Remembers the first failure, so that the binding of a tensor is one line.
class Binder {
 public:
  Binder(const AttentionProblem& problem, const AttentionTensors& tensors,
         const WorkspaceRange& workspace, Location location)
      : problem_(problem), tensors_(tensors), workspace_(workspace), location_(location) {}

  Result<AttentionArgs> bind() {
    bind_shape();
    bind_operands();
    bind_sequences();
    bind_score();
    bind_dropout();
    bind_gradients();
    check_aliases();
    if (status_.ok() && location_ == Location::kHost) {
      status_ = check_lengths(problem_, args_.sequence);
    }
    if (!status_.ok()) {
      return status_;
    }
    return args_;
  }

 private:
  bool backward() const { return problem_.op == Op::kBackward; }
  bool ragged_q() const { return problem_.storage.query == Source::kRagged; }

  // LSE and its gradient: fp32, fp64 for an fp64 problem.
  DType statistics_dtype() const {
    return problem_.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  }

  bool check(const ConstTensorView& view, const TensorRule& rule, Access access) {
    if (!status_.ok()) {
      return false;
    }
    Footprint footprint;
    status_ = check_tensor(view, rule, access, &footprint);
    if (!status_.ok()) {
      return false;
    }
    if (access == Access::kWrite) {
      outputs_[output_count_++] = footprint;
    } else {
      inputs_[input_count_++] = footprint;
    }
    return true;
  }

  // True when a tensor is wanted and fits; a tensor that is not wanted must not be given.
  bool wanted(bool want, const ConstTensorView& view, const TensorRule& rule, Access access,
              const char* reason) {
    if (!want) {
      if (status_.ok() && view.present()) {
        status_ =
            Status::invalid(fmt::format("{}: given, but {}; accepted: absent", rule.name, reason));
      }
      return false;
    }
    return check(view, rule, access);
  }

  TensorRule query_rule(const char* name, const char* dense, const char* ragged, DType dtype,
                        int64_t dim) const {
    const Sizes& s = problem_.sizes;
    return ragged_q() ? rule_of(name, ragged, dtype, {problem_.storage.total_q, s.heads_q, dim})
                      : rule_of(name, dense, dtype, {s.batch, s.seqlen_q, s.heads_q, dim});
  }

  TensorRule key_rule(const char* name, const char* const shapes[3], int64_t dim) const {
    const Sizes& s = problem_.sizes;
    const Storage& storage = problem_.storage;
    switch (storage.key) {
      case Source::kRagged:
        return rule_of(name, shapes[1], problem_.dtype, {storage.total_k, s.heads_kv, dim});
      case Source::kPaged:
        return rule_of(name, shapes[2], problem_.dtype,
                       {storage.num_pages, storage.page_size, s.heads_kv, dim});
      case Source::kDense:
        break;
    }
    return rule_of(name, shapes[0], problem_.dtype, {s.batch, s.seqlen_k, s.heads_kv, dim});
  }

  TensorRule q_rule(const char* name, DType dtype) const {
    return query_rule(name, "(B, Sq, Hq, D)", "(total_q, Hq, D)", dtype, problem_.sizes.head_dim);
  }
  TensorRule out_rule(const char* name, DType dtype) const {
    return query_rule(name, "(B, Sq, Hq, Dv)", "(total_q, Hq, Dv)", dtype,
                      problem_.sizes.head_dim_v);
  }
  TensorRule k_rule(const char* name) const {
    static constexpr const char* kShapes[3] = {"(B, Sk, Hkv, D)", "(total_k, Hkv, D)",
                                               "(pages, page_size, Hkv, D)"};
    return key_rule(name, kShapes, problem_.sizes.head_dim);
  }
  TensorRule v_rule(const char* name) const {
    static constexpr const char* kShapes[3] = {"(B, Sk, Hkv, Dv)", "(total_k, Hkv, Dv)",
                                               "(pages, page_size, Hkv, Dv)"};
    return key_rule(name, kShapes, problem_.sizes.head_dim_v);
  }
  TensorRule lse_rule(const char* name) const {
    const Sizes& s = problem_.sizes;
    return ragged_q()
               ? rule_of(name, "(Hq, total_q)", statistics_dtype(),
                         {s.heads_q, problem_.storage.total_q})
               : rule_of(name, "(B, Hq, Sq)", statistics_dtype(), {s.batch, s.heads_q, s.seqlen_q});
  }
  TensorRule broadcast_rule(const char* name, const BroadcastShape& shape) const {
    const Sizes& s = problem_.sizes;
    return rule_of(name, "the problem's broadcast of (B, Hq, Sq, Sk)", shape.dtype,
                   {shape.batch ? s.batch : 1, shape.heads ? s.heads_q : 1,
                    shape.rows ? s.seqlen_q : 1, shape.cols ? s.seqlen_k : 1});
  }
  TensorRule slopes_rule(const char* name) const {
    const Sizes& s = problem_.sizes;
    return problem_.score.alibi_per_batch
               ? rule_of(name, "(B, Hq)", DType::kF32, {s.batch, s.heads_q})
               : rule_of(name, "(Hq)", DType::kF32, {s.heads_q});
  }

  static TensorArg tensor_arg(const ConstTensorView& view) {
    TensorArg arg;
    arg.data = data_of(view);
    arg.dtype = view.dtype;
    const int seq = view.rank - 3;  // ragged tensors have no batch axis
    arg.batch = seq == 1 ? kernel_stride(view, 0) : 0;
    arg.seq = kernel_stride(view, seq);
    arg.head = kernel_stride(view, seq + 1);
    return arg;
  }

  static RowArg row_arg(const ConstTensorView& view) {
    RowArg arg;
    arg.data = data_of(view);
    arg.dtype = view.dtype;
    const int head = view.rank - 2;
    arg.batch = head == 1 ? kernel_stride(view, 0) : 0;
    arg.head = kernel_stride(view, head);
    arg.seq = kernel_stride(view, head + 1);
    return arg;
  }

  static BroadcastArg broadcast_arg(const ConstTensorView& view, const BroadcastShape& shape) {
    BroadcastArg arg;
    arg.data = data_of(view);
    arg.dtype = view.dtype;
    arg.batch = kernel_stride(view, 0);
    arg.head = kernel_stride(view, 1);
    arg.row = kernel_stride(view, 2);
    arg.col = kernel_stride(view, 3);
    arg.full_batch = shape.batch;
    arg.full_heads = shape.heads;
    arg.full_rows = shape.rows;
    arg.full_cols = shape.cols;
    return arg;
  }

  void bind_shape() {
    const Sizes& s = problem_.sizes;
    args_.shape = {s.batch,    s.heads_q,  s.heads_kv,  s.seqlen_q,
                   s.seqlen_k, s.head_dim, s.head_dim_v};
  }

  void bind_operands() {
    const AttentionTensors& t = tensors_;
    if (check(t.q, q_rule("q", problem_.dtype), Access::kRead)) {
      args_.q = tensor_arg(t.q);
    }
    if (check(t.k, k_rule("k"), Access::kRead)) {
      args_.k = tensor_arg(t.k);
    }
    if (check(t.v, v_rule("v"), Access::kRead)) {
      args_.v = tensor_arg(t.v);
    }
    const Access access = backward() ? Access::kRead : Access::kWrite;
    if (check(t.out, out_rule("out", problem_.out_dtype), access)) {
      args_.out = tensor_arg(t.out);
    }
    if (wanted(backward() || problem_.lse, t.lse, lse_rule("lse"), access,
               "the problem does not write LSE")) {
      args_.lse = row_arg(t.lse);
    }
  }

  void bind_index(bool want, const ConstTensorView& view, const char* name, const char* shape,
                  int64_t size, const char* reason, IndexArg* arg) {
    TensorRule rule = rule_of(name, shape, DType::kI32, {size});
    rule.other_dtype = DType::kI64;
    if (wanted(want, view, rule, Access::kRead, reason)) {
      arg->data = view.data;
      arg->is_int64 = view.dtype == DType::kI64;
      arg->stride = 1;
    }
  }

  void bind_sequences() {
    const LengthTensors& t = tensors_.lengths;
    const Storage& storage = problem_.storage;
    const int64_t batch = problem_.sizes.batch;
    SequenceArgs& s = args_.sequence;
    bind_index(ragged_q(), t.cu_seqlens_q, "cu_seqlens_q", "(B + 1)", batch + 1,
               "the problem's queries are not ragged", &s.cu_q);
    bind_index(storage.key == Source::kRagged, t.cu_seqlens_k, "cu_seqlens_k", "(B + 1)", batch + 1,
               "the problem's keys are not ragged", &s.cu_k);
    bind_index(storage.seqused_q, t.seqused_q, "seqused_q", "(B)", batch,
               "the problem has no seqused_q", &s.used_q);
    bind_index(storage.seqused_k, t.seqused_k, "seqused_k", "(B)", batch,
               "the problem has no seqused_k", &s.used_k);
    s.total_q = storage.total_q;
    s.total_k = storage.total_k;
    const TensorRule table =
        rule_of("block_table", "(B, max_pages)", DType::kI32, {batch, storage.max_pages});
    if (wanted(storage.key == Source::kPaged, t.block_table, table, Access::kRead,
               "the problem's keys are not paged")) {
      const auto* data = static_cast<const int32_t*>(t.block_table.data);
      s.block_table = data != nullptr ? data : &kEmptyTable;
      s.table_stride = kernel_stride(t.block_table, 0);
      s.page_size = storage.page_size;
      s.num_pages = storage.num_pages;
      s.max_pages = storage.max_pages;
    }
  }

  // Rank 0 to 4 becomes rank 4; anything else is left for the check to refuse.
  static ConstTensorView broadcast_view(const ConstTensorView& view) {
    return view.present() && view.rank >= 0 && view.rank < 4 ? with_four_axes(view) : view;
  }

  void bind_documents(const ConstTensorView& view, const char* name, bool ragged, int64_t length,
                      int64_t total, DocumentArg* arg) {
    const TensorRule rule =
        ragged ? rule_of(name, "(total)", DType::kI32, {total})
               : rule_of(name, "(B, S)", DType::kI32, {problem_.sizes.batch, length});
    if (wanted(problem_.score.document_ids, view, rule, Access::kRead,
               "the problem has no document ids")) {
      arg->data = static_cast<const int32_t*>(view.data);
      arg->batch = ragged ? 0 : kernel_stride(view, 0);
      arg->seq = kernel_stride(view, view.rank - 1);
    }
  }

  void bind_score() {
    const ScoreOptions& options = problem_.score;
    const ScoreTensors& t = tensors_.score;
    ScoreArgs& s = args_.score;
    s.scale = problem_.effective_scale();
    s.softcap = options.softcap;
    const Band& band = problem_.band;
    s.band = {band.left.value(), band.right.value(), band.left.bounded(), band.right.bounded(),
              band.alignment == Alignment::kTopLeft};
    const ConstTensorView mask = broadcast_view(t.mask);
    if (wanted(options.mask.present, mask, broadcast_rule("mask", options.mask), Access::kRead,
               "the problem has no mask")) {
      s.mask = broadcast_arg(mask, options.mask);
    }
    const ConstTensorView bias = broadcast_view(t.bias);
    if (wanted(options.bias.present, bias, broadcast_rule("bias", options.bias), Access::kRead,
               "the problem has no bias")) {
      s.bias = broadcast_arg(bias, options.bias);
    }
    if (wanted(options.alibi, t.slopes, slopes_rule("slopes"), Access::kRead,
               "the problem has no ALiBi")) {
      s.slopes = static_cast<const float*>(t.slopes.data);
      s.slope_batch = options.alibi_per_batch ? kernel_stride(t.slopes, 0) : 0;
      s.slope_head = kernel_stride(t.slopes, t.slopes.rank - 1);
    }
    const Sizes& sizes = problem_.sizes;
    const Storage& storage = problem_.storage;
    bind_documents(t.documents_q, "documents_q", ragged_q(), sizes.seqlen_q, storage.total_q,
                   &s.documents_q);
    bind_documents(t.documents_k, "documents_k", storage.key == Source::kRagged, sizes.seqlen_k,
                   storage.total_k, &s.documents_k);
    if (wanted(options.sinks, t.sinks, rule_of("sinks", "(Hq)", DType::kF32, {sizes.heads_q}),
               Access::kRead, "the problem has no sinks")) {
      s.sinks = static_cast<const float*>(t.sinks.data);
      s.sink_stride = kernel_stride(t.sinks, 0);
    }
  }

  void check_base(const char* name, int64_t base, int64_t length) {
    // Counters are 32 bits of half the position.
    const int64_t limit = (int64_t{1} << 33) - length;
    if (status_.ok() && (base < 0 || base > limit)) {
      status_ =
          Status::invalid(fmt::format("dropout.{}: is {}; accepted: 0 to {}", name, base, limit));
    }
  }

  void bind_dropout() {
    const double p = problem_.score.dropout_p;
    if (p <= 0.0 || !status_.ok()) {
      return;
    }
    const DropoutState& state = tensors_.dropout;
    check_base("row_base", state.row_base, problem_.sizes.seqlen_q);
    check_base("col_base", state.col_base, problem_.sizes.seqlen_k);
    const uintptr_t address = reinterpret_cast<uintptr_t>(state.device_state);
    if (status_.ok() && address % alignof(uint64_t) != 0) {
      status_ = Status::invalid(fmt::format(
          "dropout.device_state: address {:#x} is not a multiple of 8 bytes; accepted: two aligned "
          "64-bit words",
          static_cast<uint64_t>(address)));
    }
    if (!status_.ok()) {
      return;
    }
    if (state.device_state != nullptr) {
      inputs_[input_count_++] = footprint_of("dropout.device_state", state.device_state, 16);
    }
    DropoutArgs& d = args_.dropout;
    const bool stored = state.device_state != nullptr && location_ == Location::kHost;
    d.on = true;
    d.seed = stored ? state.device_state[0] : state.seed;
    d.offset = stored ? state.device_state[1] : state.offset;
    d.threshold = static_cast<uint64_t>(std::llround(std::ldexp(p, 32)));
    d.row_base = state.row_base;
    d.col_base = state.col_base;
    // A threshold of 2^32 drops every element, as p = 1 does.
    const bool drops_all = d.threshold > std::numeric_limits<uint32_t>::max();
    d.keep_scale = drops_all ? 0.0f : static_cast<float>(1.0 / (1.0 - p));
  }

  void bind_gradients() {
    static constexpr const char* kForward = "the problem is a forward one";
    static constexpr const char* kUnwanted = "the problem does not want this gradient";
    const char* reason = backward() ? kUnwanted : kForward;
    const GradientTensors& t = tensors_.grad;
    const Gradients& want = problem_.gradients;
    GradientArgs& g = args_.grad;
    if (wanted(backward(), t.dout, out_rule("dout", problem_.dtype), Access::kRead, reason)) {
      g.dout = tensor_arg(t.dout);
    }
    if (wanted(backward() && want.dlse, t.dlse, lse_rule("dlse"), Access::kRead,
               backward() ? "the problem has no gradient of LSE" : reason)) {
      g.dlse = row_arg(t.dlse);
    }
    if (wanted(backward() && want.dq, t.dq, q_rule("dq", problem_.dtype), Access::kWrite, reason)) {
      g.dq = tensor_arg(t.dq);
    }
    if (wanted(backward() && want.dk, t.dk, k_rule("dk"), Access::kWrite, reason)) {
      g.dk = tensor_arg(t.dk);
    }
    if (wanted(backward() && want.dv, t.dv, v_rule("dv"), Access::kWrite, reason)) {
      g.dv = tensor_arg(t.dv);
    }
    bind_bias_gradient(backward() && want.dbias, reason);
    if (wanted(backward() && want.dsinks, t.dsinks,
               rule_of("dsinks", "(Hq)", DType::kF32, {problem_.sizes.heads_q}), Access::kWrite,
               reason)) {
      g.dsinks = static_cast<float*>(t.dsinks.data);
      g.dsink_stride = kernel_stride(t.dsinks, 0);
    }
    if (wanted(backward() && want.dslopes, t.dslopes, slopes_rule("dslopes"), Access::kWrite,
               reason)) {
      // One per batch element of an empty batch: there is nothing to write.
      g.dslopes = element_count(t.dslopes) > 0 ? static_cast<float*>(t.dslopes.data) : nullptr;
      g.dslope_batch = problem_.score.alibi_per_batch ? kernel_stride(t.dslopes, 0) : 0;
      g.dslope_head = kernel_stride(t.dslopes, t.dslopes.rank - 1);
    }
  }

  void bind_bias_gradient(bool want, const char* reason) {
    const ConstTensorView dbias = broadcast_view(tensors_.grad.dbias);
    TensorRule rule = broadcast_rule("dbias", problem_.score.bias);
    if (status_.ok() && want && dbias.present()) {
      if (!is_floating(dbias.dtype)) {
        status_ = Status::invalid(fmt::format("dbias: dtype is {}; accepted: f64, f32, bf16, f16",
                                              to_string(dbias.dtype)));
        return;
      }
      rule.dtype = rule.other_dtype = dbias.dtype;
    }
    if (wanted(want, dbias, rule, Access::kWrite, reason)) {
      args_.grad.dbias = broadcast_arg(dbias, problem_.score.bias);
    }
  }

  static Footprint footprint_of(const char* name, const void* data, size_t bytes) {
    const uint64_t begin = reinterpret_cast<uintptr_t>(data);
    return {name, begin, begin + bytes, bytes, 0};
  }

  void refuse_overlap(const Footprint& written, const Footprint& other, const char* accepted) {
    if (status_.ok()) {
      status_ = check_apart(written, other, accepted);
    }
  }

  void check_aliases() {
    static constexpr const char* kOutputs = "outputs apart from every other tensor";
    static constexpr const char* kWorkspace = "a workspace apart from every tensor";
    for (int i = 0; i < output_count_ && status_.ok(); ++i) {
      for (int j = 0; j < input_count_; ++j) {
        refuse_overlap(outputs_[i], inputs_[j], kOutputs);
      }
      for (int j = 0; j < i; ++j) {
        refuse_overlap(outputs_[i], outputs_[j], kOutputs);
      }
    }
    const Footprint workspace = footprint_of("workspace", workspace_.data, workspace_.bytes);
    for (int i = 0; i < output_count_; ++i) {
      refuse_overlap(workspace, outputs_[i], kWorkspace);
    }
    for (int i = 0; i < input_count_; ++i) {
      refuse_overlap(workspace, inputs_[i], kWorkspace);
    }
  }

  const AttentionProblem& problem_;
  const AttentionTensors& tensors_;
  WorkspaceRange workspace_;
  Location location_;
  AttentionArgs args_;
  Status status_;
  Footprint inputs_[kMaxInputs];
  Footprint outputs_[kMaxOutputs];
  int input_count_ = 0;
  int output_count_ = 0;
};

}  // namespace

Result<AttentionArgs> bind_arguments(const AttentionProblem& problem,
                                     const AttentionTensors& tensors,
                                     const WorkspaceRange& workspace, Location location) {
  return Binder(problem, tensors, workspace, location).bind();
}

}  // namespace rowmax
