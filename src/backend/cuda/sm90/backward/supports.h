// Which problems a row of the backward kernel serves.
#pragma once

#include "kernel_api/kernel.h"

namespace rowmax::cuda::sm90 {

// OK, or the first reason why the row declines the problem. Strides and addresses are no part of a
// problem: they are checked when the step is enqueued.
Status supports_backward(const AttentionProblem& problem, const KernelConfig& config);

// The same of a kernel of helpers.def.
Status supports_helper(const AttentionProblem& problem, const KernelConfig& config);

}  // namespace rowmax::cuda::sm90
