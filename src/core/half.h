// bf16 and fp16 as bits, converted with round-to-nearest-even. Portable and exact; kernels use
// instructions where the instruction set has them.
#pragma once

#include <cstdint>
#include <cstring>

#define ROWMAX_HALF_INLINE inline __attribute__((always_inline))

namespace rowmax {

ROWMAX_HALF_INLINE float bits_to_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

ROWMAX_HALF_INLINE uint32_t float_to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

ROWMAX_HALF_INLINE float bf16_to_float(uint16_t bits) {
  return bits_to_float(static_cast<uint32_t>(bits) << 16);
}

// NaN stays NaN (quiet), overflow becomes infinity.
ROWMAX_HALF_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

ROWMAX_HALF_INLINE float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    return bits_to_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude >= 0x400u) {  // normal: exponent bias 15 -> 127
    return bits_to_float(sign | ((magnitude << 13) + (112u << 23)));
  }
  const float value = static_cast<float>(magnitude) * 5.9604644775390625e-08f;  // 2^-24
  return sign != 0 ? -value : value;
}

ROWMAX_HALF_INLINE uint16_t float_to_f16(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    return static_cast<uint16_t>(sign | 0x7c00u);
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: the sum's ulp is 2^-24, so the add rounds for us
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

}  // namespace rowmax
