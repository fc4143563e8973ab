// The planner: problem, device and kernel entries in; an immutable plan out. Plain host code.
#pragma once

#include <span>

#include "kernel_api/kernel.h"
#include "plan/ranking.h"
#include "rowmax/plan.h"

namespace rowmax {

// make_plan over the given backends, whose entries must outlive the plan, with `ranking` as what
// was measured of GPU kernels. Errors: kInvalidArgument (broken problem, unknown device or forced
// kernel), kUnsupported (no kernel serves the problem; every reason is named), kOutOfMemory
// (options.max_workspace cannot be met).
Result<Plan> make_plan_with(const AttentionProblem& problem, const DeviceInfo& device,
                            const PlanOptions& options, std::span<const Backend* const> backends,
                            plan::RankingTable ranking = plan::sm90_ranking());

}  // namespace rowmax
