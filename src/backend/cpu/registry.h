// The CPU backend's kernels.
#pragma once

#include "kernel_api/kernel.h"

namespace rowmax::cpu {

const Backend& backend();

}  // namespace rowmax::cpu
