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

// End of the blocks that rows up to one whose last visible key is `last_key` visit, at least one.
ROWMAX_FORCE_INLINE int own_block_end(int last_key, const KeyBlocks& tile, int tile_k) {
  int end = last_key / tile_k + 1;
  end = end < tile.begin + 1 ? tile.begin + 1 : end;
  return end < tile.end ? end : tile.end;
}

}  // namespace rowmax::cuda::sm90
