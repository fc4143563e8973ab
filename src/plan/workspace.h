// Workspace of a plan: shared regions, then one scratch a thread, then the item counter.
#pragma once

#include <cstddef>

#include "kernel_api/plan_data.h"

namespace rowmax::plan {

inline constexpr size_t kWorkspaceAlignment = 64;

// Fills region_offset, region_size, shared_bytes, each step's thread_bytes and thread_stride from
// the problem and the steps.
void lay_out_workspace(detail::PlanData& data);

// Total bytes for a thread count; 0 means the OpenMP default.
size_t workspace_bytes(const detail::PlanData& data, int threads);

// The thread count that 0 stands for.
int default_threads();

}  // namespace rowmax::plan
