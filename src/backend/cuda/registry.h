// The rows of the CUDA backend. They are planned and explained on every machine; builds with
// ROWMAX_CUDA have the kernels too.
#pragma once

#include "kernel_api/kernel.h"

namespace rowmax::cuda {

const Backend& backend();

}  // namespace rowmax::cuda
