// Memory of a case's tensors: every buffer has guard zones and starts as NaN everywhere. After a
// run, whatever was not declared writable must still hold the bits it had before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "rowmax/dtype.h"
#include "testkit/device_memory.h"

namespace rowmax::testkit {

// The element that fills buffers of a type: a NaN, or a value far outside every legal range.
uint64_t poison_bits(DType dtype);

class Arena {
 public:
  // `elements` poisoned elements. The first is `misalignment` elements past a 64-byte boundary.
  void* allocate(std::string name, DType dtype, int64_t elements, int misalignment);

  // Declares that a run writes these bytes; they must lie in one buffer.
  void expect_write(const void* begin, size_t bytes);

  // Remembers the present contents; call before a run.
  void seal();

  // Every buffer with its guard zones.
  std::vector<HostBlock> blocks();

  // The contents of the last seal() again.
  void restore();

  // What a run changed outside the expected writes, one line a buffer.
  std::vector<std::string> violations() const;

 private:
  struct Buffer {
    std::string name;
    std::vector<unsigned char> bytes;
    size_t first = 0;  // offset of element 0
    size_t size = 0;   // bytes of the elements
    std::vector<unsigned char> sealed;
    std::vector<bool> writable;
  };
  std::deque<Buffer> buffers_;
};

}  // namespace rowmax::testkit
