#include "backend/reference/registry.h"

namespace rowmax::reference {
namespace {

Status supports(const AttentionProblem& problem, const KernelConfig& config) {
  const bool backward = problem.op == Op::kBackward;
  if (backward != (config.step == StepKind::kBackward)) {
    return Status::unsupported(backward ? "computes forward only" : "computes backward only");
  }
  if (problem.score.block_mask) {
    return Status::unsupported("block mask is not implemented yet");
  }
  if (backward && problem.storage.key == Source::kPaged) {
    return Status::unsupported("backward with paged keys: two sequences may share a page");
  }
  return Status::ok_status();
}

size_t no_scratch(const AttentionProblem& /*problem*/, const KernelConfig& /*config*/,
                  const Schedule& /*schedule*/) {
  return 0;
}

constexpr KernelConfig config_of(const char* name, StepKind step) {
  KernelConfig config;
  config.name = name;
  config.step = step;
  config.compute = Compute::kF64;
  config.tile_q = 1;
  config.tile_k = 1;
  return config;
}

const KernelEntry kKernels[] = {
    {config_of("reference_forward", StepKind::kForward), supports, no_scratch, run_forward},
    {config_of("reference_backward", StepKind::kBackward), supports, no_scratch, run_backward},
};

}  // namespace

const Backend& backend() {
  static const Backend kBackend = {"reference", true, kKernels};
  return kBackend;
}

}  // namespace rowmax::reference
