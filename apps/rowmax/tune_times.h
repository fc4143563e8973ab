// Measured times of kernels as JSON lines, beside what the cost model says of them.
#pragma once

#include <string>
#include <vector>

#include "ranking_fit.h"
#include "rowmax/plan.h"

namespace rowmax::app {

// Times of one device, those of a case in a row.
struct TuneTimes {
  DeviceInfo device;
  std::string source;  // device and version of the measurement
  std::vector<TimedKernel> times;
  int unknown = 0;  // lines left out: this build has no such kernel, or it declines the case
};

// Reads lines as `rowmax bench --every-kernel --json` writes them; predictions are this build's.
// Throws a Failure that names the line; `name` is the file's.
TuneTimes read_times(const std::string& lines, const std::string& name);

// Kernels that may be the best one for a plan's problem: within a factor of the least time of the
// cost model.
std::vector<std::string> contenders(const Plan& plan, const DeviceInfo& device);

// The planner's choice for a case with a ranking table.
std::string choice_with(plan::RankingTable table, const std::string& text,
                        const DeviceInfo& device);

}  // namespace rowmax::app
