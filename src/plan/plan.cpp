#include "rowmax/plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernel_api/plan_data.h"
#include "plan/workspace.h"

namespace rowmax {
namespace {

bool same_schedule(const Schedule& a, const Schedule& b) {
  return a.tile_q == b.tile_q && a.tile_k == b.tile_k && a.splits == b.splits &&
         a.split_len == b.split_len && a.items == b.items && a.pack == b.pack &&
         a.cut_tiles == b.cut_tiles && a.cut_ranges == b.cut_ranges &&
         a.query_tiles == b.query_tiles && a.columns == b.columns;
}

bool same_step(const detail::PlanStep& a, const detail::PlanStep& b) {
  return std::string_view(a.kernel->config.name) == b.kernel->config.name &&
         same_schedule(a.schedule, b.schedule);
}

}  // namespace

// An empty plan answers with an empty problem and no steps.
const AttentionProblem& Plan::problem() const {
  static const AttentionProblem kNone;
  return empty() ? kNone : data_->problem;
}

const std::string& Plan::kernel() const {
  static const std::string kNone;
  return empty() ? kNone : data_->kernel_name;
}

std::vector<std::string> Plan::steps() const {
  std::vector<std::string> names;
  if (!empty()) {
    for (const detail::PlanStep& step : data_->steps) {
      names.emplace_back(step.kernel->config.name);
    }
  }
  return names;
}

size_t Plan::workspace_bytes(int threads) const {
  return empty() ? 0 : plan::workspace_bytes(*data_, threads);
}

bool operator==(const Plan& a, const Plan& b) {
  if (a.data_ == b.data_) {
    return true;
  }
  if (a.empty() || b.empty()) {
    return false;
  }
  const detail::PlanData& x = a.data();
  const detail::PlanData& y = b.data();
  return x.problem == y.problem && x.device.isa == y.device.isa &&
         std::equal(x.steps.begin(), x.steps.end(), y.steps.begin(), y.steps.end(), same_step);
}

}  // namespace rowmax
