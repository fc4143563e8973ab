#include "backend/cuda/sm90/backward/supports.h"

#include <algorithm>
#include <string>

#include "backend/cuda/sm90/limits.h"
#include "backend/cuda/sm90/panels.h"

namespace rowmax::cuda::sm90 {
namespace {

// What the kernel has no code for yet.
Status check_features(const AttentionProblem& problem) {
  const ScoreOptions& score = problem.score;
  const struct {
    bool wanted;
    const char* reason;
  } features[] = {
      {score.softcap != 0.0, "has no softcap"},
      {score.alibi, "has no ALiBi"},
      {problem.effective_scale() < kSmallestScale, "needs a scale of at least 1e-30"},
  };
  for (const auto& feature : features) {
    if (feature.wanted) {
      return Status::unsupported(feature.reason);
    }
  }
  if (problem.out_dtype != problem.dtype) {
    return Status::unsupported(std::string("reads O in ") + to_string(problem.dtype) +
                               ", out_dtype is " + to_string(problem.out_dtype));
  }
  return {};
}

double tiles_of(int64_t batch, int64_t heads, int64_t length, int tile) {
  return static_cast<double>(batch) * static_cast<double>(heads) *
         static_cast<double>((length + tile - 1) / tile);
}

}  // namespace

Status supports_backward(const AttentionProblem& problem, const KernelConfig& config) {
  if (problem.op != Op::kBackward) {
    return Status::unsupported("computes backward only");
  }
  if (Status status = check_operands(problem, config); !status.ok()) {
    return status;
  }
  const Sizes& sizes = problem.sizes;
  if (Status status = check_head_dim("head_dim", sizes.head_dim, config.head_dim); !status.ok()) {
    return status;
  }
  if (Status status = check_head_dim("head_dim_v", sizes.head_dim_v, config.head_dim_v);
      !status.ok()) {
    return status;
  }
  if (Status status = check_score(problem); !status.ok()) {
    return status;
  }
  if (Status status = check_features(problem); !status.ok()) {
    return status;
  }
  const Storage& storage = problem.storage;
  const double ragged_tiles =  // every sequence may end in a part of one
      storage.query == Source::kRagged
          ? tiles_of(1, sizes.heads_q, storage.total_q, config.tile_q) +
                tiles_of(sizes.batch, sizes.heads_q, 1, 1)
          : 0.0;
  return check_sizes(
      problem,
      std::max({ragged_tiles, tiles_of(sizes.batch, sizes.heads_q, sizes.seqlen_q, config.tile_q),
                tiles_of(sizes.batch, sizes.heads_kv, sizes.seqlen_k, config.tile_k)}));
}

Status supports_helper(const AttentionProblem& problem, const KernelConfig& config) {
  if (problem.op != Op::kBackward) {
    return Status::unsupported("a step of backward only");
  }
  return check_operands(problem, config);
}

}  // namespace rowmax::cuda::sm90
