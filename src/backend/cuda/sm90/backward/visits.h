// Which query tiles a key tile visits, and which key tile adds first to a tile of dQ. Plain
// arithmetic, host and device: tests enumerate it on the CPU.
//
// Visits of a band: both ends of visited_tiles() grow with the key tile's number, so the key tiles
// that visit one query tile follow each other without a gap. They add their parts of dQ in one of
// two orders, the one in which the tiles of the head start, so none waits for one that has not
// started: by ascending numbers, each from its last query tile to its first, or (upward) by
// descending numbers, from its first query tile to its last. The first in order stores its part,
// each other one adds when the turn has come to its place; then it raises the turn to the next
// place. Turns only rise: ragged sequences that overlap, which lengths on the device may be, share
// turns and sums, and still nobody waits forever.
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
  const bool empty = band.has_lo && band.has_hi && band.hi < band.lo;
  if (key_begin >= key_end || empty) {
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

// The last one, of rows up to `row_end` - 1 of the query tile; `last_block`: of the sequence.
ROWMAX_FORCE_INLINE int last_visitor(int band_end, int row_end, int last_block, int tile_k) {
  const int key = row_end - 1 + band_end;
  const int block = key > 0 ? key / tile_k : 0;
  return block < last_block ? block : last_block;
}

}  // namespace rowmax::cuda::sm90
