// Tensors read from and written to files, owned by the command.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rowmax/dtype.h"
#include "rowmax/status.h"
#include "rowmax/tensor.h"

namespace rowmax::app {

// Owned bytes, 64-byte aligned, not initialised.
class Buffer {
 public:
  static constexpr std::align_val_t kAlignment{64};

  Buffer() = default;
  explicit Buffer(size_t bytes)
      : data_(static_cast<char*>(::operator new(bytes > 0 ? bytes : 1, kAlignment))),
        bytes_(bytes) {}

  char* data() { return data_.get(); }
  const char* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<char, Free> data_;
  size_t bytes_ = 0;
};

// A row-major tensor that owns its bytes.
struct HostTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  Buffer buffer;

  TensorView view();
  ConstTensorView view() const;
  int64_t count() const;
};

// An uninitialised tensor. The shape must have passed checked_bytes.
HostTensor make_tensor(DType dtype, std::vector<int64_t> shape);

// Product of the shape times the element size; nullopt when it does not fit 63 bits or a size is
// negative.
std::optional<int64_t> checked_bytes(const std::vector<int64_t>& shape, int64_t element_bytes);

// "(1, 512, 12, 32)".
std::string shape_text(const std::vector<int64_t>& shape);

// `tensor` in another floating type, converted by value (round to nearest even).
HostTensor convert(const HostTensor& tensor, DType dtype);

// Named tensors of one file in memory, in order of name.
struct TensorFile {
  std::map<std::string, HostTensor> tensors;
  std::map<std::string, std::string> metadata;
};

// The bytes of a whole regular file, or why it cannot be read.
Result<Buffer> read_file(const std::string& path);

// Writes next to `path` and renames: `path` either keeps its old content or has all of the new.
// `parts` are written one after the other.
Status write_file_atomically(const std::string& path, const std::vector<std::string_view>& parts);

}  // namespace rowmax::app
