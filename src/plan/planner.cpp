#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernel_api/plan_data.h"
#include "kernel_api/schedule.h"
#include "plan/cost_cuda.h"
#include "plan/refusal.h"
#include "plan/schedule_cpu.h"
#include "plan/schedule_cuda.h"
#include "plan/workspace.h"

namespace rowmax {
namespace {

using detail::DeclinedKernel;
using detail::PlanData;
using detail::PlanStep;

// What a GPU kernel computes beyond the problem.
enum class Excess {
  kNone,
  kOptions,   // has code for options of other problems, which others do without
  kHeadDims,  // is made for larger head dims than others that serve
};

struct Candidate {
  const Backend* backend = nullptr;
  const KernelEntry* kernel = nullptr;
  double predicted_us = 0.0;  // GPU kernels
  Excess excess = Excess::kNone;
};

struct Request {
  const AttentionProblem& problem;
  const DeviceInfo& device;
  Isa isa = Isa::kPortable;
  std::string forced;  // empty: free choice
  plan::RankingTable ranking;
};

constexpr Isa kCpuIsas[] = {Isa::kPortable, Isa::kAvx2};
constexpr Isa kGpuIsas[] = {Isa::kSm90};

bool is_gpu(const DeviceInfo& device) { return device.kind == "cuda"; }

std::optional<Isa> parse_isa(const DeviceInfo& device) {
  const std::span<const Isa> known =
      is_gpu(device) ? std::span<const Isa>(kGpuIsas) : std::span<const Isa>(kCpuIsas);
  for (const Isa isa : known) {
    if (device.isa == to_string(isa)) {
      return isa;
    }
  }
  return std::nullopt;
}

const char* to_text(Compute compute) { return compute == Compute::kF64 ? "f64" : "f32"; }

const char* to_text(StepKind kind) {
  switch (kind) {
    case StepKind::kForward:
      return "forward";
    case StepKind::kDecode:
      return "decode";
    case StepKind::kCombine:
      return "combine";
    case StepKind::kRowStats:
      return "row statistics";
    case StepKind::kBackward:
      return "backward";
    case StepKind::kBiasGradient:
      return "bias gradient";
    case StepKind::kReduce:
      return "reduce";
  }
  return "?";
}

bool is_main_step(StepKind kind, Op op) {
  return op == Op::kForward ? kind == StepKind::kForward || kind == StepKind::kDecode
                            : kind == StepKind::kBackward;
}

bool is_main_step(StepKind kind) {
  return is_main_step(kind, Op::kForward) || is_main_step(kind, Op::kBackward);
}

// A backend whose kernels do everything in their one step has no helper kernels at all.
bool is_one_step(const Backend& backend) {
  return std::all_of(backend.kernels.begin(), backend.kernels.end(),
                     [](const KernelEntry& entry) { return is_main_step(entry.config.step); });
}

const KernelEntry* find_helper(const AttentionProblem& problem, const Candidate& main,
                               StepKind kind) {
  const KernelConfig& config = main.kernel->config;
  for (const KernelEntry& entry : main.backend->kernels) {
    if (entry.config.step == kind && entry.config.isa == config.isa &&
        entry.config.compute == config.compute &&
        entry.config.dtype.value_or(problem.dtype) == problem.dtype) {
      return &entry;
    }
  }
  return nullptr;
}

struct HelperKinds {
  std::vector<StepKind> before;
  std::vector<StepKind> after;
};

// A GPU's backward always sums dQ in the workspace: its schedule has query tiles.
HelperKinds helper_kinds(const AttentionProblem& problem, const Schedule& main) {
  if (problem.op == Op::kForward) {
    return main.splits > 1 ? HelperKinds{{}, {StepKind::kCombine}} : HelperKinds();
  }
  HelperKinds kinds{{StepKind::kRowStats}, {}};
  const Gradients& g = problem.gradients;
  if (g.dbias) {
    kinds.after.push_back(StepKind::kBiasGradient);
  }
  const bool sums_dq = main.splits > 1 || main.query_tiles > 0;
  if ((sums_dq && g.dq) || g.dsinks || g.dslopes) {
    kinds.after.push_back(StepKind::kReduce);
  }
  return kinds;
}

Schedule preferred_schedule(const Request& request, const Candidate& main) {
  const KernelConfig& config = main.kernel->config;
  if (is_gpu(request.device)) {
    return plan::cuda_schedule(request.problem, config, request.device);
  }
  Schedule schedule = plan::main_schedule(request.problem, config, request.device);
  if (is_one_step(*main.backend)) {
    schedule = plan::with_splits(request.problem, config, schedule, 1);
    // Its gradients summed over the batch are written even where the batch is empty.
    schedule.items = std::max<int64_t>(schedule.items, 1);
  }
  return schedule;
}

// Steps of the candidate, or why a helper step cannot be had.
Result<PlanData> build_steps(const Request& request, const Candidate& main,
                             const Schedule& schedule) {
  PlanData data;
  data.problem = request.problem;
  data.device = request.device;
  data.backend = main.backend->name;
  const HelperKinds kinds =
      is_one_step(*main.backend) ? HelperKinds() : helper_kinds(request.problem, schedule);
  const auto add_helpers = [&](const std::vector<StepKind>& wanted) -> Status {
    for (const StepKind kind : wanted) {
      const KernelEntry* entry = find_helper(request.problem, main, kind);
      if (entry == nullptr) {
        return Status::unsupported(
            fmt::format("backend {} has no {} kernel for {} {}", main.backend->name, to_text(kind),
                        to_string(main.kernel->config.isa), to_text(main.kernel->config.compute)));
      }
      if (entry->supports != nullptr) {
        if (Status status = entry->supports(request.problem, entry->config); !status.ok()) {
          return Status::unsupported(fmt::format("{}: {}", entry->config.name, status.message()));
        }
      }
      data.steps.push_back(
          {entry,
           is_gpu(request.device)
               ? plan::cuda_helper_schedule(request.problem, entry->config, schedule)
               : plan::helper_schedule(request.problem, entry->config, schedule),
           0});
    }
    return {};
  };
  if (Status status = add_helpers(kinds.before); !status.ok()) {
    return status;
  }
  data.main_step = data.steps.size();
  data.kernel_name = main.kernel->config.name;
  data.steps.push_back({main.kernel, schedule, 0});
  if (Status status = add_helpers(kinds.after); !status.ok()) {
    return status;
  }
  plan::lay_out_workspace(data);
  return data;
}

struct Prediction {
  double us = 0.0;
  double ranking_factor = 1.0;  // in it
};

// Of a GPU kernel.
Prediction predict(const Request& request, const AttentionProblem& problem,
                   const KernelConfig& config) {
  const double factor = plan::ranking_factor(request.ranking, plan::ranking_place(problem), config);
  return {plan::predicted_us(problem, config, request.device, factor), factor};
}

// OK, or why the candidate does not serve the request.
Status admit(const Request& request, const Candidate& candidate) {
  const KernelConfig& config = candidate.kernel->config;
  const bool forced = request.forced == config.name;
  if (!request.forced.empty() && !forced) {
    return Status::unsupported(fmt::format("kernel {} is forced", request.forced));
  }
  if (candidate.backend->forced_only && !forced) {
    return Status::unsupported("reference kernels run only when forced by name");
  }
  if (is_gpu(request.device) ? config.isa != request.isa : config.isa > request.isa) {
    return Status::unsupported(
        fmt::format("needs {}, device offers {}", to_string(config.isa), to_string(request.isa)));
  }
  if (request.problem.batch_invariant && config.step == StepKind::kDecode && !forced) {
    return Status::unsupported(
        "batch-invariant plans use one kernel whatever the number of query rows");
  }
  if (candidate.kernel->supports != nullptr) {
    if (Status status = candidate.kernel->supports(request.problem, config); !status.ok()) {
      return status;
    }
  }
  const Result<PlanData> steps =
      build_steps(request, candidate, preferred_schedule(request, candidate));
  return steps.ok() ? Status() : steps.status();
}

// Kernels that do more than the problem asks lose to those that do not, whatever is predicted:
// short problems take about as long by either, and the ranking table holds no times of such pairs.
void mark_excess(std::vector<Candidate>& serving) {
  const auto columns = [](const Candidate& candidate) {
    return candidate.kernel->config.head_dim + candidate.kernel->config.head_dim_v;
  };
  // Columns are stored in panels of 64: D 96 and D 128 take the same shared memory and contend.
  const auto panels = [](const Candidate& candidate) {
    constexpr int64_t kPanelColumns = 64;
    return ceil_div(candidate.kernel->config.head_dim, kPanelColumns) +
           ceil_div(candidate.kernel->config.head_dim_v, kPanelColumns);
  };
  int64_t least_panels = std::numeric_limits<int64_t>::max();
  int special_columns = std::numeric_limits<int>::max();  // of kernels without other options' code
  for (const Candidate& candidate : serving) {
    least_panels = std::min(least_panels, panels(candidate));
    if (candidate.kernel->config.options != OptionClass::kAll) {
      special_columns = std::min(special_columns, columns(candidate));
    }
  }
  for (Candidate& candidate : serving) {
    if (panels(candidate) > least_panels) {
      candidate.excess = Excess::kHeadDims;
    } else if (candidate.kernel->config.options == OptionClass::kAll &&
               special_columns <= columns(candidate)) {
      candidate.excess = Excess::kOptions;
    }
  }
}

// Rules in order; the first that tells two candidates apart decides.
enum class RankRule { kExcess, kTime, kDecode, kIsa, kCompute, kOrder };

// True when `a` goes before `b`; `rule` tells why.
bool goes_before(const Candidate& candidate, const Candidate& other, RankRule& rule) {
  const KernelConfig& a = candidate.kernel->config;
  const KernelConfig& b = other.kernel->config;
  if (candidate.excess != other.excess) {
    rule = RankRule::kExcess;
    return candidate.excess < other.excess;
  }
  if (candidate.predicted_us != other.predicted_us) {
    rule = RankRule::kTime;
    return candidate.predicted_us < other.predicted_us;
  }
  const bool a_decode = a.step == StepKind::kDecode;
  const bool b_decode = b.step == StepKind::kDecode;
  if (a_decode != b_decode) {
    rule = RankRule::kDecode;
    return a_decode;
  }
  if (a.isa != b.isa) {
    rule = RankRule::kIsa;
    return a.isa > b.isa;
  }
  if (a.compute != b.compute) {
    rule = RankRule::kCompute;
    return a.compute < b.compute;  // kernels in fp32 decline fp64 problems themselves
  }
  rule = RankRule::kOrder;
  return false;
}

std::string lost_reason(const Candidate& lost, const Candidate& won, RankRule rule) {
  const KernelConfig& loser = lost.kernel->config;
  const KernelConfig& winner = won.kernel->config;
  switch (rule) {
    case RankRule::kExcess:
      return lost.excess == Excess::kOptions
                 ? "serves it, but has code for options that the problem does not use"
                 : fmt::format("serves it, but computes head dims ({}, {})", loser.head_dim,
                               loser.head_dim_v);
    case RankRule::kTime:
      return fmt::format("serves it, predicted {:.1f} us", lost.predicted_us);
    case RankRule::kDecode:
      return fmt::format("serves it, but {} reads K and V once for all query rows", winner.name);
    case RankRule::kIsa:
      return fmt::format("serves it, but {} uses {}", winner.name, to_string(winner.isa));
    case RankRule::kCompute:
      return fmt::format("serves it, but computes in {}, which the dtype does not need",
                         to_text(loser.compute));
    case RankRule::kOrder:
      return fmt::format("serves it, but {} is registered first", winner.name);
  }
  return {};
}

std::string choice_reason(const Request& request, const Candidate& won, size_t serving) {
  const KernelConfig& winner = won.kernel->config;
  if (!request.forced.empty()) {
    return "forced by name";
  }
  if (is_gpu(request.device)) {
    return fmt::format("least predicted time, {:.1f} us{}", won.predicted_us,
                       request.problem.batch_invariant ? " (of a fixed batch and length)" : "");
  }
  if (serving == 1) {
    return "the only kernel that serves the problem";
  }
  if (winner.step == StepKind::kDecode) {
    return fmt::format("few query rows: keys are split and read once; {} {}", to_string(winner.isa),
                       to_text(winner.compute));
  }
  return fmt::format("highest instruction set that serves the problem: {} {}",
                     to_string(winner.isa), to_text(winner.compute));
}

std::vector<Candidate> gather(Op op, const DeviceInfo& device,
                              std::span<const Backend* const> backends) {
  std::vector<Candidate> candidates;
  for (const Backend* backend : backends) {
    if (device.kind != backend->device_kind) {
      continue;
    }
    for (const KernelEntry& entry : backend->kernels) {
      if (is_main_step(entry.config.step, op)) {
        candidates.push_back({backend, &entry, 0.0});
      }
    }
  }
  return candidates;
}

// "forward (31 kernels), decode (2 kernels)": what the backends of a kind of device compute.
std::string computed_text(const DeviceInfo& device, std::span<const Backend* const> backends) {
  std::string text;
  for (const StepKind kind : {StepKind::kForward, StepKind::kDecode, StepKind::kBackward}) {
    int64_t count = 0;
    for (const Backend* backend : backends) {
      count += device.kind == backend->device_kind
                   ? std::count_if(backend->kernels.begin(), backend->kernels.end(),
                                   [kind](const auto& entry) { return entry.config.step == kind; })
                   : 0;
    }
    if (count > 0) {
      text += fmt::format("{}{} ({} kernel{})", text.empty() ? "" : ", ", to_text(kind), count,
                          count == 1 ? "" : "s");
    }
  }
  return text.empty() ? "nothing" : text;
}

// Without a candidate there is no declined kernel that would tell why.
Status nothing_computes(const AttentionProblem& problem, const DeviceInfo& device,
                        std::span<const Backend* const> backends) {
  return Status::unsupported(fmt::format(
      "no kernel serves '{}': no kernel of device {} ({}) computes {}; it has: {}",
      to_string(problem), device.name.empty() ? device.kind : device.name, device.isa,
      problem.op == Op::kForward ? "forward" : "backward", computed_text(device, backends)));
}

Status check_forced(const std::string& forced, const std::vector<Candidate>& candidates) {
  std::string known;
  for (const Candidate& candidate : candidates) {
    if (forced.empty() || forced == candidate.kernel->config.name) {
      return {};
    }
    known += known.empty() ? "" : ", ";
    known += candidate.kernel->config.name;
  }
  return Status::invalid(fmt::format("force_kernel is '{}'; accepted: {}", forced, known));
}

Status nothing_serves(const AttentionProblem& problem, const std::vector<Candidate>& candidates,
                      const std::vector<DeclinedKernel>& declined) {
  std::vector<plan::Refusal> refusals;
  for (size_t i = 0; i < candidates.size(); ++i) {
    refusals.push_back({&candidates[i].kernel->config, declined[i].reason});
  }
  return Status::unsupported(plan::refusal_text(problem, refusals));
}

// The steps of the preferred schedule, or of the one nearest to it that keeps the limit. What one
// worker needs is judged, so that neither the plan nor its results depend on a thread count.
Result<PlanData> build_within(const Request& request, const Candidate& main, size_t limit) {
  const KernelConfig& config = main.kernel->config;
  const Schedule preferred = preferred_schedule(request, main);
  Result<PlanData> data = build_steps(request, main, preferred);
  if (!data.ok() || limit == 0) {
    return data;
  }
  size_t least = plan::workspace_bytes(*data, 1);
  if (least <= limit) {
    return data;
  }
  if (is_gpu(request.device) && preferred.cut_ranges > 0) {
    data = build_steps(request, main, plan::without_cuts(preferred));
    if (!data.ok()) {
      return data;
    }
    least = plan::workspace_bytes(*data, 1);
    if (least <= limit) {
      return data;
    }
  }
  if (!is_one_step(*main.backend) && !is_gpu(request.device)) {
    for (const int64_t count : plan::other_split_counts(request.problem, config, preferred)) {
      data =
          build_steps(request, main, plan::with_splits(request.problem, config, preferred, count));
      if (!data.ok()) {
        return data;
      }
      const size_t needed = plan::workspace_bytes(*data, 1);
      if (needed <= limit) {
        return data;
      }
      least = std::min(least, needed);
    }
  }
  return Status(StatusCode::kOutOfMemory,
                fmt::format("max_workspace is {} bytes; accepted: at least {} bytes for one worker "
                            "({})",
                            limit, least, config.name));
}

// The instruction set of a device whose fields are legal.
Result<Isa> checked_isa(const DeviceInfo& device) {
  if (device.kind != "cpu" && !is_gpu(device)) {
    return Status::invalid(fmt::format("device kind is '{}'; accepted: cpu, cuda", device.kind));
  }
  if (is_gpu(device) &&
      (device.cores <= 0 || !(device.clock_ghz > 0.0) || !(device.memory_gbps > 0.0))) {
    return Status::invalid(
        fmt::format("device {}: {} multiprocessors, {} GHz, {} GB/s; accepted: positive numbers",
                    device.name, device.cores, device.clock_ghz, device.memory_gbps));
  }
  const std::optional<Isa> isa = parse_isa(device);
  if (!isa && is_gpu(device)) {
    return Status::unsupported(
        fmt::format("device {} is of architecture '{}'; this version has kernels for sm90",
                    device.name, device.isa));
  }
  if (!isa) {
    return Status::invalid(
        fmt::format("device isa is '{}'; accepted: portable, avx2 (ROWMAX_MAX_ISA "
                    "lowers the host's)",
                    device.isa));
  }
  return *isa;
}

Status check_options(const PlanOptions& options) {
  if (options.max_workspace < 0) {
    return Status::invalid(fmt::format("max_workspace is {}; accepted: at least 0 (0: no limit)",
                                       options.max_workspace));
  }
  return {};
}

std::string forced_name(const PlanOptions& options) {
  if (!options.force_kernel.empty()) {
    return options.force_kernel;
  }
  const char* name = std::getenv("ROWMAX_FORCE_KERNEL");
  return name != nullptr ? name : "";
}

}  // namespace

Result<Plan> make_plan_with(const AttentionProblem& problem, const DeviceInfo& device,
                            const PlanOptions& options, std::span<const Backend* const> backends,
                            plan::RankingTable ranking) {
  if (Status status = validate(problem); !status.ok()) {
    return status;
  }
  if (Status status = check_options(options); !status.ok()) {
    return status;
  }
  const Result<Isa> isa = checked_isa(device);
  if (!isa.ok()) {
    return isa.status();
  }
  const Request request{problem, device, *isa, forced_name(options), ranking};
  const std::vector<Candidate> candidates = gather(problem.op, device, backends);
  if (candidates.empty()) {
    return nothing_computes(problem, device, backends);
  }
  if (Status status = check_forced(request.forced, candidates); !status.ok()) {
    return status;
  }

  std::vector<Candidate> serving;
  std::vector<DeclinedKernel> declined;
  for (const Candidate& candidate : candidates) {
    const Status status = admit(request, candidate);
    if (status.ok()) {
      serving.push_back(candidate);
      if (is_gpu(device)) {
        serving.back().predicted_us =
            predict(request, plan::ranked_problem(problem), candidate.kernel->config).us;
      }
    } else {
      declined.push_back({candidate.kernel->config.name, status.message(), false, false});
    }
  }
  if (serving.empty()) {
    return nothing_serves(problem, candidates, declined);
  }
  if (is_gpu(device)) {
    mark_excess(serving);
  }
  RankRule rule = RankRule::kOrder;
  std::stable_sort(serving.begin(), serving.end(), [&rule](const Candidate& a, const Candidate& b) {
    return goes_before(a, b, rule);
  });
  const Candidate& winner = serving.front();
  for (size_t i = 1; i < serving.size(); ++i) {
    const Candidate& loser = serving[i];
    goes_before(winner, loser, rule);
    declined.push_back({loser.kernel->config.name, lost_reason(loser, winner, rule), true,
                        is_gpu(device) && rule != RankRule::kExcess});
  }

  Result<PlanData> data =
      build_within(request, serving.front(), static_cast<size_t>(options.max_workspace));
  if (!data.ok()) {
    return data.status();
  }
  data.value().declined = std::move(declined);
  data.value().choice = choice_reason(request, winner, serving.size());
  if (is_gpu(device)) {
    const Prediction prediction = predict(request, problem, winner.kernel->config);
    data.value().predicted_us = prediction.us;
    data.value().ranking_factor = prediction.ranking_factor;
  }
  return Plan(std::make_shared<const PlanData>(std::move(data).value()));
}

}  // namespace rowmax
