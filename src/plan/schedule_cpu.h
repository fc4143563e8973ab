// Schedules of CPU kernels: tiles, how many items and key ranges. Functions of the sizes, the
// kernel's tiles and the device's caches only, never of threads.
#pragma once

#include <vector>

#include "kernel_api/kernel.h"
#include "rowmax/problem.h"

namespace rowmax::plan {

// The preferred schedule of a main step.
Schedule main_schedule(const AttentionProblem& problem, const KernelConfig& config,
                       const DeviceInfo& device);

// The same with `splits` key ranges, or fewer where the keys do not give as many.
Schedule with_splits(const AttentionProblem& problem, const KernelConfig& config,
                     const Schedule& preferred, int64_t splits);

// Split counts to try when the preferred schedule needs too much memory, the nearest first. Fewer
// ranges need less shared memory; more chunks of backward need less scratch for dK and dV.
std::vector<int64_t> other_split_counts(const AttentionProblem& problem, const KernelConfig& config,
                                        const Schedule& preferred);

// Schedule of a helper step: its own tiles, the main step's splits.
Schedule helper_schedule(const AttentionProblem& problem, const KernelConfig& config,
                         const Schedule& main);

}  // namespace rowmax::plan
