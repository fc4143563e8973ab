#include "rowmax/dtype.h"

namespace rowmax {
namespace {
constexpr DType kAll[] = {DType::kF64,  DType::kF32, DType::kBF16, DType::kF16,
                          DType::kBool, DType::kI32, DType::kI64};
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kBool:
      return "bool";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
  }
  return "?";
}

Result<DType> parse_dtype(std::string_view text) {
  for (const DType dtype : kAll) {
    if (text == to_string(dtype)) {
      return dtype;
    }
  }
  return Status::invalid("dtype '" + std::string(text) +
                         "' is unknown; accepted: f64, f32, bf16, f16, bool, i32, i64");
}

}  // namespace rowmax
