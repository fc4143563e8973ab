#include "rowmax/plan.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "api/backends.h"
#include "plan/planner.h"

namespace rowmax {
namespace {

bool explain_wanted() {
  const char* value = std::getenv("ROWMAX_EXPLAIN");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

Result<Plan> make_plan(const AttentionProblem& problem, const DeviceInfo& device,
                       const PlanOptions& options) {
  Result<Plan> plan = make_plan_with(problem, device, options, all_backends());
  if (plan.ok() && explain_wanted()) {
    std::fputs(explain(*plan).c_str(), stderr);  // one call: plans of several threads do not mix
  }
  return plan;
}

}  // namespace rowmax
