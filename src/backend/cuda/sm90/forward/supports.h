#pragma once

#include "kernel_api/kernel.h"

namespace rowmax::cuda::sm90 {

Status supports(const AttentionProblem& problem, const KernelConfig& config);

}  // namespace rowmax::cuda::sm90
