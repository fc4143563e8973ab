// Schedules of CPU kernels: how many items and key ranges. Functions of sizes and tiles only.
#pragma once

#include "kernel_api/kernel.h"
#include "rowmax/problem.h"

namespace rowmax::plan {

// Schedule of a main step, with at most `max_splits` key ranges.
Schedule main_schedule(const AttentionProblem& problem, const KernelConfig& config,
                       int64_t max_splits);

// Schedule of a helper step: its own tiles, the main step's splits.
Schedule helper_schedule(const AttentionProblem& problem, const KernelConfig& config,
                         const Schedule& main);

}  // namespace rowmax::plan
