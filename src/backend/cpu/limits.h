// What the kernels, their scratch layouts and the rows of instances.def must agree on. Plain
// constants; units of any instruction set may include it.
#pragma once

#include <cstdint>

namespace rowmax::cpu {

inline constexpr int64_t kMaxHeadDim = 576;  // Columns<V> and the scratch of a worker

// Bytes of a vector register.
inline constexpr int64_t kVectorBytesPortable = 16;
inline constexpr int64_t kVectorBytesAvx2 = 32;

inline constexpr int kPanelVectors = 3;  // widest query panel and column panel, in vectors

// Rows next to a panel's keys that a register tile may write or read.
inline constexpr int64_t kTileMargin = 8;

inline constexpr int kDecodeMaxRows = 8;   // G * Sq of a decode problem
inline constexpr int kDecodeMaxKeys = 32;  // of a block

}  // namespace rowmax::cpu
