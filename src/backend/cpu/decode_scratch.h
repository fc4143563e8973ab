// Scratch of one decode worker: one source for thread_bytes and for the kernel's carving. Plain
// integer arithmetic; units of any instruction set may include it.
#pragma once

#include <cstdint>

#include "backend/cpu/carver.h"
#include "backend/cpu/limits.h"

namespace rowmax::cpu {

// Rows as padded for the register tiles: 1, 2, 4 or 8.
ROWMAX_FORCE_INLINE int64_t padded_decode_rows(int64_t rows) {
  return rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : kDecodeMaxRows;
}

// Q then O, both (padded rows, stride) of the compute type; strides in elements.
struct DecodeScratch {
  int64_t q_stride = 0;
  int64_t o_stride = 0;
  int64_t q = 0;  // byte offsets
  int64_t o = 0;
  int64_t bytes = 0;
};

// `width`: elements of a vector.
ROWMAX_FORCE_INLINE DecodeScratch decode_scratch(int64_t rows, int64_t head_dim, int64_t head_dim_v,
                                                 int64_t width, int64_t element_bytes) {
  const int64_t padded = padded_decode_rows(rows);
  DecodeScratch out;
  Carver carver;
  out.q_stride = whole_vectors(head_dim, width);
  out.o_stride = whole_vectors(head_dim_v, width);
  out.q = carver.take(padded * out.q_stride * element_bytes);
  out.o = carver.take(padded * out.o_stride * element_bytes);
  out.bytes = carver.bytes();
  return out;
}

}  // namespace rowmax::cpu
