#include "testkit/runner.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "kernel_api/plan_data.h"
#include "rowmax/attention.h"
#include "testkit/arena.h"
#include "testkit/device_memory.h"
#include "testkit/judge.h"
#include "testkit/outputs.h"

namespace rowmax::testkit {
namespace {

// The same on a GPU, on copies of tensors and workspace: once on every multiprocessor and once on
// one, as `one_last` says. The second call finds its outputs poisoned anew, and the workspace as
// the first one left it.
Status execute_on_gpu(const Plan& plan, CaseInputs& inputs, Arena& workspace_arena,
                      const void* workspace, size_t bytes, bool one_last) {
  const int ordinal = plan.data().device.ordinal;
  const auto tensors = DeviceMirror::create(inputs.blocks(), ordinal);
  const auto scratch = DeviceMirror::create(workspace_arena.blocks(), ordinal);
  if (!tensors.ok() || !scratch.ok()) {
    return tensors.ok() ? scratch.status() : tensors.status();
  }
  if (Status status = (*scratch)->upload(); !status.ok()) {
    return status;
  }
  for (const bool one : {!one_last, one_last}) {
    ExecuteOptions options;
    options.sm_margin = one ? plan.data().device.cores - 1 : 0;
    Status status = (*tensors)->upload();
    if (status.ok()) {
      status = execute(plan, (*tensors)->map(inputs.tensors()), (*scratch)->map(workspace), bytes,
                       options);
    }
    if (!status.ok()) {
      return status;
    }
  }
  const Status status = (*scratch)->download();
  return status.ok() ? (*tensors)->download() : status;
}

}  // namespace

bool RunReport::passed() const {
  return status.ok() && violations.empty() &&
         std::all_of(outputs.begin(), outputs.end(),
                     [](const OutputReport& output) { return output.passed(); });
}

double RunReport::worst_ratio() const {
  double worst = 0.0;
  for (const OutputReport& output : outputs) {
    worst = std::max(worst, output.ratio);
  }
  return worst;
}

std::string RunReport::text() const {
  char number[40];
  if (!status.ok()) {
    return std::string(to_string(status.code())) + ": " + status.message() + "\n  " + repro;
  }
  std::snprintf(number, sizeof(number), "%.3f", worst_ratio());
  if (passed()) {
    return kernel + ": passed, error / limit " + number;
  }
  std::string text = kernel + ": FAILED";
  for (const OutputReport& output : outputs) {
    if (!output.passed()) {
      std::snprintf(number, sizeof(number), "%.3g", output.ratio);
      text += std::string("\n  ") + to_string(output.output) + ": " +
              std::to_string(output.value_mismatches) + " values beyond the limit (error / limit " +
              number + "), " + std::to_string(output.nonfinite_mismatches) +
              " NaN or infinity mismatches, of " + std::to_string(output.elements) +
              "\n    worst " + output.worst;
    }
  }
  for (const std::string& violation : violations) {
    text += "\n  " + violation;
  }
  return text + "\n  " + repro;
}

std::vector<std::string> serving_kernels(const Plan& plan) {
  std::vector<std::string> names = {plan.kernel()};
  for (const detail::DeclinedKernel& kernel : plan.data().declined) {
    if (kernel.serves) {
      names.push_back(kernel.name);
    }
  }
  return names;
}

std::vector<std::string> contending_kernels(const Plan& plan) {
  std::vector<std::string> names = {plan.kernel()};
  for (const detail::DeclinedKernel& kernel : plan.data().declined) {
    if (kernel.contends) {
      names.push_back(kernel.name);
    }
  }
  return names;
}

Status execute_case(const Plan& plan, CaseInputs& inputs, int threads,
                    std::vector<std::string>* violations, bool one_multiprocessor) {
  const size_t bytes = plan.workspace_bytes(threads);
  Arena arena;
  void* workspace =
      arena.allocate("workspace", DType::kF32,
                     static_cast<int64_t>((bytes + sizeof(float) - 1) / sizeof(float)), 0);
  arena.expect_write(workspace, bytes);
  arena.seal();
  ExecuteOptions options;
  options.threads = threads;
  const Status status =
      plan.data().device.kind == "cpu"
          ? execute(plan, inputs.tensors(), workspace, bytes, options)
          : execute_on_gpu(plan, inputs, arena, workspace, bytes, one_multiprocessor);
  if (violations != nullptr) {
    *violations = arena.violations();
  }
  return status;
}

namespace {

std::string repro_line(const Case& spec, const std::string& kernel, const RunOptions& run) {
  return "rowmax verify \"" + to_string(spec) + "\"" +
         (run.device.kind == "cpu"
              ? ""
              : " --device " + run.device.kind + ":" + std::to_string(run.device.ordinal)) +
         (kernel.empty() ? "" : " --kernel " + kernel) +
         (run.threads > 0 ? " --threads " + std::to_string(run.threads) : "");
}

// Names the outputs whose bits differ.
void compare_runs(const OutputValues& first, const OutputValues& again,
                  std::vector<std::string>* violations) {
  for (int n = 0; n < kOutputCount; ++n) {
    const std::vector<double>& a = first[static_cast<size_t>(n)];
    const std::vector<double>& b = again[static_cast<size_t>(n)];
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) != 0) {
      violations->push_back(std::string(to_string(static_cast<Output>(n))) +
                            ": two runs give different bits");
    }
  }
}

// One kernel on inputs whose outputs are poisoned; `judge` is made when the first one has run.
void run_kernel(const Case& spec, CaseInputs& inputs, const RunOptions& run,
                std::optional<Judge>& judge, RunReport& report) {
  PlanOptions options;
  options.force_kernel = run.kernel;
  const Result<Plan> plan = make_plan(spec.problem, run.device, options);
  if (!plan.ok()) {
    report.status = plan.status();
    return;
  }
  report.kernel = plan->kernel();
  OutputValues first;
  for (int n = 0; n < run.runs; ++n) {
    inputs.restore();
    std::vector<std::string> violations;
    report.status = execute_case(*plan, inputs, run.threads, &violations, n % 2 != 0);
    if (!report.status.ok()) {
      return;
    }
    for (const std::string& violation : inputs.violations()) {
      violations.push_back(violation);
    }
    report.violations.insert(report.violations.end(), violations.begin(), violations.end());
    if (n == 0 && run.runs > 1) {
      first = gather(spec.problem, inputs.args());
    } else if (n > 0) {
      compare_runs(first, gather(spec.problem, inputs.args()), &report.violations);
    }
  }
  if (!judge) {
    judge.emplace(spec.problem, inputs.args());
  }
  report.outputs = judge->judge();
}

}  // namespace

std::vector<RunReport> run_kernels(const Case& spec, const std::vector<std::string>& kernels,
                                   const RunOptions& run) {
  const Result<std::unique_ptr<CaseInputs>> created = CaseInputs::create(spec);
  std::optional<Judge> judge;
  std::vector<RunReport> reports;
  for (const std::string& kernel : kernels) {
    RunReport& report = reports.emplace_back();
    report.repro = repro_line(spec, kernel, run);
    report.status = created.status();
    if (created.ok()) {
      RunOptions one = run;
      one.kernel = kernel;
      run_kernel(spec, **created, one, judge, report);
    }
  }
  return reports;
}

RunReport run_case(const Case& spec, const RunOptions& run) {
  return run_kernels(spec, {run.kernel}, run).front();
}

Result<std::vector<std::vector<double>>> time_on_gpu(const std::vector<Plan>& plans,
                                                     CaseInputs& inputs, int rounds,
                                                     double round_seconds) {
  constexpr double kMostCalls = 1000.0;
  const int ordinal = plans.front().data().device.ordinal;
  size_t bytes = 0;
  for (const Plan& plan : plans) {
    bytes = std::max(bytes, plan.workspace_bytes());
  }
  Arena arena;
  void* workspace =
      arena.allocate("workspace", DType::kI64, static_cast<int64_t>(bytes / 8 + 1), 0);
  std::vector<HostBlock> blocks = inputs.blocks();
  blocks.push_back(arena.blocks().front());
  const auto mirror = DeviceMirror::create(blocks, ordinal);
  if (!mirror.ok()) {
    return mirror.status();
  }
  if (Status status = (*mirror)->upload(); !status.ok()) {
    return status;
  }
  const AttentionTensors tensors = (*mirror)->map(inputs.tensors());
  const auto timed = [&](const Plan& plan, int calls) {
    return timed_on_gpu(ordinal, calls, [&](void* stream) {
      ExecuteOptions options;
      options.stream = stream;
      return execute(plan, tensors, (*mirror)->map(workspace), bytes, options);
    });
  };
  std::vector<int> calls;
  for (const Plan& plan : plans) {
    const Result<double> once = timed(plan, 1);
    if (!once.ok()) {
      return once.status();
    }
    calls.push_back(static_cast<int>(std::clamp(round_seconds / *once, 1.0, kMostCalls)));
  }
  std::vector<std::vector<double>> seconds(plans.size());
  for (int round = 0; round <= rounds; ++round) {
    for (size_t n = 0; n < plans.size(); ++n) {
      const size_t turn = (n + static_cast<size_t>(round)) % plans.size();
      const Result<double> measured = timed(plans[turn], calls[turn]);
      if (!measured.ok()) {
        return measured.status();
      }
      if (round > 0) {
        seconds[turn].push_back(*measured);
      }
    }
  }
  return seconds;
}

double predicted_seconds(const Plan& plan) { return plan.data().predicted_us / 1e6; }

}  // namespace rowmax::testkit
