#include "rowmax/plan.h"

#include "api/backends.h"
#include "plan/planner.h"

namespace rowmax {

Result<Plan> make_plan(const AttentionProblem& problem, const DeviceInfo& device,
                       const PlanOptions& options) {
  return make_plan_with(problem, device, options, all_backends());
}

}  // namespace rowmax
