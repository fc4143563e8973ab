#include "plan/workspace.h"

#include <omp.h>

#include <algorithm>

namespace rowmax::plan {
namespace {

size_t aligned(size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

}  // namespace

void lay_out_workspace(detail::PlanData& data) {
  const detail::PlanStep& main = data.steps[data.main_step];
  // Regions carry results from one step to another, or between the pieces of a cut tile.
  const bool has_regions = data.steps.size() > 1 || main.schedule.cut_ranges > 0;
  size_t offset = 0;
  for (int index = 0; index < kRegionCount; ++index) {
    data.region_offset[index] = offset;
    data.region_size[index] = has_regions ? region_bytes(static_cast<Region>(index), data.problem,
                                                         main.kernel->config, main.schedule)
                                          : 0;
    offset += aligned(data.region_size[index]);
  }
  data.shared_bytes = offset;
  data.thread_stride = 0;
  for (detail::PlanStep& step : data.steps) {
    step.thread_bytes =
        step.kernel->thread_bytes != nullptr
            ? step.kernel->thread_bytes(data.problem, step.kernel->config, step.schedule)
            : 0;
    data.thread_stride = std::max(data.thread_stride, aligned(step.thread_bytes));
  }
}

int default_threads() { return std::max(omp_get_max_threads(), 1); }

int most_workers(const detail::PlanData& data, int threads) {
  int64_t items = 0;
  for (const detail::PlanStep& step : data.steps) {
    items = std::max(items, step.schedule.items);
  }
  return static_cast<int>(std::min<int64_t>(threads > 0 ? threads : default_threads(), items));
}

bool on_gpu(const detail::PlanData& data) { return data.device.kind == "cuda"; }

size_t counter_offset(const detail::PlanData& data, int threads) {
  if (on_gpu(data)) {
    return data.shared_bytes;
  }
  return data.shared_bytes + data.thread_stride * static_cast<size_t>(most_workers(data, threads));
}

size_t workspace_bytes(const detail::PlanData& data, int threads) {
  return counter_offset(data, threads) + kWorkspaceAlignment;
}

}  // namespace rowmax::plan
