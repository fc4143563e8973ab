#include "rowmax/tensor.h"

#include <limits>

namespace rowmax {
namespace {

template <class View, class Pointer>
View make_contiguous(Pointer data, DType dtype, std::initializer_list<int64_t> sizes) {
  View view;
  view.data = data;
  view.dtype = dtype;
  for (const int64_t size : sizes) {
    if (view.rank < kMaxRank) {
      view.sizes[view.rank++] = size;
    }
  }
  int64_t stride = 1;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    view.strides[axis] = stride;
    stride *= view.sizes[axis];
  }
  return view;
}

}  // namespace

TensorView contiguous(void* data, DType dtype, std::initializer_list<int64_t> sizes) {
  return make_contiguous<TensorView>(data, dtype, sizes);
}

ConstTensorView contiguous(const void* data, DType dtype, std::initializer_list<int64_t> sizes) {
  return make_contiguous<ConstTensorView>(data, dtype, sizes);
}

int64_t element_count(const ConstTensorView& view) {
  int64_t count = 1;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.sizes[axis] <= 0) {
      return 0;
    }
    if (count > std::numeric_limits<int64_t>::max() / view.sizes[axis]) {
      return std::numeric_limits<int64_t>::max();
    }
    count *= view.sizes[axis];
  }
  return count;
}

}  // namespace rowmax
