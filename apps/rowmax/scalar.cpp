#include "scalar.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace rowmax::app {
namespace {

template <class T>
T load(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <class T>
void store(void* data, int64_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// A binary format of 16 bits: 1 sign bit, then the exponent, then `fraction` bits.
struct HalfFormat {
  int fraction;
  int max_exponent;  // of the largest finite value
  int min_exponent;  // of the smallest normal value
};
constexpr HalfFormat kBf16Format{7, 127, -126};
constexpr HalfFormat kF16Format{10, 15, -14};

double decode(uint16_t bits, const HalfFormat& format) {
  const int mask = (1 << format.fraction) - 1;
  const int exponent_field = (bits & 0x7fff) >> format.fraction;
  const int fraction = bits & mask;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent_field == 2 * format.max_exponent + 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent_field == 0) {
    return sign * std::ldexp(fraction, format.min_exponent - format.fraction);
  }
  return sign * std::ldexp(fraction + (1 << format.fraction),
                           exponent_field - format.max_exponent - format.fraction);
}

uint16_t encode(double value, const HalfFormat& format) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = (2 * format.max_exponent + 1) << format.fraction;
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | infinity | 1 << (format.fraction - 1));
  }
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) {
    return static_cast<uint16_t>(sign | infinity);
  }
  // Rounded once, to the spacing of the value's binade (or of the subnormals).
  int exponent = magnitude > 0 ? std::ilogb(magnitude) : format.min_exponent;
  exponent = exponent < format.min_exponent ? format.min_exponent : exponent;
  if (exponent > format.max_exponent) {
    return static_cast<uint16_t>(sign | infinity);
  }
  // `units` counts spacings; a carry into the next binade (or to infinity) carries in the sum too.
  const int units =
      static_cast<int>(std::nearbyint(std::ldexp(magnitude, format.fraction - exponent)));
  const int base = (exponent - format.min_exponent) << format.fraction;
  return static_cast<uint16_t>(sign | (base + units));
}

}  // namespace

double load_scalar(const void* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF64:
      return load<double>(data, i);
    case DType::kF32:
      return load<float>(data, i);
    case DType::kBF16:
      return decode(load<uint16_t>(data, i), kBf16Format);
    case DType::kF16:
      return decode(load<uint16_t>(data, i), kF16Format);
    case DType::kBool:
      return load<uint8_t>(data, i) != 0 ? 1.0 : 0.0;
    case DType::kI32:
      return load<int32_t>(data, i);
    case DType::kI64:
      return static_cast<double>(load<int64_t>(data, i));
  }
  return 0.0;
}

void store_scalar(void* data, DType dtype, int64_t i, double value) {
  switch (dtype) {
    case DType::kF64:
      store<double>(data, i, value);
      break;
    case DType::kF32:
      store<float>(data, i, static_cast<float>(value));
      break;
    case DType::kBF16:
      store<uint16_t>(data, i, encode(value, kBf16Format));
      break;
    case DType::kF16:
      store<uint16_t>(data, i, encode(value, kF16Format));
      break;
    default:
      break;
  }
}

}  // namespace rowmax::app
