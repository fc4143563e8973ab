// Times of cases on a GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rowmax/plan.h"
#include "testkit/case.h"
#include "testkit/runner.h"

namespace rowmax::app {

// Names of the kernels that are timed for a case, by the plan of the planner's choice.
using KernelChoice = std::function<std::vector<std::string>(const Plan& chosen)>;

// The planner's choice alone. The other one is testkit::serving_kernels.
std::vector<std::string> chosen_kernel(const Plan& chosen);

struct GpuBenchOptions {
  DeviceInfo device;
  KernelChoice kernels = chosen_kernel;
  int rounds = 7;
  double round_seconds = 0.1;
  int ahead = 1;  // cases whose inputs are made at the same time
};

// One kernel on one case.
struct GpuResult {
  std::string text;  // the case
  std::string kernel;
  double flops = 0.0;
  double predicted = 0.0;       // seconds
  std::vector<double> seconds;  // an entry a round
  std::string date;             // when they were complete
};

// Kernels of one case in turns, round by round. `json`: a file that after every case holds the
// lines of all so far, so that a failure loses none of them; empty: none.
std::vector<GpuResult> measure_on_gpu(const std::vector<testkit::Case>& cases,
                                      const GpuBenchOptions& options, const std::string& json);

// One JSON line a result (docs/benchmarking.md).
std::string json_lines(const std::vector<GpuResult>& results, const DeviceInfo& device);

// Prints (or writes to `json`, as --json of bench) time, rate and the planner's prediction of every
// case. Returns the exit code.
int bench_on_gpu(const std::vector<testkit::Case>& cases, const std::string& json,
                 const GpuBenchOptions& options);

}  // namespace rowmax::app
