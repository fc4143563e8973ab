#include "testkit/arena.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rowmax::testkit {
namespace {

constexpr size_t kAlignment = 64;
// Longer than any vector and than a row's worth of prefetched elements.
constexpr size_t kGuardBytes = 512;

}  // namespace

uint64_t poison_bits(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x7ff8deadbeef1234u;
    case DType::kF32:
      return 0x7fc0deadu;
    case DType::kBF16:
      return 0x7fcdu;
    case DType::kF16:
      return 0x7ecdu;
    case DType::kBool:
      return 0xaau;
    case DType::kI32:
      return 0x7fabcdefu;
    case DType::kI64:
      return 0x7fabcdef01234567u;
  }
  return 0;
}

void* Arena::allocate(std::string name, DType dtype, int64_t elements, int misalignment) {
  Buffer& buffer = buffers_.emplace_back();
  buffer.name = std::move(name);
  const size_t element = size_of(dtype);
  buffer.size = static_cast<size_t>(elements) * element;
  buffer.bytes.resize(buffer.size + 2 * kGuardBytes + 2 * kAlignment);
  const auto base = reinterpret_cast<uintptr_t>(buffer.bytes.data());
  const size_t to_boundary = (kAlignment - base % kAlignment) % kAlignment;
  buffer.first = to_boundary + kGuardBytes + static_cast<size_t>(misalignment) * element;
  const uint64_t pattern = poison_bits(dtype);
  for (size_t at = buffer.first % element; at + element <= buffer.bytes.size(); at += element) {
    std::memcpy(buffer.bytes.data() + at, &pattern, element);  // little endian
  }
  buffer.writable.assign(buffer.bytes.size(), false);
  return buffer.bytes.data() + buffer.first;
}

void Arena::expect_write(const void* begin, size_t bytes) {
  const auto* first = static_cast<const unsigned char*>(begin);
  for (Buffer& buffer : buffers_) {
    const unsigned char* base = buffer.bytes.data();
    if (first >= base && first < base + buffer.bytes.size()) {
      const auto at = buffer.writable.begin() + (first - base);
      std::fill(at, at + static_cast<std::ptrdiff_t>(bytes), true);
      return;
    }
  }
}

void Arena::seal() {
  for (Buffer& buffer : buffers_) {
    buffer.sealed = buffer.bytes;
  }
}

std::vector<HostBlock> Arena::blocks() {
  std::vector<HostBlock> blocks;
  for (Buffer& buffer : buffers_) {
    blocks.push_back({buffer.bytes.data(), buffer.bytes.size()});
  }
  return blocks;
}

void Arena::restore() {
  for (Buffer& buffer : buffers_) {
    std::copy(buffer.sealed.begin(), buffer.sealed.end(), buffer.bytes.begin());
  }
}

std::vector<std::string> Arena::violations() const {
  std::vector<std::string> lines;
  for (const Buffer& buffer : buffers_) {
    size_t count = 0;
    size_t worst = 0;
    for (size_t n = 0; n < buffer.bytes.size(); ++n) {
      if (!buffer.writable[n] && buffer.bytes[n] != buffer.sealed[n]) {
        worst = count++ == 0 ? n : worst;
      }
    }
    if (count == 0) {
      continue;
    }
    const bool inside = worst >= buffer.first && worst < buffer.first + buffer.size;
    lines.push_back(
        buffer.name + ": " + std::to_string(count) +
        " bytes changed that must not be written, first at byte " +
        std::to_string(static_cast<int64_t>(worst) - static_cast<int64_t>(buffer.first)) +
        (inside ? " (padding or tail)" : " (guard zone)"));
  }
  return lines;
}

}  // namespace rowmax::testkit
