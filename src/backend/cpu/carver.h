// Cuts a worker's scratch into parts. A layout is computed twice, for thread_bytes on the host and
// in the kernel; both take the same parts in the same order. Units of any instruction set may
// include it.
#pragma once

#include <cstdint>

#include "problem/band.h"

namespace rowmax::cpu {

class Carver {
 public:
  // Byte offset of the next part, a multiple of 64.
  ROWMAX_FORCE_INLINE int64_t take(int64_t bytes) {
    const int64_t offset = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  ROWMAX_FORCE_INLINE int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// x elements, padded to whole vectors of `width`.
ROWMAX_FORCE_INLINE int64_t whole_vectors(int64_t x, int64_t width) {
  return (x + width - 1) / width * width;
}

}  // namespace rowmax::cpu
