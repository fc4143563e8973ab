#include "rowmax/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <utility>

#include "api/tensor_check.h"

namespace rowmax {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// Values of a row that are folded at a time, so that the accumulator needs no memory of the caller.
constexpr int64_t kChunk = 64;

// Statistics of one row. Empty: no key was seen, whatever O holds.
struct RowStatistics {
  float m = kNegativeInfinity;
  float l = 0.0f;
  bool empty() const { return m == kNegativeInfinity || l == 0.0f; }
};

// How two rows become one: the weights of what was there and of what is added.
struct RowWeights {
  float kept = 1.0f;
  float added = 1.0f;
};

// a := a + b for the statistics of two rows that both saw keys. The greater weight is 1, or 1/2
// where the sum of l would leave fp32: the factor then moves into the reference.
RowWeights add(RowStatistics* a, const RowStatistics& b) {
  const float m = a->m > b.m ? a->m : b.m;
  RowWeights w = {std::exp(a->m - m), std::exp(b.m - m)};
  const float l = a->l * w.kept + b.l * w.added;
  if (std::isinf(l) && std::isfinite(a->l) && std::isfinite(b.l)) {
    w = {w.kept / 2.0f, w.added / 2.0f};
    *a = {m + std::numbers::ln2_v<float>, a->l * w.kept + b.l * w.added};
  } else {
    *a = {m, l};
  }
  return w;
}

RowStatistics row_of(const AttentionState& state, int64_t row) {
  return {state.m[row], state.l[row]};
}

// One fp32 tensor of a call, and the memory that it covers once it is checked. Not copyable:
// `memory` points to `name`.
struct Operand {
  Operand(std::string name_, const float* data, int64_t rows)
      : name(std::move(name_)), view(contiguous(data, DType::kF32, {rows})) {}
  Operand(std::string name_, const float* data, int64_t rows, int64_t dims, int64_t stride)
      : name(std::move(name_)), view(contiguous(data, DType::kF32, {rows, dims})) {
    view.strides[0] = stride;
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  Status check(Access access) {
    TensorRule rule{name.c_str(), view.rank == 1 ? "(rows)" : "(rows, dims)", view.rank};
    std::copy(view.sizes, view.sizes + view.rank, rule.sizes);
    return check_tensor(view, rule, access, &memory);
  }

  std::string name;
  ConstTensorView view;
  Footprint memory;
};

// The operands of a state, named "NAME.m" and so on.
struct StateOperands {
  StateOperands(const std::string& name, const AttentionState& state)
      : m(name + ".m", state.m, state.rows),
        l(name + ".l", state.l, state.rows),
        o(name + ".o", state.o, state.rows, state.dims, state.o_stride) {}

  Status check(Access access) {
    for (Operand* operand : {&m, &l, &o}) {
      if (Status status = operand->check(access); !status.ok()) {
        return status;
      }
    }
    return {};
  }

  Operand m;
  Operand l;
  Operand o;
};

bool same_elements(const ConstTensorView& a, const ConstTensorView& b) {
  return a.data == b.data && a.rank == b.rank && (a.sizes[0] <= 1 || a.strides[0] == b.strides[0]);
}

using Operands = std::span<const Operand* const>;

// outputs[i] may be inputs[i] itself, element for element: rows are read before they are written.
// Otherwise no output shares memory with an input or with another output. All are checked.
Status check_aliases(Operands outputs, Operands inputs) {
  static constexpr const char* kAccepted = "outputs apart from every other tensor, or in place";
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = 0; j < inputs.size(); ++j) {
      if (i == j && same_elements(outputs[i]->view, inputs[j]->view)) {
        continue;
      }
      if (Status status = check_apart(outputs[i]->memory, inputs[j]->memory, kAccepted);
          !status.ok()) {
        return status;
      }
    }
    for (size_t j = 0; j < i; ++j) {
      if (Status status = check_apart(outputs[i]->memory, outputs[j]->memory, kAccepted);
          !status.ok()) {
        return status;
      }
    }
  }
  return {};
}

Status check_sizes(const char* name, const AttentionState& state) {
  if (state.rows < 0 || state.dims < 0) {
    return Status::invalid(
        fmt::format("{}: rows = {}, dims = {}; accepted: 0 or more", name, state.rows, state.dims));
  }
  return {};
}

Status check_part(const AttentionState& part, int index, const AttentionState& into,
                  Operands outputs) {
  const std::string name = fmt::format("parts[{}]", index);
  if (part.rows != into.rows || part.dims != into.dims) {
    return Status::invalid(
        fmt::format("{}: rows = {}, dims = {}; accepted: rows = {}, dims = {} as in `into`", name,
                    part.rows, part.dims, into.rows, into.dims));
  }
  StateOperands operands(name, part);
  if (Status status = operands.check(Access::kRead); !status.ok()) {
    return status;
  }
  const Operand* inputs[] = {&operands.m, &operands.l, &operands.o};
  return check_aliases(outputs, inputs);
}

Status check_merge(const AttentionState* parts, int count, const AttentionState& into) {
  if (count < 0 || (count > 0 && parts == nullptr)) {
    return Status::invalid(fmt::format("parts: count = {}{}; accepted: 0 or more states", count,
                                       parts == nullptr ? " with a null pointer" : ""));
  }
  if (Status status = check_sizes("into", into); !status.ok()) {
    return status;
  }
  StateOperands operands("into", into);
  if (Status status = operands.check(Access::kWrite); !status.ok()) {
    return status;
  }
  const Operand* outputs[] = {&operands.m, &operands.l, &operands.o};
  if (Status status = check_aliases(outputs, {}); !status.ok()) {
    return status;
  }
  for (int p = 0; p < count; ++p) {
    if (Status status = check_part(parts[p], p, into, outputs); !status.ok()) {
      return status;
    }
  }
  return {};
}

Status check_state_from_output(const float* out, int64_t out_stride, const float* lse,
                               const AttentionState& into) {
  if (Status status = check_sizes("into", into); !status.ok()) {
    return status;
  }
  StateOperands operands("into", into);
  if (Status status = operands.check(Access::kWrite); !status.ok()) {
    return status;
  }
  Operand lse_in("lse", lse, into.rows);
  Operand out_in("out", out, into.rows, into.dims, out_stride);
  for (Operand* operand : {&lse_in, &out_in}) {
    if (Status status = operand->check(Access::kRead); !status.ok()) {
      return status;
    }
  }
  const Operand* outputs[] = {&operands.m, &operands.o, &operands.l};
  const Operand* inputs[] = {&lse_in, &out_in};
  return check_aliases(outputs, inputs);
}

Status check_finalize(const AttentionState& state, const float* sinks, const float* out,
                      int64_t out_stride, const float* lse) {
  if (Status status = check_sizes("state", state); !status.ok()) {
    return status;
  }
  StateOperands operands("state", state);
  if (Status status = operands.check(Access::kRead); !status.ok()) {
    return status;
  }
  // Absent ones cover no rows.
  Operand sinks_in("sinks", sinks, sinks != nullptr ? state.rows : 0);
  Operand lse_out("lse", lse, lse != nullptr ? state.rows : 0);
  Operand out_out("out", out, state.rows, state.dims, out_stride);
  if (Status status = sinks_in.check(Access::kRead); !status.ok()) {
    return status;
  }
  for (Operand* operand : {&lse_out, &out_out}) {
    if (Status status = operand->check(Access::kWrite); !status.ok()) {
      return status;
    }
  }
  const Operand* outputs[] = {&lse_out, &out_out};
  const Operand* inputs[] = {&operands.m, &operands.o, &operands.l, &sinks_in};
  return check_aliases(outputs, inputs);
}

// Columns [begin, end) of one row, folded left to right. Every value of a part is read before the
// chunk is written, so `into` may be a part; statistics are written by the caller, last.
void fold_chunk(const AttentionState* parts, int count, const AttentionState& into, int64_t row,
                int64_t begin, int64_t end) {
  float o[kChunk] = {};
  RowStatistics total;
  for (int p = 0; p < count; ++p) {
    const RowStatistics part = row_of(parts[p], row);
    if (part.empty()) {
      continue;
    }
    const float* values = parts[p].o + row * parts[p].o_stride;
    if (total.empty()) {
      total = part;
      std::copy(values + begin, values + end, o);
      continue;
    }
    const RowWeights w = add(&total, part);
    for (int64_t d = begin; d < end; ++d) {
      o[d - begin] = o[d - begin] * w.kept + values[d] * w.added;
    }
  }
  std::copy(o, o + (end - begin), into.o + row * into.o_stride + begin);
}

RowStatistics fold_statistics(const AttentionState* parts, int count, int64_t row) {
  RowStatistics total;
  for (int p = 0; p < count; ++p) {
    const RowStatistics part = row_of(parts[p], row);
    if (part.empty()) {
      continue;
    }
    if (total.empty()) {
      total = part;
    } else {
      add(&total, part);
    }
  }
  return total;
}

// O = state's o * weight / sum; `sink` = -inf: none.
struct FinishedRow {
  float weight = 1.0f;
  float sum = 1.0f;
  float lse = kNegativeInfinity;
};

FinishedRow finish(const RowStatistics& row, float sink) {
  if (row.empty() || sink == -kNegativeInfinity) {
    return {0.0f, 1.0f, sink};
  }
  if (sink == kNegativeInfinity) {
    return {1.0f, row.l, row.m + std::log(row.l)};
  }
  const float m = row.m > sink ? row.m : sink;
  const float weight = std::exp(row.m - m);
  const float sum = row.l * weight + std::exp(sink - m);
  return {weight, sum, m + std::log(sum)};
}

}  // namespace

Status merge(const AttentionState* parts, int count, const AttentionState& into) {
  if (Status status = check_merge(parts, count, into); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < into.rows; ++row) {
    for (int64_t begin = 0; begin < into.dims; begin += kChunk) {
      fold_chunk(parts, count, into, row, begin, std::min(begin + kChunk, into.dims));
    }
    const RowStatistics total = fold_statistics(parts, count, row);
    into.m[row] = total.m;
    into.l[row] = total.l;
  }
  return {};
}

Status state_from_output(const float* out, int64_t out_stride, const float* lse,
                         const AttentionState& into) {
  if (Status status = check_state_from_output(out, out_stride, lse, into); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < into.rows; ++row) {
    const float m = lse[row];
    const bool empty = m == kNegativeInfinity;
    for (int64_t d = 0; d < into.dims; ++d) {
      into.o[row * into.o_stride + d] = empty ? 0.0f : out[row * out_stride + d];
    }
    into.m[row] = m;
    into.l[row] = empty ? 0.0f : 1.0f;
  }
  return {};
}

Status finalize(const AttentionState& state, const float* sinks, float* out, int64_t out_stride,
                float* lse) {
  if (Status status = check_finalize(state, sinks, out, out_stride, lse); !status.ok()) {
    return status;
  }
  for (int64_t row = 0; row < state.rows; ++row) {
    const RowStatistics statistics = row_of(state, row);
    const bool empty = statistics.empty();
    const FinishedRow finished =
        finish(statistics, sinks != nullptr ? sinks[row] : kNegativeInfinity);
    for (int64_t d = 0; d < state.dims; ++d) {
      out[row * out_stride + d] =
          empty ? 0.0f : state.o[row * state.o_stride + d] * finished.weight / finished.sum;
    }
    if (lse != nullptr) {
      lse[row] = finished.lse;
    }
  }
  return {};
}

}  // namespace rowmax
