// Scratch of one decode worker: one source for thread_bytes and for the kernel's carving. Plain
// integer arithmetic; units of any instruction set may include it.
#pragma once

#include <cstdint>

#include "problem/band.h"

namespace rowmax::cpu {

inline constexpr int64_t kDecodeMaxRows = 8;  // G * Sq of a decode problem

// Rows as padded for the register tiles: 1, 2, 4 or 8.
ROWMAX_FORCE_INLINE int64_t padded_decode_rows(int64_t rows) {
  return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : kDecodeMaxRows;
}

// Q then O, both (padded rows, stride) of the compute type; strides in elements.
struct DecodeScratch {
  int64_t q_stride = 0;
  int64_t o_stride = 0;
  int64_t o = 0;  // byte offset of O
  int64_t bytes = 0;
};

// `width`: elements of a vector.
ROWMAX_FORCE_INLINE DecodeScratch decode_scratch(int64_t rows, int64_t head_dim, int64_t head_dim_v,
                                                 int64_t width, int64_t element_bytes) {
  const int64_t padded = padded_decode_rows(rows);
  DecodeScratch out;
  out.q_stride = (head_dim + width - 1) / width * width;
  out.o_stride = (head_dim_v + width - 1) / width * width;
  out.o = (padded * out.q_stride * element_bytes + 63) / 64 * 64;
  out.bytes = out.o + padded * out.o_stride * element_bytes;
  return out;
}

}  // namespace rowmax::cpu
