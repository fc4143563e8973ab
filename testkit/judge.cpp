#include "testkit/judge.h"

#include "api/bind.h"
#include "backend/reference/registry.h"
#include "testkit/bounds.h"
#include "testkit/naive.h"
#include "testkit/outputs.h"

namespace rowmax::testkit {
namespace {

OutputValues run_oracle(const AttentionProblem& problem, const AttentionArgs& args) {
  DenseOutputs memory(problem, DenseOutputs::Precision::kF64);
  const AttentionArgs redirected = memory.redirect(args);
  int64_t next_item = 0;
  KernelLaunch launch;
  launch.args = &redirected;
  launch.next_item = &next_item;
  launch.workers = 2;
  const auto run = problem.op == Op::kForward ? reference::run_forward : reference::run_backward;
#pragma omp parallel for
  for (int worker = 0; worker < launch.workers; ++worker) {
    run(launch, worker);
  }
  return gather(problem, redirected);
}

OutputValues run_naive_outputs(const AttentionProblem& problem, const AttentionArgs& args) {
  DenseOutputs memory(problem, DenseOutputs::Precision::kOfProblem);
  const AttentionArgs redirected = memory.redirect(args);
  run_naive(problem, redirected, 0);
  return gather(problem, redirected);
}

}  // namespace

std::vector<OutputReport> judge_outputs(const AttentionProblem& problem,
                                        const AttentionArgs& args) {
  const OutputValues got = gather(problem, args);
  const OutputValues oracle = run_oracle(problem, args);
  const OutputValues naive = run_naive_outputs(problem, args);
  const OutputBounds bounds = error_bounds(problem, args, oracle);
  std::vector<OutputReport> reports;
  for (int n = 0; n < kOutputCount; ++n) {
    const auto output = static_cast<Output>(n);
    if (is_written(problem, output)) {
      const auto at = static_cast<size_t>(n);
      reports.push_back(compare_output(output_rows(problem, args, output), output, got[at],
                                       oracle[at], naive[at], bounds[at]));
    }
  }
  return reports;
}

Result<std::vector<OutputReport>> judge_tensors(const AttentionProblem& problem,
                                                const AttentionTensors& tensors) {
  const Result<AttentionArgs> args = bind_arguments(problem, tensors);
  if (!args.ok()) {
    return args.status();
  }
  return judge_outputs(problem, *args);
}

}  // namespace rowmax::testkit
