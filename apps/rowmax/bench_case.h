// One benchmarked case: times, memory and error of our kernels and of the naive implementation.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "runner.h"
#include "testkit/case.h"
#include "testkit/inputs.h"

namespace rowmax::app {

struct BenchLimits {
  int rounds = 7;
  double case_seconds = 60.0;      // fewer rounds (at least one) where they would take longer
  double round_seconds = 0.1;      // of one side in one round, at least
  double baseline_seconds = 20.0;  // longest predicted naive call that is still run
  int threads = 0;
  bool check = false;
};

// Times of one call, one entry a round, and memory beyond inputs and outputs.
struct Measurement {
  std::vector<double> seconds;
  int64_t planned_bytes = 0;   // workspace, or the naive implementation's matrices
  int64_t measured_bytes = 0;  // growth of the resident set; 0 when it cannot be measured
  int64_t peak_bytes() const { return measured_bytes > 0 ? measured_bytes : planned_bytes; }
};

struct BenchResult {
  testkit::Case spec;
  std::string kernel;
  double flops = 0.0;
  Measurement ours;
  std::optional<Measurement> naive;
  std::string naive_skipped;  // why there is no baseline
  std::vector<TensorCheck> checks;
  int64_t checked_rows = 0;  // 0: all; else the error is over this many query rows

  double gflops() const { return flops / median(ours.seconds) * 1e-9; }
  // naive / ours, one entry a round.
  std::vector<double> ratios() const;
};

// Predicts naive times from the rate of the last case that was long enough to have one.
class BaselineBudget {
 public:
  // Empty when the naive implementation may run, else why it is skipped.
  std::string reason_to_skip(const AttentionProblem& problem, const BenchLimits& limits) const;
  void record(double flops, double seconds);

 private:
  double rate_ = 2e9;  // FLOP/s; a careful guess until the first measurement
};

// Runs a case: our side, and the naive side in turns with it when `budget` is not null and allows.
BenchResult bench_case(const testkit::Case& spec, const BenchLimits& limits, BaselineBudget* budget,
                       Progress& progress);

// Exact FLOPs of a case: lengths as in its tensors.
double case_flops(const testkit::Case& spec, const testkit::CaseInputs& inputs);

}  // namespace rowmax::app
