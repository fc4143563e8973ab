#include "backend/cuda/sm90/forward/supports.h"

#include <cstdio>
#include <string>

#include "backend/cuda/sm90/forward/config.h"
#include "backend/cuda/sm90/limits.h"
#include "backend/cuda/tile/tanh.h"

namespace rowmax::cuda::sm90 {
namespace {

// The kernel's tanh is accurate to 2^-22 of the cap, not of the score.
constexpr double kLargestSoftcap = 1024.0;
// A row of one option has code for it alone, and always runs it.
Status check_option(const char* name, bool wanted, bool had) {
  if (wanted == had) {
    return {};
  }
  return Status::unsupported(std::string(wanted ? "has no " : "serves only ") + name);
}

Status check_options(const AttentionProblem& problem, const KernelConfig& config) {
  if (problem.score.softcap > kLargestSoftcap) {
    char text[64];
    std::snprintf(text, sizeof(text), "softcap %g exceeds %g", problem.score.softcap,
                  kLargestSoftcap);
    return Status::unsupported(text);
  }
  if (config.options == OptionClass::kAll) {
    return {};
  }
  if (Status status = check_option("softcap", problem.score.softcap != 0.0,
                                   config.options == OptionClass::kSoftcap);
      !status.ok()) {
    return status;
  }
  if (Status status =
          check_option("ALiBi", problem.score.alibi, config.options == OptionClass::kAlibi);
      !status.ok()) {
    return status;
  }
  if (problem.effective_scale() < kSmallestScale) {
    return Status::unsupported("needs a positive scale");
  }
  if (problem.score.softcap != 0.0 &&
      !tile::has_powers(problem.effective_scale() / problem.score.softcap)) {
    return Status::unsupported("scale / softcap must lie between 1e-5 and 1e5");
  }
  if (problem.out_dtype != problem.dtype) {
    return Status::unsupported(std::string("writes ") + to_string(problem.dtype) +
                               ", out_dtype is " + to_string(problem.out_dtype));
  }
  return {};
}

}  // namespace

Status supports(const AttentionProblem& problem, const KernelConfig& config) {
  if (problem.op != Op::kForward) {
    return Status::unsupported("computes forward only");
  }
  if (Status status = check_operands(problem, config); !status.ok()) {
    return status;
  }
  if (Status status = check_head_dim("head_dim", problem.sizes.head_dim, config.head_dim);
      !status.ok()) {
    return status;
  }
  if (Status status = check_head_dim("head_dim_v", problem.sizes.head_dim_v, config.head_dim_v);
      !status.ok()) {
    return status;
  }
  if (Status status = check_score(problem); !status.ok()) {
    return status;
  }
  if (Status status = check_options(problem, config); !status.ok()) {
    return status;
  }
  const Sizes& sizes = problem.sizes;
  return check_sizes(problem,
                     static_cast<double>(sizes.batch) * static_cast<double>(sizes.heads_q) *
                         static_cast<double>((sizes.seqlen_q + config.tile_q - 1) / config.tile_q));
}

}  // namespace rowmax::cuda::sm90
