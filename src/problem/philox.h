// Dropout by element coordinates: Philox4x32-10, one call for the four elements
// {i, i+8} x {j, j+8}. The counter rule is docs/semantics.md, "Dropout". Generator: Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <cstdint>

#include "problem/band.h"

namespace rowmax {

struct PhiloxWords {
  uint32_t w[4];
};

ROWMAX_FORCE_INLINE PhiloxWords philox4x32_10(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                              uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Dropout of one launch as plain data. threshold = round(p * 2^32), up to 2^32 itself.
struct DropoutArgs {
  uint64_t seed = 0;
  uint64_t offset = 0;
  uint64_t threshold = 0;  // keep iff word >= threshold
  int64_t row_base = 0;
  int64_t col_base = 0;
  float keep_scale = 1.0f;  // 1 / (1 - p); 0 when p = 1
  bool on = false;
};

// The four words that serve rows {i, i + 8} and keys {j, j + 8} with i % 16 < 8 and j % 16 < 8,
// i and j absolute (bases added); `bh` = b * Hq + h. Word index: 2 * row half + key half.
ROWMAX_FORCE_INLINE PhiloxWords dropout_words(const DropoutArgs& d, int64_t bh, int64_t i,
                                              int64_t j) {
  const uint32_t gi = static_cast<uint32_t>((i >> 4) * 8 + (i & 7));
  const uint32_t gj = static_cast<uint32_t>((j >> 4) * 8 + (j & 7));
  return philox4x32_10(gi, gj, static_cast<uint32_t>(bh), static_cast<uint32_t>(d.offset),
                       static_cast<uint32_t>(d.seed),
                       static_cast<uint32_t>(d.seed >> 32) ^ static_cast<uint32_t>(d.offset >> 32));
}

// Whether element (i, j) of head bh survives. i and j are positions in the sequence, without bases.
ROWMAX_FORCE_INLINE bool dropout_keeps(const DropoutArgs& d, int64_t bh, int64_t i, int64_t j) {
  const int64_t row = i + d.row_base;
  const int64_t col = j + d.col_base;
  const PhiloxWords words = dropout_words(d, bh, row, col);
  return words.w[2 * ((row >> 3) & 1) + ((col >> 3) & 1)] >= d.threshold;
}

}  // namespace rowmax
