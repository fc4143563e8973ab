// GPUs by model name, for plans and explanations without one.
#pragma once

#include <span>
#include <string_view>

#include "rowmax/plan.h"

namespace rowmax::plan {

// "h100", "h200".
std::span<const DeviceInfo> named_devices();

}  // namespace rowmax::plan
