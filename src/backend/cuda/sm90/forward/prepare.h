// Host side of the forward kernel: its argument from a launch.
#pragma once

#include "backend/cuda/sm90/forward/config.h"
#include "backend/cuda/sm90/forward/params.h"
#include "kernel_api/kernel.h"

namespace rowmax::cuda::sm90 {

// Fills params and the number of CTAs for the current device; grid = 0 when there is nothing to
// write. Reads launch.args, whose tensors are device pointers, and touches no device memory.
Status prepare_forward(const KernelLaunch& launch, const ForwardConfig& config, const char* kernel,
                       int device, ForwardParams& params, int& grid);

}  // namespace rowmax::cuda::sm90
