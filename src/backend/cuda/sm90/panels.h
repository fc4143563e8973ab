// What the Hopper kernels have in common: elements, panels of shared memory, the factors of a
// tensor map's coordinates. For host and device; no host headers.
#pragma once

#include <cstdint>

#include "problem/band.h"

namespace rowmax::cuda::sm90 {

enum class Element : int { kBF16 = 0, kF16 };

// Columns of a panel: 128 bytes, the width of the copy engine's swizzle.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;
// What one CTA may use of a multiprocessor's shared memory, bytes.
inline constexpr int kSharedBytesLimit = 232448;
// Forward multiplies scores by a smaller or negative scale before the softmax, not inside it.
inline constexpr double kSmallestScale = 1e-30;

ROWMAX_HOST_DEVICE constexpr int panels(int columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns;
}

// Factors of a tile's head and batch in a tensor map's coordinates: 0 for an axis that all share.
struct MapSteps {
  int head = 1;
  int batch = 1;
};

// Rows of a tensor for stores or loads by threads: strides in elements.
struct RowOutput {
  void* data = nullptr;
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t head = 0;
};

}  // namespace rowmax::cuda::sm90
