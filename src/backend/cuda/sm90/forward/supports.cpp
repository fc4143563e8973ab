#include "backend/cuda/sm90/forward/supports.h"

namespace rowmax::cuda::sm90 {

Status supports(const AttentionProblem& /*problem*/, const KernelConfig& /*config*/) {
  return Status::unsupported("not yet");
}

}  // namespace rowmax::cuda::sm90
