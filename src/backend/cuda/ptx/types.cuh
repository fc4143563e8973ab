// Integer types, qualifiers and constants of the device headers. <cstdint> is the only standard
// header they include: whoever compiles them with NVRTC passes one of that name.
#pragma once

#include <cstdint>

#define ROWMAX_DEVICE __device__ __forceinline__

namespace rowmax::cuda::ptx {

inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
inline constexpr double kLog2EDouble = 1.4426950408889634;
inline constexpr float kLog2E = static_cast<float>(kLog2EDouble);
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr unsigned kFullWarp = 0xffffffffu;

// A CUtensorMap, opaque: the host fills it, the copy engine reads it.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

}  // namespace rowmax::cuda::ptx
