// Predicted times of GPU kernels: the roofline of each unit of a multiprocessor, tile by tile.
#pragma once

#include "kernel_api/kernel.h"
#include "rowmax/plan.h"
#include "rowmax/problem.h"

namespace rowmax::plan {

// Times of a whole problem if one unit were the only limit, all multiprocessors busy, in us.
struct UnitTimes {
  double matrix = 0.0;       // tensor cores, masked parts of tiles included
  double exponential = 0.0;  // the special function units
  double softmax = 0.0;      // everything else of the softmax that takes issue slots
  double memory = 0.0;       // device memory: inputs read once, outputs written once
};
UnitTimes unit_times(const AttentionProblem& problem, const KernelConfig& config,
                     const DeviceInfo& device);

// In every prediction, in us.
inline constexpr double kLaunchUs = 3.0;

// The time of the kernel, in us. `factor` corrects what goes beyond kLaunchUs.
double predicted_us(const AttentionProblem& problem, const KernelConfig& config,
                    const DeviceInfo& device, double factor = 1.0);

}  // namespace rowmax::plan
