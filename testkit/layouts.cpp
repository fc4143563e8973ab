#include "testkit/layouts.h"

namespace rowmax::testkit {
namespace {

// Odd, so that rows of every element size start at every alignment.
constexpr int64_t kRowPadding = 3;
// 16 bytes of the smallest elements of operands.
constexpr int64_t kAlignedPadding = 8;

int64_t padding_of(StrideKind kind) {
  return kind == StrideKind::kPadded    ? kRowPadding
         : kind == StrideKind::kAligned ? kAlignedPadding
                                        : 0;
}

std::vector<int64_t> row_major(const std::vector<int64_t>& sizes, int64_t padding) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t axis = sizes.size(); axis-- > 1;) {
    const int64_t size = sizes[axis] > 0 ? sizes[axis] : 1;
    strides[axis - 1] = strides[axis] * size + padding;
  }
  return strides;
}

}  // namespace

std::vector<int64_t> strides_of(const std::vector<int64_t>& sizes, StrideKind kind) {
  const size_t rank = sizes.size();
  if (rank < 3) {
    return row_major(sizes, padding_of(kind));
  }
  if (kind == StrideKind::kBhsd) {
    std::vector<int64_t> swapped = sizes;
    std::swap(swapped[rank - 3], swapped[rank - 2]);
    std::vector<int64_t> strides = row_major(swapped, 0);
    std::swap(strides[rank - 3], strides[rank - 2]);
    return strides;
  }
  std::vector<int64_t> strides = row_major(sizes, padding_of(kind));
  if (kind == StrideKind::kBroadcastKv) {
    if (sizes[rank - 2] > 1) {
      strides[rank - 2] = 0;
    } else if (rank == 4) {
      strides[0] = 0;
    }
  }
  return strides;
}

int64_t offset_of(StrideKind kind) {
  return kind == StrideKind::kPadded ? 1 : kind == StrideKind::kAligned ? kAlignedPadding : 0;
}

int64_t span_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] <= 0) {
      return 0;
    }
    last += (sizes[axis] - 1) * strides[axis];
  }
  return last + 1;
}

}  // namespace rowmax::testkit
