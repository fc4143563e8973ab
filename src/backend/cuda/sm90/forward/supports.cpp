#include "backend/cuda/sm90/forward/supports.h"

#include <cstdio>
#include <string>

#include "backend/cuda/sm90/forward/config.h"
#include "backend/cuda/tile/tanh.h"

namespace rowmax::cuda::sm90 {
namespace {

// Positions, and sums of a position and a band's bound, are 32-bit in the kernel:
// a bound saturates at 2^30, and a tile adds at most 256 rows and a block of keys to it.
constexpr int64_t kMaxLength = (int64_t{1} << 30) - 1024;
// The kernel's tanh is accurate to 2^-22 of the cap, not of the score.
constexpr double kLargestSoftcap = 1024.0;
constexpr double kMaxTiles = 1 << 30;
// The copy engine moves 16 bytes: 8 elements.
constexpr int64_t kDimMultiple = 8;

Status too_large(const char* name, int64_t value, int64_t limit) {
  return Status::unsupported(std::string(name) + " " + std::to_string(value) + " exceeds " +
                             std::to_string(limit));
}

Status check_head_dim(const char* name, int64_t value, int limit) {
  if (value > limit) {
    return too_large(name, value, limit);
  }
  if (value % kDimMultiple != 0) {
    return Status::unsupported(std::string(name) + " " + std::to_string(value) +
                               " is no multiple of 8");
  }
  return {};
}

Status check_score(const AttentionProblem& problem) {
  if (problem.score.mask.present) {
    return Status::unsupported("boolean mask is not implemented on this kernel");
  }
  if (problem.score.bias.present) {
    return Status::unsupported("additive bias is not implemented on this kernel");
  }
  if (problem.score.block_mask) {
    return Status::unsupported("block mask is not implemented on this kernel");
  }
  if (problem.score.document_ids) {
    return Status::unsupported("document ids are not implemented on this kernel");
  }
  if (problem.score.dropout_p > 0.0) {
    return Status::unsupported("dropout is not implemented on this kernel");
  }
  return {};
}

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

Status check_sizes(const AttentionProblem& problem, const KernelConfig& config) {
  const Sizes& sizes = problem.sizes;
  const Storage& storage = problem.storage;
  if (sizes.seqlen_q > kMaxLength) {
    return too_large("seqlen_q", sizes.seqlen_q, kMaxLength);
  }
  if (sizes.seqlen_k > kMaxLength) {
    return too_large("seqlen_k", sizes.seqlen_k, kMaxLength);
  }
  if (storage.total_q > kMaxLength) {
    return too_large("total_q", storage.total_q, kMaxLength);
  }
  if (storage.total_k > kMaxLength) {
    return too_large("total_k", storage.total_k, kMaxLength);
  }
  // Tiles are numbered in 31 bits, and every CTA takes one number too many. In floating point: the
  // product may exceed 64 bits.
  const double tiles = static_cast<double>(sizes.batch) * static_cast<double>(sizes.heads_q) *
                       static_cast<double>((sizes.seqlen_q + config.tile_q - 1) / config.tile_q);
  if (tiles > kMaxTiles) {
    char text[64];
    std::snprintf(text, sizeof(text), "%.0f tiles exceed %.0f", tiles, kMaxTiles);
    return Status::unsupported(text);
  }
  return {};
}

}  // namespace

Status supports(const AttentionProblem& problem, const KernelConfig& config) {
  if (problem.op != Op::kForward) {
    return Status::unsupported("computes forward only");
  }
  if (config.dtype != problem.dtype) {
    return Status::unsupported(std::string("computes ") + to_string(*config.dtype) + ", dtype is " +
                               to_string(problem.dtype));
  }
  if (problem.storage.key == Source::kPaged) {
    return Status::unsupported("paged keys are not implemented on this kernel");
  }
  if (config.mask == MaskClass::kFull && !problem.band.is_full()) {
    return Status::unsupported("masks no band");
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
  return check_sizes(problem, config);
}

}  // namespace rowmax::cuda::sm90
