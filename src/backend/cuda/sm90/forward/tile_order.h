// Which tiles there are, in which order, and which key blocks each visits. Plain arithmetic, host
// and device: tests enumerate it on the CPU.
#pragma once

#include "problem/band.h"

namespace rowmax::cuda::sm90 {

// A tile: row block `block` of unit `unit` of batch element `batch`; batch < 0: no more tiles.
struct TilePlace {
  int batch;
  int unit;
  int block;
};

// Tile `index` of a group of `units` with `blocks` tiles each: its unit in the group and its block.
// Full: the tiles of a unit are neighbours and share its K and V in L2.
ROWMAX_FORCE_INLINE TilePlace place_by_unit(int index, int blocks) {
  return {0, index / blocks, index % blocks};
}

// Banded: longest tiles first inside sections of units whose K and V fit the L2 cache. The last
// section takes the remainder: a short section of its own would start its long tiles too late.
ROWMAX_FORCE_INLINE TilePlace place_by_length(int index, int units, int blocks, int section_units) {
  const int full_section = section_units * blocks;
  const int sections = units / section_units;
  int section = index / full_section;
  section = section < sections ? section : sections - 1;
  const int first = section * section_units;
  const int width = section == sections - 1 ? units - first : section_units;
  const int rest = index - section * full_section;
  return {0, first + rest % width, blocks - 1 - rest / width};
}

// Blocks of keys that a tile or a part of it visits.
struct KeyBlocks {
  int begin;
  int end;
};

// Blocks of a tile whose rows see `keys`; one block, all masked, when they see none.
ROWMAX_FORCE_INLINE KeyBlocks tile_key_blocks(int key_begin, int key_end, int tile_k) {
  if (key_begin >= key_end) {
    return {0, 1};
  }
  return {key_begin / tile_k, (key_end + tile_k - 1) / tile_k};
}

// What one warpgroup of a tile visits, from block `end` - 1 down to the tile's first. Its first
// block is masked; of the others those in [clean_begin, clean_end) are visible to all of its rows.
struct alignas(16) LoopBlocks {
  int end;
  int clean_end;
  int clean_begin;
  int skipped;  // blocks of the tile above its rows' diagonal
};

// Of a warpgroup whose first row sees keys before first_end, and its last row those of
// [last_begin, last_end).
ROWMAX_FORCE_INLINE LoopBlocks loop_blocks(const KeyBlocks& tile, int first_end, int last_begin,
                                           int last_end, int tile_k) {
  LoopBlocks loop;
  loop.end = (last_end - 1) / tile_k + 1;
  loop.end = loop.end < tile.begin + 1 ? tile.begin + 1 : loop.end;
  loop.end = loop.end < tile.end ? loop.end : tile.end;
  loop.clean_end = first_end / tile_k;
  loop.clean_end = loop.clean_end < tile.begin ? tile.begin : loop.clean_end;
  loop.clean_begin = (last_begin + tile_k - 1) / tile_k;
  loop.clean_begin = loop.clean_begin < tile.begin ? tile.begin : loop.clean_begin;
  loop.skipped = tile.end - loop.end;
  return loop;
}

}  // namespace rowmax::cuda::sm90
