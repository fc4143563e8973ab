// Strides of a case's tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "testkit/case.h"

namespace rowmax::testkit {

// Strides in elements of a tensor whose last axis is contiguous. Axes are (..., seq, head, dim) for
// operands; padding follows every row of each axis.
std::vector<int64_t> strides_of(const std::vector<int64_t>& sizes, StrideKind kind);

// Elements between a buffer's boundary and the first one.
int64_t offset_of(StrideKind kind);

// Elements from the first to one past the last; 0 when there are none.
int64_t span_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

}  // namespace rowmax::testkit
