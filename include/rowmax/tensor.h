// Non-owning views of strided tensors in host memory.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "rowmax/dtype.h"
#include "rowmax/export.h"

namespace rowmax {

// Most axes of a tensor.
inline constexpr int kMaxRank = 4;

// A view of a tensor that is read. Strides are in elements, 64 bit, and may be zero (broadcast);
// the innermost stride must be 1 unless that size is <= 1. A null `data` means "absent".
struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  int64_t sizes[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  bool present() const { return data != nullptr || rank != 0; }
};

// A view of a tensor that is written.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  int64_t sizes[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  bool present() const { return data != nullptr || rank != 0; }
  operator ConstTensorView() const {
    ConstTensorView view;
    view.data = data;
    view.dtype = dtype;
    view.rank = rank;
    for (int axis = 0; axis < kMaxRank; ++axis) {
      view.sizes[axis] = sizes[axis];
      view.strides[axis] = strides[axis];
    }
    return view;
  }
};

// A row-major view of `data` with the given sizes, outermost first (at most kMaxRank of them).
ROWMAX_API TensorView contiguous(void* data, DType dtype, std::initializer_list<int64_t> sizes);
ROWMAX_API ConstTensorView contiguous(const void* data, DType dtype,
                                      std::initializer_list<int64_t> sizes);

// Number of elements. Saturates at INT64_MAX.
ROWMAX_API int64_t element_count(const ConstTensorView& view);

}  // namespace rowmax
