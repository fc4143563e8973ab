// explain: a plan as stable text, one fact a line. Golden files in tests/plan/golden depend on it.
#include <fmt/format.h>

#include <string>

#include "kernel_api/plan_data.h"
#include "plan/explain_cuda.h"
#include "plan/workspace.h"
#include "rowmax/plan.h"

namespace rowmax {
namespace {

constexpr const char* kRegionNames[kRegionCount] = {"partial states",  "row statistics",
                                                    "dQ partials",     "dsink partials",
                                                    "dslope partials", "turns"};

// Exact where it is a whole number of the unit, one decimal elsewhere.
std::string bytes_text(double bytes) {
  constexpr double kKiB = 1024.0;
  if (bytes < kKiB) {
    return fmt::format("{:.0f} B", bytes);
  }
  if (bytes < kKiB * kKiB) {
    return fmt::format("{:.1f} KiB", bytes / kKiB);
  }
  if (bytes < kKiB * kKiB * kKiB) {
    return fmt::format("{:.1f} MiB", bytes / (kKiB * kKiB));
  }
  return fmt::format("{:.1f} GiB", bytes / (kKiB * kKiB * kKiB));
}

std::string device_text(const DeviceInfo& device) {
  if (device.kind == "cuda") {
    return plan::cuda_device_text(device);
  }
  std::string text = device.kind;
  text += device.name.empty() ? "" : fmt::format(", {}", device.name);
  text += fmt::format(", {}, {} core{}", device.isa, device.cores, device.cores == 1 ? "" : "s");
  text += fmt::format(", L1 {}, L2 {}, L3 {}", bytes_text(static_cast<double>(device.l1_bytes)),
                      bytes_text(static_cast<double>(device.l2_bytes)),
                      bytes_text(static_cast<double>(device.l3_bytes)));
  return text;
}

// Tiles that the kernel's row states; a kernel without them cuts its work itself.
std::string tile_text(const KernelConfig& config, const Schedule& schedule) {
  if (config.tile_q > 0 && config.tile_k > 0) {
    return fmt::format("tile {} x {}, ", schedule.tile_q, schedule.tile_k);
  }
  if (config.tile_q > 0) {
    return fmt::format("{} rows an item, ", schedule.tile_q);
  }
  return config.tile_k > 0 ? fmt::format("blocks of {} keys, ", schedule.tile_k) : std::string();
}

// What the rows of a forward tile were cut for: Q and O of a tile against the L2 cache.
std::string cache_text(const detail::PlanData& data, const detail::PlanStep& step) {
  const KernelConfig& config = step.kernel->config;
  if (config.step != StepKind::kForward || config.tile_q <= 0) {
    return {};
  }
  const Sizes& sizes = data.problem.sizes;
  const int64_t bytes = step.schedule.tile_q * (sizes.head_dim + sizes.head_dim_v) *
                        (config.compute == Compute::kF64 ? 8 : 4);
  return fmt::format(", Q and O of a tile {} (L2 {})", bytes_text(static_cast<double>(bytes)),
                     bytes_text(static_cast<double>(data.device.l2_bytes)));
}

std::string step_text(const detail::PlanData& data, const detail::PlanStep& step) {
  const Schedule& s = step.schedule;
  std::string text =
      fmt::format("{}: {}{} item{}", step.kernel->config.name, tile_text(step.kernel->config, s),
                  s.items, s.items == 1 ? "" : "s");
  const StepKind kind = step.kernel->config.step;
  const bool knows_ranges = kind != StepKind::kRowStats && kind != StepKind::kBiasGradient;
  if (s.splits > 1 && knows_ranges) {
    text += fmt::format(", {} key ranges of {}", s.splits, s.split_len);
  }
  text += plan::on_gpu(data) ? plan::cuda_step_text(data, step) : cache_text(data, step);
  return text + (step.thread_bytes > 0 ? fmt::format(", scratch {} B a thread", step.thread_bytes)
                                       : std::string());
}

void add_work(const AttentionProblem& problem, std::string& out) {
  const WorkCount work = count_work(problem);
  out += fmt::format("pairs      {} visible of {}\n", work.visible_pairs,
                     problem.sizes.batch * problem.sizes.heads_q * problem.sizes.seqlen_q *
                         problem.sizes.seqlen_k);
  out += fmt::format("flops      {:.6g}\n", work.flops);
  out += fmt::format("bytes      {:.6g} (inputs read once, outputs written once)\n", work.bytes);
  if (work.bytes > 0.0) {
    out += fmt::format("intensity  {:.4g} flops a byte\n", work.flops / work.bytes);
  }
  if (problem.storage.query == Source::kRagged || problem.storage.key != Source::kDense ||
      problem.storage.seqused_q || problem.storage.seqused_k) {
    out += "           counted as if every sequence had the largest length\n";
  }
}

void add_workspace(const detail::PlanData& data, std::string& out) {
  if (plan::on_gpu(data)) {
    out += plan::cuda_roofline_text(data);
    out += fmt::format("workspace  {} B\n", plan::workspace_bytes(data, 1));
  } else {
    out += fmt::format("workspace  {} B + {} B a thread\n",
                       data.shared_bytes + plan::kWorkspaceAlignment, data.thread_stride);
  }
  for (int region = 0; region < kRegionCount; ++region) {
    if (data.region_size[region] > 0) {
      out += fmt::format("  region   {}: {} B at {}\n", kRegionNames[region],
                         data.region_size[region], data.region_offset[region]);
    }
  }
}

}  // namespace

std::string explain(const Plan& plan) {
  if (plan.empty()) {
    return "empty plan\n";
  }
  const detail::PlanData& data = plan.data();
  std::string out;
  out += fmt::format("problem    {}\n", to_string(data.problem));
  out += fmt::format("device     {}\n", device_text(data.device));
  out +=
      fmt::format("kernel     {} ({} backend): {}\n", data.kernel_name, data.backend, data.choice);
  for (size_t i = 0; i < data.steps.size(); ++i) {
    out += fmt::format("step {}     {}\n", i + 1, step_text(data, data.steps[i]));
  }
  add_work(data.problem, out);
  add_workspace(data, out);
  for (const detail::DeclinedKernel& kernel : data.declined) {
    out += fmt::format("declined   {}: {}\n", kernel.name, kernel.reason);
  }
  return out;
}

}  // namespace rowmax
