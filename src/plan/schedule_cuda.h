// Schedules of GPU kernels: tiles and items. Functions of the sizes and the kernel's tiles only.
#pragma once

#include "kernel_api/kernel.h"
#include "rowmax/problem.h"

namespace rowmax::plan {

// The schedule of a main step: its items are the query tiles of every (batch element, query head),
// counted with the upper bounds of the lengths.
Schedule cuda_schedule(const AttentionProblem& problem, const KernelConfig& config);

}  // namespace rowmax::plan
