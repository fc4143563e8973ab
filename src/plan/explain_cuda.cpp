#include "plan/explain_cuda.h"

#include <fmt/format.h>

#include "plan/cost_cuda.h"

namespace rowmax::plan {

std::string cuda_device_text(const DeviceInfo& device) {
  constexpr double kKiB = 1024.0;
  return fmt::format(
      "{}, {}, {}, {} multiprocessors at {:.2f} GHz, {:.0f} KiB shared memory a block, L2 {:.1f} "
      "MiB, {:.0f} GB/s",
      device.kind, device.name, device.isa, device.cores, device.clock_ghz,
      static_cast<double>(device.l1_bytes) / kKiB,
      static_cast<double>(device.l2_bytes) / (kKiB * kKiB), device.memory_gbps);
}

std::string cuda_step_text(const detail::PlanData& data, const detail::PlanStep& step) {
  const KernelConfig& config = step.kernel->config;
  const Sizes& sizes = data.problem.sizes;
  if (config.warpgroups == 0) {  // a step beside the main one, limited by memory
    return {};
  }
  return fmt::format(", {} consumer warpgroups, {} stages, {:.2f} waves{}{}", config.warpgroups,
                     config.stages, static_cast<double>(step.schedule.items) / data.device.cores,
                     config.step == StepKind::kForward && sizes.heads_q != sizes.heads_kv
                         ? fmt::format(", query heads packed: {}", step.schedule.pack)
                         : std::string(),
                     step.schedule.cut_ranges > 0
                         ? fmt::format(", {} tiles cut along keys in {} ranges",
                                       step.schedule.cut_tiles, step.schedule.cut_ranges)
                         : std::string());
}

std::string cuda_roofline_text(const detail::PlanData& data) {
  const UnitTimes times =
      unit_times(data.problem, data.steps[data.main_step].kernel->config, data.device);
  return fmt::format(
      "roofline   matrix {:.1f} us, exponential {:.1f} us, other softmax {:.1f} us, memory {:.1f} "
      "us; predicted {:.1f} us{}\n",
      times.matrix, times.exponential, times.softmax, times.memory, data.predicted_us,
      data.ranking_factor != 1.0
          ? fmt::format(", {:.2f} of the cost model by the ranking table", data.ranking_factor)
          : std::string());
}

}  // namespace rowmax::plan
