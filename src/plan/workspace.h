// Workspace of a plan: shared regions, then one scratch a worker, then the item counter.
#pragma once

#include <cstddef>

#include "kernel_api/plan_data.h"

namespace rowmax::plan {

inline constexpr size_t kWorkspaceAlignment = 64;

// Fills region_offset, region_size, shared_bytes, each step's thread_bytes and thread_stride from
// the problem and the steps.
void lay_out_workspace(detail::PlanData& data);

// Workers of the widest step with this many threads; 0 means the OpenMP default. Steps never run
// more workers than they have items.
int most_workers(const detail::PlanData& data, int threads);

// Where the item counter is, behind the scratches.
size_t counter_offset(const detail::PlanData& data, int threads);

// Whether the plan runs on a GPU, whose workspace is the shared regions and the item counter.
bool on_gpu(const detail::PlanData& data);

// Total bytes for a thread count; 0 means the OpenMP default.
size_t workspace_bytes(const detail::PlanData& data, int threads);

// The thread count that 0 stands for.
int default_threads();

}  // namespace rowmax::plan
