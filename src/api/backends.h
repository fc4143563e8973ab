// Every backend of this build.
#pragma once

#include <span>
#include <string_view>

#include "kernel_api/kernel.h"

namespace rowmax {

std::span<const Backend* const> all_backends();

// The backend of this name, or null.
const Backend* find_backend(std::string_view name);

}  // namespace rowmax
