// Which tiles there are, in which order, and which key blocks each visits. Plain arithmetic, host
// and device: tests enumerate it on the CPU.
#pragma once

#include <cstdint>

#include "problem/band.h"

namespace rowmax::cuda::sm90 {

// A tile: row block `block` of unit `unit` of batch element `batch`; batch < 0: no more tiles.
struct TilePlace {
  int batch;
  int unit;
  int block;
};

// Division of n in [0, 2^31) by a number known on the host, with one multiplication: six divisions
// in a row are most of what decoding a tile takes.
struct Divider {
  uint32_t multiplier;
  int shift;
  int value;
};

ROWMAX_FORCE_INLINE Divider make_divider(int value) {
  int bits = 0;
  while ((int64_t{1} << bits) < value) {
    ++bits;
  }
  const uint64_t power = uint64_t{1} << (31 + bits);
  return {static_cast<uint32_t>((power + static_cast<uint64_t>(value) - 1) /
                                static_cast<uint64_t>(value)),
          31 + bits, value};
}

ROWMAX_FORCE_INLINE int divide(int n, const Divider& by) {
  return static_cast<int>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * by.multiplier >>
                          by.shift);
}
ROWMAX_FORCE_INLINE int value_of(const Divider& by) { return by.value; }
ROWMAX_FORCE_INLINE int divide(int n, int by) { return n / by; }
ROWMAX_FORCE_INLINE int value_of(int by) { return by; }

// Tile `index` of a group of units with `blocks` tiles each: its unit in the group and its block.
// Full: the tiles of a unit are neighbours and share its K and V in L2.
template <class Number>
ROWMAX_FORCE_INLINE TilePlace place_by_unit(int index, const Number& blocks) {
  const int unit = divide(index, blocks);
  return {0, unit, index - unit * value_of(blocks)};
}

// The units of a group in sections whose K and V fit the L2 cache. The last section takes the
// remainder: a short section of its own would start its long tiles too late.
template <class Number>
struct Sections {
  Number tiles;       // of a section
  Number units;       // of a section
  Number last_units;  // of the last section
  int count;
  int blocks;  // tiles of a unit
};

// `number` makes a Number from an int.
template <class Number, class MakeNumber>
ROWMAX_FORCE_INLINE Sections<Number> make_sections(int units, int blocks, int section_units,
                                                   const MakeNumber& number) {
  const int count = units / section_units;
  return {number(section_units * blocks), number(section_units),
          number(units - (count - 1) * section_units), count, blocks};
}

// Banded: longest tiles first inside a section.
template <class Number>
ROWMAX_FORCE_INLINE TilePlace place_by_length(int index, const Sections<Number>& sections) {
  int section = divide(index, sections.tiles);
  section = section < sections.count ? section : sections.count - 1;
  const int rest = index - section * value_of(sections.tiles);
  const Number& units = section == sections.count - 1 ? sections.last_units : sections.units;
  const int row = divide(rest, units);
  return {0, section * value_of(sections.units) + rest - row * value_of(units),
          sections.blocks - 1 - row};
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

// The first tiles of a full problem, cut along keys so that every multiprocessor gets an equal part
// of what whole waves leave over: the blocks of these tiles, one tile after the other, in `ranges`
// equal ranges no longer than a tile. What a range has of a tile is a piece of it.
struct CutTiles {
  int tiles = 0;
  int ranges = 0;  // 0: no tile is cut
  Divider by_ranges = {};
  Divider blocks = {};  // of a tile
};

// No piece is shorter.
inline constexpr int kLeastPieceBlocks = 2;

// First block of range `range`, counted from the first tile's first one.
ROWMAX_FORCE_INLINE int range_begin(const CutTiles& cut, int range) {
  const int begin = divide(range * cut.tiles * cut.blocks.value, cut.by_ranges);
  const int in_tile = begin - divide(begin, cut.blocks) * cut.blocks.value;
  const int rest = cut.blocks.value - in_tile;
  return in_tile < kLeastPieceBlocks ? begin - in_tile
         : rest < kLeastPieceBlocks  ? begin + rest
                                     : begin;
}

struct Piece {
  int tile;
  KeyBlocks blocks;
  int index;  // among the pieces of the tile, which come in the order of keys
  int count;  // 1: the whole tile
  int slot;   // of the tile's first piece, counted over all pieces
};

// What range `range` has of its first tile, or of the one after it: no blocks when that is none.
ROWMAX_FORCE_INLINE Piece piece_of(const CutTiles& cut, int range, bool second) {
  const int begin = range_begin(cut, range);
  const int end = range_begin(cut, range + 1);
  Piece piece;
  piece.tile = divide(begin, cut.blocks) + (second ? 1 : 0);
  const int tile_begin = piece.tile * cut.blocks.value;
  const int tile_end = tile_begin + cut.blocks.value;
  piece.blocks.begin = begin < tile_begin ? 0 : begin - tile_begin;
  piece.blocks.end = (end < tile_end ? end : tile_end) - tile_begin;
  piece.index = piece.count = piece.slot = 0;
  if (piece.blocks.begin >= piece.blocks.end) {
    return piece;
  }
  int first = range;  // that has a piece of the tile
  while (range_begin(cut, first) > tile_begin) {
    --first;
  }
  int last = range;
  while (range_begin(cut, last + 1) < tile_end) {
    ++last;
  }
  piece.index = range - first;
  piece.count = last - first + 1;
  piece.slot = first + piece.tile;
  return piece;
}

// What one warpgroup of a tile visits, from block `end` - 1 down to `begin`. Its first block is
// masked; of the others those in [clean_begin, clean_end) are visible to all of its rows. The
// tile's other blocks are skipped: before those of its rows' window, above their diagonal.
struct alignas(16) LoopBlocks {
  int begin;
  int end;
  int clean_begin;
  int clean_end;
};

// Keys that a warpgroup's first row sees, and its last one.
struct EdgeRows {
  KeyBlocks first;
  KeyBlocks last;
};

// Which of the tile's blocks a warpgroup that sees none of their keys leaves out.
struct Skips {
  bool left;
  bool right;
};

// Of a warpgroup of a tile that visits blocks `tile`.
ROWMAX_FORCE_INLINE LoopBlocks loop_blocks(const KeyBlocks& tile, const EdgeRows& keys, int tile_k,
                                           const Skips& skips) {
  LoopBlocks loop;
  loop.end = (keys.last.end - 1) / tile_k + 1;
  loop.end = loop.end < tile.begin + 1 ? tile.begin + 1 : loop.end;
  loop.end = skips.right && loop.end < tile.end ? loop.end : tile.end;
  loop.begin = keys.first.begin / tile_k;
  loop.begin = loop.begin < loop.end - 1 ? loop.begin : loop.end - 1;
  loop.begin = skips.left && loop.begin > tile.begin ? loop.begin : tile.begin;
  loop.clean_end = keys.first.end / tile_k;
  loop.clean_end = loop.clean_end < loop.begin ? loop.begin : loop.clean_end;
  loop.clean_begin = (keys.last.begin + tile_k - 1) / tile_k;
  loop.clean_begin = loop.clean_begin < loop.begin ? loop.begin : loop.clean_begin;
  return loop;
}

}  // namespace rowmax::cuda::sm90
