// The compiled kernels of helpers.cu.
#pragma once

#include "backend/cuda/sm90/panels.h"

namespace rowmax::cuda::sm90 {

inline constexpr int kHelperThreads = 256;

const void* kernel_row_stats(Element element);
const void* kernel_reduce(Element element);

}  // namespace rowmax::cuda::sm90
