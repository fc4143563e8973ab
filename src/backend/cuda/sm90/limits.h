// What no row of the Hopper kernels serves. Each check gives OK or the first reason.
#pragma once

#include "kernel_api/kernel.h"

namespace rowmax::cuda::sm90 {

// Dtype, storage and band against the row.
Status check_operands(const AttentionProblem& problem, const KernelConfig& config);

// At most the row's, a multiple of what the copy engine moves.
Status check_head_dim(const char* name, int64_t value, int limit);

// Changes of scores that no kernel has.
Status check_score(const AttentionProblem& problem);

// Lengths, and the number of tiles.
Status check_sizes(const AttentionProblem& problem, double tiles);

}  // namespace rowmax::cuda::sm90
