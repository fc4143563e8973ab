// Times of cases on a GPU.
#pragma once

#include <string>
#include <vector>

#include "rowmax/plan.h"
#include "testkit/case.h"

namespace rowmax::app {

struct GpuBenchOptions {
  DeviceInfo device;
  std::string json;           // as --json of bench
  bool every_kernel = false;  // all that serve a case, not the planner's choice alone
  int rounds = 7;
  double round_seconds = 0.1;
};

// Prints (or writes) time, rate and the planner's prediction of every case. Returns the exit code.
int bench_on_gpu(const std::vector<testkit::Case>& cases, const GpuBenchOptions& options);

}  // namespace rowmax::app
