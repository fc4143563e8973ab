// Checks of one tensor view against what a problem says about it, and of the memory it covers.
#pragma once

#include <cstdint>

#include "rowmax/dtype.h"
#include "rowmax/status.h"
#include "rowmax/tensor.h"

namespace rowmax {

// What a tensor must look like. `shape` is how messages write the axes: "(B, Sq, Hq, D)".
struct TensorRule {
  const char* name = "";
  const char* shape = "";
  int rank = 0;
  int64_t sizes[kMaxRank] = {};
  DType dtype = DType::kF32;
  DType other_dtype = DType::kF32;  // also accepted; equal to dtype when there is none
};

enum class Access : int { kRead, kWrite };

// The memory that a checked tensor covers. Runs of `run_bytes` start at multiples of `period_bytes`
// from the first one (period 0: one run).
struct Footprint {
  const char* name = "";
  uint64_t begin = 0;  // addresses, half open; equal when there are no elements
  uint64_t end = 0;
  uint64_t run_bytes = 0;
  uint64_t period_bytes = 0;
};

// Rank, sizes, type, innermost stride, data pointer, 64-bit range of offsets; for outputs also that
// no two elements share memory. Strides of axes of size <= 1 are not looked at. Fills `footprint`.
Status check_tensor(const ConstTensorView& view, const TensorRule& rule, Access access,
                    Footprint* footprint);

// Whether two tensors may share a byte. Exact for slices of one buffer whose outer strides agree
// (fused QKV); otherwise true when it cannot be excluded.
bool may_overlap(const Footprint& a, const Footprint& b);

// Refuses, by both names, a written tensor that may share a byte with another one.
Status check_apart(const Footprint& written, const Footprint& other, const char* accepted);

// Stride of an axis as kernels use it: 0 for axes of size <= 1 and for tensors without elements.
int64_t kernel_stride(const ConstTensorView& view, int axis);

}  // namespace rowmax
