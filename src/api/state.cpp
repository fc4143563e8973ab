#include "rowmax/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

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

// a := a + b for the statistics of two rows that both saw keys. One of the weights is exactly 1.
RowWeights add(RowStatistics* a, const RowStatistics& b) {
  const float m = a->m > b.m ? a->m : b.m;
  const RowWeights w = {std::exp(a->m - m), std::exp(b.m - m)};
  a->m = m;
  a->l = a->l * w.kept + b.l * w.added;
  return w;
}

RowStatistics row_of(const AttentionState& state, int64_t row) {
  return {state.m[row], state.l[row]};
}

Status check_rows(const char* name, const AttentionState& state) {
  if (state.rows < 0 || state.dims < 0) {
    return Status::invalid(
        fmt::format("{}: rows = {}, dims = {}; accepted: 0 or more", name, state.rows, state.dims));
  }
  if (state.rows > 0 && (state.m == nullptr || state.l == nullptr)) {
    return Status::invalid(
        fmt::format("{}: m or l is null; accepted: pointers to {} values", name, state.rows));
  }
  if (state.rows > 0 && state.dims > 0 && state.o == nullptr) {
    return Status::invalid(
        fmt::format("{}: o is null; accepted: {} rows of {} values", name, state.rows, state.dims));
  }
  return {};
}

// Rows that are written must not share values.
Status check_stride(const char* name, int64_t stride, int64_t rows, int64_t dims) {
  if (rows > 1 && dims > 0 && stride < dims && stride > -dims) {
    return Status::invalid(
        fmt::format("{}: is {}, so that rows of {} values share memory; accepted: at least {}",
                    name, stride, dims, dims));
  }
  return {};
}

Status check_part(const AttentionState& part, int index, const AttentionState& into) {
  const std::string name = fmt::format("parts[{}]", index);
  if (Status status = check_rows(name.c_str(), part); !status.ok()) {
    return status;
  }
  if (part.rows != into.rows || part.dims != into.dims) {
    return Status::invalid(
        fmt::format("{}: rows = {}, dims = {}; accepted: rows = {}, dims = {} "
                    "as in `into`",
                    name, part.rows, part.dims, into.rows, into.dims));
  }
  if (part.rows > 1 && part.dims > 0 && part.o == into.o && part.o_stride != into.o_stride) {
    return Status::invalid(
        fmt::format("{}.o_stride: is {}; accepted: {}, since `into` has the "
                    "same o",
                    name, part.o_stride, into.o_stride));
  }
  return {};
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
  if (count < 0 || (count > 0 && parts == nullptr)) {
    return Status::invalid(fmt::format("parts: count = {}{}; accepted: 0 or more states", count,
                                       parts == nullptr ? " with a null pointer" : ""));
  }
  if (Status status = check_rows("into", into); !status.ok()) {
    return status;
  }
  if (Status status = check_stride("into.o_stride", into.o_stride, into.rows, into.dims);
      !status.ok()) {
    return status;
  }
  for (int p = 0; p < count; ++p) {
    if (Status status = check_part(parts[p], p, into); !status.ok()) {
      return status;
    }
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
  if (Status status = check_rows("into", into); !status.ok()) {
    return status;
  }
  if (Status status = check_stride("into.o_stride", into.o_stride, into.rows, into.dims);
      !status.ok()) {
    return status;
  }
  if (into.rows > 0 && (lse == nullptr || (into.dims > 0 && out == nullptr))) {
    return Status::invalid(fmt::format("{}: null; accepted: a pointer to {} rows",
                                       lse == nullptr ? "lse" : "out", into.rows));
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
  if (Status status = check_rows("state", state); !status.ok()) {
    return status;
  }
  if (Status status = check_stride("out_stride", out_stride, state.rows, state.dims);
      !status.ok()) {
    return status;
  }
  if (state.rows > 0 && state.dims > 0 && out == nullptr) {
    return Status::invalid(fmt::format("out: null; accepted: a pointer to {} rows of {} values",
                                       state.rows, state.dims));
  }
  if (state.rows > 1 && state.dims > 0 && out == state.o && out_stride != state.o_stride) {
    return Status::invalid(
        fmt::format("out_stride: is {}; accepted: {}, since `out` is the state's own o", out_stride,
                    state.o_stride));
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
