// Elements of any type as double, one at a time: for files and checks, not for speed.
#pragma once

#include <cstdint>

#include "rowmax/dtype.h"

namespace rowmax::app {

// Element i of an array of `dtype` (integers and bools by value).
double load_scalar(const void* data, DType dtype, int64_t i);

// Stores `value` rounded to nearest even as element i of an array of a floating `dtype`.
void store_scalar(void* data, DType dtype, int64_t i, double value);

}  // namespace rowmax::app
