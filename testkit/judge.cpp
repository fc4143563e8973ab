#include "testkit/judge.h"

#include <omp.h>

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
  launch.workers = omp_get_max_threads();
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

Judge::Judge(const AttentionProblem& problem, const AttentionArgs& args)
    : problem_(problem),
      args_(args),
      oracle_(run_oracle(problem, args)),
      naive_(run_naive_outputs(problem, args)),
      bounds_(error_bounds(problem, args, oracle_)) {}

std::vector<OutputReport> Judge::judge() const {
  const OutputValues got = gather(problem_, args_);
  std::vector<OutputReport> reports;
  for (int n = 0; n < kOutputCount; ++n) {
    const auto output = static_cast<Output>(n);
    if (is_written(problem_, output)) {
      const auto at = static_cast<size_t>(n);
      reports.push_back(compare_output(output_rows(problem_, args_, output), output, got[at],
                                       oracle_[at], naive_[at], bounds_[at]));
    }
  }
  return reports;
}

std::vector<OutputReport> judge_outputs(const AttentionProblem& problem,
                                        const AttentionArgs& args) {
  return Judge(problem, args).judge();
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
