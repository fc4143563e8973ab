// Which query tiles a key tile visits, and which key tile adds first to a tile of dQ. Plain
// arithmetic, host and device: tests enumerate it on the CPU.
//
// Visits of a band: both ends of visited_tiles() grow with the key tile's number, so the key tiles
// that visit one query tile follow each other without a gap. The first of them adds its part of dQ
// at once, each other one when the turn has come to its number; then it raises the turn to the next
// number. Key tiles are started in ascending order inside a head, so none waits for one that has
// not started. Turns only rise: ragged sequences that overlap, which lengths on the device may be,
// share turns and sums, and still nobody waits forever.
#pragma once

#include <cstdint>

#include "problem/band.h"

namespace rowmax::cuda::sm90 {

// Query tiles [begin, end).
struct TileRange {
  int begin;
  int end;
};

// Of keys [key_begin, key_end) of a sequence with q_len rows; none if no row sees one of them.
ROWMAX_FORCE_INLINE TileRange visited_tiles(const RowBand& band, int key_begin, int key_end,
                                            int q_len, int tile_q) {
  if (key_begin >= key_end) {
    return {0, 0};
  }
  const KeyRange rows = block_rows(band, key_begin, key_end, q_len);
  if (rows.begin >= rows.end) {
    return {0, 0};
  }
  return {static_cast<int>(rows.begin) / tile_q,
          (static_cast<int>(rows.end) + tile_q - 1) / tile_q};
}

// The first key tile that visits the query tile whose first row is `row`, if any does. Row i sees
// keys from i + band_begin on, which may be saturated.
ROWMAX_FORCE_INLINE int first_visitor(int band_begin, int row, int tile_k) {
  const int key = row + band_begin;
  return key > 0 ? key / tile_k : 0;
}

}  // namespace rowmax::cuda::sm90
