// The reference backend: fp64, obvious loops, the only oracle. Never chosen unless forced by name
// ("reference_forward", "reference_backward").
#pragma once

#include "kernel_api/kernel.h"

namespace rowmax::reference {

const Backend& backend();

}  // namespace rowmax::reference
