#include "backend/cuda/sm90/limits.h"

#include <cstdio>
#include <string>

namespace rowmax::cuda::sm90 {
namespace {

// Positions, and sums of a position and a band's bound, are 32-bit in the kernel:
// a bound saturates at 2^30, and a tile adds at most 256 rows and a block of keys to it.
constexpr int64_t kMaxLength = (int64_t{1} << 30) - 1024;
constexpr double kMaxTiles = 1 << 30;
// The copy engine moves 16 bytes: 8 elements.
constexpr int64_t kDimMultiple = 8;

Status too_large(const char* name, int64_t value, int64_t limit) {
  return Status::unsupported(std::string(name) + " " + std::to_string(value) + " exceeds " +
                             std::to_string(limit));
}

}  // namespace

Status check_operands(const AttentionProblem& problem, const KernelConfig& config) {
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
  return {};
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

Status check_sizes(const AttentionProblem& problem, double tiles) {
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
  // Tiles are numbered in 31 bits, and every CTA takes one number too many.
  if (tiles > kMaxTiles) {
    char text[64];
    std::snprintf(text, sizeof(text), "%.0f tiles exceed %.0f", tiles, kMaxTiles);
    return Status::unsupported(text);
  }
  return {};
}

}  // namespace rowmax::cuda::sm90
