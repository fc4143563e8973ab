// Every backend of this build.
#pragma once

#include <span>

#include "kernel_api/kernel.h"

namespace rowmax {

std::span<const Backend* const> all_backends();

}  // namespace rowmax
