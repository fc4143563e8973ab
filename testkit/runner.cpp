#include "testkit/runner.h"

#include <algorithm>
#include <cstdio>

#include "rowmax/attention.h"
#include "rowmax/plan.h"
#include "testkit/arena.h"
#include "testkit/inputs.h"
#include "testkit/judge.h"

namespace rowmax::testkit {
namespace {

// Runs the plan in a workspace full of NaN between guard zones.
Status run_plan(const Plan& plan, const AttentionTensors& tensors, int threads,
                std::vector<std::string>* violations) {
  const size_t bytes = plan.workspace_bytes(threads);
  Arena arena;
  void* workspace =
      arena.allocate("workspace", DType::kF32,
                     static_cast<int64_t>((bytes + sizeof(float) - 1) / sizeof(float)), 0);
  arena.expect_write(workspace, bytes);
  arena.seal();
  ExecuteOptions options;
  options.threads = threads;
  const Status status = execute(plan, tensors, workspace, bytes, options);
  *violations = arena.violations();
  return status;
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

RunReport run_case(const Case& spec, const std::string& force_kernel, int threads) {
  RunReport report;
  report.repro = "rowmax verify \"" + to_string(spec) + "\"" +
                 (force_kernel.empty() ? "" : " --kernel " + force_kernel) +
                 (threads > 0 ? " --threads " + std::to_string(threads) : "");
  const Result<std::unique_ptr<CaseInputs>> created = CaseInputs::create(spec);
  if (!created.ok()) {
    report.status = created.status();
    return report;
  }
  const CaseInputs& inputs = **created;
  PlanOptions options;
  options.force_kernel = force_kernel;
  const Result<Plan> plan = make_plan(spec.problem, host_device(), options);
  if (!plan.ok()) {
    report.status = plan.status();
    return report;
  }
  report.kernel = plan->kernel();
  report.status = run_plan(*plan, inputs.tensors(), threads, &report.violations);
  if (!report.status.ok()) {
    return report;
  }
  for (const std::string& violation : inputs.violations()) {
    report.violations.push_back(violation);
  }
  report.outputs = judge_outputs(spec.problem, inputs.args());
  return report;
}

}  // namespace rowmax::testkit
