// Element types of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rowmax/export.h"
#include "rowmax/status.h"

namespace rowmax {

// The values are those of the C ABI.
enum class DType : int {
  kF64 = 0,
  kF32 = 1,
  kBF16 = 2,
  kF16 = 3,
  kBool = 4,  // one byte, zero is false
  kI32 = 5,
  kI64 = 6,
};

// Bytes of one element.
constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kBool:
      return 1;
  }
  return 0;
}

// Whether the type holds real numbers.
constexpr bool is_floating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

// Relative spacing of a floating type at 1 (the distance to the next value): 2^-52, 2^-23, 2^-7,
// 2^-10. Zero for the others.
constexpr double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 2.220446049250313e-16;
    case DType::kF32:
      return 1.1920928955078125e-07;
    case DType::kBF16:
      return 0.0078125;
    case DType::kF16:
      return 0.0009765625;
    default:
      return 0.0;
  }
}

// "f64", "f32", "bf16", "f16", "bool", "i32", "i64".
ROWMAX_API const char* to_string(DType dtype);
ROWMAX_API Result<DType> parse_dtype(std::string_view text);

}  // namespace rowmax
