// The outputs of a problem as rows: what a run writes, where, and under which coordinate.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernel_api/args.h"
#include "rowmax/problem.h"

namespace rowmax::testkit {

enum class Output : int { kOut = 0, kLse, kDq, kDk, kDv, kDbias, kDsinks, kDslopes };
inline constexpr int kOutputCount = 8;
const char* to_string(Output output);  // "out", "lse", "dq", ...

// One innermost row of an output that a run must write.
struct OutputRow {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t offset = 0;  // of the first element in `data`
  int64_t stride = 1;  // between elements
  int64_t count = 0;
  int64_t flat = 0;  // of the first element in the dense order of flat_size()
  int64_t b = 0;     // coordinate
  int64_t head = 0;
  int64_t position = 0;
};

// Rows inside the lengths; tails are not listed. Absent outputs have none. dbias, dsinks and
// dslopes are written whole.
std::vector<OutputRow> output_rows(const AttentionProblem& problem, const AttentionArgs& args,
                                   Output output);

// Elements of an output in dense order, tails included:
//   out, dq (rows, Hq, .); lse (Hq, rows); dk, dv (key rows, Hkv, .); the others as their tensors
int64_t flat_size(const AttentionProblem& problem, Output output);

// Whether a run of the problem writes the output.
bool is_written(const AttentionProblem& problem, Output output);

using OutputValues = std::array<std::vector<double>, kOutputCount>;

// The outputs that `args` points to, in dense order; elements outside the rows are 0.
OutputValues gather(const AttentionProblem& problem, const AttentionArgs& args);

// Own dense memory for every output of a problem. fp64 for the oracle's, the problem's types for
// the naive implementation's (dsinks and dslopes are fp32 in both).
class DenseOutputs {
 public:
  enum class Precision : int { kF64 = 0, kOfProblem = 1 };
  DenseOutputs(const AttentionProblem& problem, Precision precision);

  // `args` with its outputs replaced by this memory.
  AttentionArgs redirect(const AttentionArgs& args);

 private:
  void* data(Output output) { return memory_[static_cast<size_t>(output)].data(); }

  AttentionProblem problem_;
  Precision precision_;
  std::array<std::vector<unsigned char>, kOutputCount> memory_;
};

}  // namespace rowmax::testkit
