// Host side of a backward pass: the kernels' arguments from a launch, whose tensors are device
// pointers. No device memory is touched.
#pragma once

#include "backend/cuda/sm90/backward/config.h"
#include "backend/cuda/sm90/backward/params.h"
#include "kernel_api/kernel.h"

namespace rowmax::cuda::sm90 {

Status prepare_backward(const KernelLaunch& launch, const BackwardConfig& config,
                        const char* kernel, BackwardParams& params);
// Whether the copy engine can read and write the operands of a pass: its first step asks, so that
// nothing is launched when a later one would be refused.
Status check_operand_maps(const KernelLaunch& launch, const char* kernel);

RowStatsParams prepare_row_stats(const KernelLaunch& launch);
ReduceParams prepare_reduce(const KernelLaunch& launch);

}  // namespace rowmax::cuda::sm90
