#include "backend/cpu/supports.h"

#include <string>

#include "backend/cpu/backward_scratch.h"
#include "backend/cpu/decode_scratch.h"
#include "backend/cpu/forward_scratch.h"
#include "backend/cpu/limits.h"

namespace rowmax::cpu {
namespace {

bool computes_gradients(StepKind step) {
  switch (step) {
    case StepKind::kForward:
    case StepKind::kDecode:
    case StepKind::kCombine:
      return false;
    case StepKind::kRowStats:
    case StepKind::kBackward:
    case StepKind::kBiasGradient:
    case StepKind::kReduce:
      return true;
  }
  return false;
}

Status check_head_dim(const char* name, int64_t value) {
  if (value > kMaxHeadDim) {
    return Status::unsupported(std::string(name) + " " + std::to_string(value) + " exceeds " +
                               std::to_string(kMaxHeadDim));
  }
  return Status::ok_status();
}

}  // namespace

Status supports(const AttentionProblem& problem, const KernelConfig& config) {
  const bool backward = problem.op == Op::kBackward;
  if (backward != computes_gradients(config.step)) {
    return Status::unsupported(backward ? "computes forward only" : "computes backward only");
  }
  const Compute needed = problem.dtype == DType::kF64 ? Compute::kF64 : Compute::kF32;
  if (config.compute != needed) {
    return Status::unsupported(std::string("computes in ") +
                               (config.compute == Compute::kF64 ? "f64" : "f32") + ", dtype is " +
                               to_string(problem.dtype));
  }
  if (problem.score.block_mask) {
    return Status::unsupported("block mask is not implemented yet");
  }
  if (backward && problem.storage.key == Source::kPaged) {
    return Status::unsupported("backward with paged keys: two sequences may share a page");
  }
  if (Status status = check_head_dim("head_dim", problem.sizes.head_dim); !status.ok()) {
    return status;
  }
  if (Status status = check_head_dim("head_dim_v", problem.sizes.head_dim_v); !status.ok()) {
    return status;
  }
  if (config.max_rows > 0) {
    if (problem.batch_invariant) {
      return Status::unsupported("batch_invariant: its splits depend on the batch size");
    }
    const int64_t rows = problem.sizes.heads_q / problem.sizes.heads_kv * problem.sizes.seqlen_q;
    if (rows > config.max_rows) {
      return Status::unsupported("G * Sq = " + std::to_string(rows) + " exceeds " +
                                 std::to_string(config.max_rows) + " rows");
    }
  }
  return Status::ok_status();
}

int64_t vector_width(const KernelConfig& config) {
  const int64_t bytes = config.isa == Isa::kAvx2 ? kVectorBytesAvx2 : kVectorBytesPortable;
  return bytes / (config.compute == Compute::kF64 ? 8 : 4);
}

size_t forward_thread_bytes(const AttentionProblem& problem, const KernelConfig& config,
                            const Schedule& schedule) {
  ForwardScratchShape shape;
  shape.tile_q = schedule.tile_q;
  shape.tile_k = schedule.tile_k;
  shape.head_dim = problem.sizes.head_dim;
  shape.head_dim_v = problem.sizes.head_dim_v;
  shape.width = vector_width(config);
  shape.element_bytes = config.compute == Compute::kF64 ? 8 : 4;
  return static_cast<size_t>(forward_scratch(shape).bytes);
}

size_t decode_thread_bytes(const AttentionProblem& problem, const KernelConfig& config,
                           const Schedule& /*schedule*/) {
  const Sizes& sizes = problem.sizes;
  const int64_t rows = sizes.heads_q / sizes.heads_kv * sizes.seqlen_q;
  return static_cast<size_t>(decode_scratch(rows, sizes.head_dim, sizes.head_dim_v,
                                            vector_width(config),
                                            config.compute == Compute::kF64 ? 8 : 4)
                                 .bytes);
}

size_t backward_thread_bytes(const AttentionProblem& problem, const KernelConfig& config,
                             const Schedule& schedule) {
  BackwardScratchShape shape;
  shape.head_dim = problem.sizes.head_dim;
  shape.head_dim_v = problem.sizes.head_dim_v;
  shape.chunk = chunk_capacity(schedule, problem.sizes.seqlen_k);
  shape.tile_q = schedule.tile_q;
  shape.tile_k = schedule.tile_k;
  shape.width = vector_width(config);
  shape.element_bytes = config.compute == Compute::kF64 ? 8 : 4;
  return static_cast<size_t>(backward_scratch(shape, config.step).bytes);
}

size_t no_thread_bytes(const AttentionProblem& /*problem*/, const KernelConfig& /*config*/,
                       const Schedule& /*schedule*/) {
  return 0;
}

}  // namespace rowmax::cpu
