// Tiles of the sm90 forward kernel: every tile once, every visible pair once, for every row's
// sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cuda/sm90/forward/config.h"
#include "backend/cuda/sm90/tile_order.h"
#include "backend/cuda/tile/tanh.h"
#include "kernel_api/pieces.h"

namespace rowmax::test {
namespace {

using cuda::sm90::CutTiles;
using cuda::sm90::Divider;
using cuda::sm90::Element;
using cuda::sm90::ForwardConfig;
using cuda::sm90::KeyBlocks;
using cuda::sm90::LoopBlocks;
using cuda::sm90::make_divider;
using cuda::sm90::Piece;
using cuda::sm90::TilePlace;

struct NamedRow {
  const char* name;
  ForwardConfig config;
};

#define ROWMAX_INSTANCE(name, ...) NamedRow{#name, ForwardConfig{__VA_ARGS__}},
const NamedRow kRows[] = {
#include "backend/cuda/sm90/forward/instances.def"
};
#undef ROWMAX_INSTANCE

TEST(CudaTiles, RowsFitTheirMultiprocessor) {
  for (const NamedRow& row : kRows) {
    EXPECT_TRUE(cuda::sm90::is_valid(row.config)) << row.name;
  }
}

TEST(CudaTiles, DividersDivide) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const int by = round < 300 ? 1 + round : 1 + static_cast<int>(random() >> (1 + random() % 30));
    const Divider divider = make_divider(by);
    for (const int n : {0, 1, by - 1, by, by + 1, by / 2, 0x7fffffff, 0x7ffffffe,
                        static_cast<int>(random() >> 1), static_cast<int>(random() >> 12)}) {
      if (n >= 0) {
        ASSERT_EQ(cuda::sm90::divide(n, divider), n / by) << n << " / " << by;
      }
    }
  }
}

TEST(CudaTiles, OrdersVisitEveryTileOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const int units = 1 + static_cast<int>(random() % 40);
    const int blocks = 1 + static_cast<int>(random() % 9);
    const int section = 1 + static_cast<int>(random() % static_cast<unsigned>(units));
    std::vector<int> by_length(static_cast<size_t>(units * blocks));
    std::vector<int> by_unit(by_length.size());
    for (int index = 0; index < units * blocks; ++index) {
      const TilePlace a = cuda::sm90::place_by_length(
          index, cuda::sm90::make_sections<Divider>(units, blocks, section, make_divider));
      const TilePlace b = cuda::sm90::place_by_unit(index, blocks);
      const TilePlace c = cuda::sm90::place_by_length(
          index, cuda::sm90::make_sections<int>(units, blocks, section, [](int n) { return n; }));
      ASSERT_TRUE(a.unit == c.unit && a.block == c.block);
      for (const TilePlace& at : {a, b}) {
        ASSERT_TRUE(at.unit >= 0 && at.unit < units && at.block >= 0 && at.block < blocks);
      }
      ++by_length[static_cast<size_t>(a.unit * blocks + a.block)];
      ++by_unit[static_cast<size_t>(b.unit * blocks + b.block)];
    }
    EXPECT_EQ(std::count(by_length.begin(), by_length.end(), 1), units * blocks);
    EXPECT_EQ(std::count(by_unit.begin(), by_unit.end(), 1), units * blocks);
  }
}

CutTiles make_cut(int tiles, int blocks, int ranges) {
  return {tiles, ranges, make_divider(ranges), make_divider(blocks)};
}

// Pieces of all ranges: each block of each tile once, numbered as the kernel counts them, in slots
// of their own; none shorter than promised.
void check_cut(const CutTiles& cut) {
  const int blocks = cut.blocks.value;
  std::vector<int> visits(static_cast<size_t>(cut.tiles * blocks));
  std::vector<int> slots(static_cast<size_t>(most_pieces(cut.tiles, cut.ranges)));
  std::vector<int> pieces(static_cast<size_t>(cut.tiles));
  for (int range = 0; range < cut.ranges; ++range) {
    ASSERT_LE(cuda::sm90::range_begin(cut, range), cuda::sm90::range_begin(cut, range + 1));
    for (const bool second : {false, true}) {
      const Piece piece = cuda::sm90::piece_of(cut, range, second);
      if (piece.count == 0) {
        ASSERT_TRUE(second) << "a range without a piece";
        continue;
      }
      ASSERT_TRUE(piece.tile >= 0 && piece.tile < cut.tiles);
      ASSERT_TRUE(piece.blocks.begin >= 0 && piece.blocks.end <= blocks);
      ASSERT_GE(piece.blocks.end - piece.blocks.begin,
                std::min(blocks, cuda::sm90::kLeastPieceBlocks));
      ASSERT_TRUE(piece.index >= 0 && piece.index < piece.count);
      ASSERT_EQ(piece.index == 0, piece.blocks.begin == 0);
      ASSERT_EQ(piece.index == piece.count - 1, piece.blocks.end == blocks);
      ++slots.at(static_cast<size_t>(piece.slot + piece.index));
      ++pieces[static_cast<size_t>(piece.tile)];
      for (int block = piece.blocks.begin; block < piece.blocks.end; ++block) {
        ++visits[static_cast<size_t>(piece.tile * blocks + block)];
      }
    }
  }
  EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), cut.tiles * blocks);
  EXPECT_EQ(std::count_if(slots.begin(), slots.end(), [](int n) { return n > 1; }), 0);
  for (int range = 0; range < cut.ranges; ++range) {
    for (const bool second : {false, true}) {
      const Piece piece = cuda::sm90::piece_of(cut, range, second);
      if (piece.count > 0) {
        EXPECT_EQ(piece.count, pieces[static_cast<size_t>(piece.tile)]);
      }
    }
  }
}

TEST(CudaTiles, PiecesVisitEveryBlockOnce) {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    const int blocks = 6 + static_cast<int>(random() % 200);
    const int tiles = 1 + static_cast<int>(random() % 131);
    const int most = std::min(132, tiles * blocks / 6);
    if (most <= tiles) {
      continue;
    }
    const int ranges = tiles + 1 + static_cast<int>(random()) % std::max(1, most - tiles);
    SCOPED_TRACE(testing::Message() << tiles << " tiles of " << blocks << " in " << ranges);
    check_cut(make_cut(tiles, blocks, std::min(std::max(ranges, tiles + 1), most)));
  }
  check_cut(make_cut(1, 1 << 20, 132));
  check_cut(make_cut(88, 26, 132));  // edges of ranges on edges of tiles
}

// Every visible pair lies in the blocks that the pair's warpgroup visits, blocks taken without a
// mask are visible to all of its rows, and no more blocks are skipped than V stages exist.
void check_pairs(const NamedRow& row, const RowBand& band, int seqlen_q, int seqlen_k, int pack) {
  const ForwardConfig& c = row.config;
  const int positions = c.tile_q / pack;
  for (int first = 0; first < seqlen_q; first += positions) {
    const int rows = std::min(positions, seqlen_q - first);
    const KeyRange keys = block_keys(band, first, first + rows, seqlen_k);
    const KeyBlocks tile = cuda::sm90::tile_key_blocks(static_cast<int>(keys.begin),
                                                       static_cast<int>(keys.end), c.tile_k);
    ASSERT_LT(tile.begin, tile.end);
    for (int group = 0; group < c.warpgroups; ++group) {
      const int hi = band.has_hi ? static_cast<int>(band.hi) : 1 << 30;
      const int lo = band.has_lo ? static_cast<int>(band.lo) : -(1 << 30);
      const int last = first + (group * 64 + 63) / pack;
      const int top = first + group * 64 / pack;
      const LoopBlocks loop =
          cuda::sm90::loop_blocks(tile, {{top + lo, top + hi + 1}, {last + lo, last + hi + 1}},
                                  c.tile_k, cuda::sm90::skips_of(c));
      ASSERT_TRUE(tile.begin <= loop.begin && loop.begin < loop.end && loop.end <= tile.end);
      ASSERT_LE(tile.end - loop.end, c.stages) << row.name;
      ASSERT_LE(loop.begin - tile.begin, c.stages) << row.name;
      for (int r = group * 64; r < group * 64 + 64; ++r) {
        if (r / pack >= rows) {
          continue;
        }
        const KeyRange seen = row_keys(band, first + r / pack, seqlen_k);
        if (seen.begin < seen.end) {
          ASSERT_GE(seen.begin, loop.begin * c.tile_k) << row.name;
          ASSERT_LE(seen.end, loop.end * c.tile_k) << row.name;
        }
        const int clean_end = std::min(loop.clean_end, loop.end - 1);
        if (loop.clean_begin < clean_end) {
          ASSERT_LE(seen.begin, loop.clean_begin * c.tile_k) << row.name;
          ASSERT_GE(seen.end, clean_end * c.tile_k) << row.name;
        }
      }
    }
  }
}

TEST(CudaTiles, WarpgroupsVisitEveryVisiblePair) {
  std::mt19937 random(2);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  for (const NamedRow& row : kRows) {
    if (row.config.mask != MaskClass::kBanded || row.config.element != Element::kBF16) {
      continue;
    }
    for (int round = 0; round < 40; ++round) {
      BandArgs band;
      band.has_left = below(2) != 0;
      band.has_right = below(3) != 0;
      band.left = below(400) - 60;
      band.right = below(3) == 0 ? 0 : below(300) - 100;
      band.top_left = below(3) == 0;
      const int seqlen_q = 1 + below(700);
      const int seqlen_k = below(900);
      const int packs[] = {1, 2, 4, 7, 8, 64};
      check_pairs(row, resolve_band(band, seqlen_q, seqlen_k), seqlen_q, seqlen_k, packs[below(6)]);
    }
  }
}

// The kernel's own polynomial, for factors of every size that it takes.
TEST(CudaTiles, SmallTanh) {
  for (const double factor : {1.01e-5, 3e-3, 0.0884 / 30, 1.0, -2.0, 37.5, 9.9e4}) {
    ASSERT_TRUE(cuda::tile::has_powers(factor));
    const cuda::tile::Softcap cap = cuda::tile::make_softcap(factor);
    for (int i = -1000; i <= 1000; ++i) {
      const float s = cap.limit * static_cast<float>(i) / 1000.0f;
      const float got =
          cuda::tile::odd_polynomial(s, cap.powers[0], cap.powers[1], cap.powers[2], cap.powers[3]);
      const double expected = std::tanh(factor * static_cast<double>(s));
      EXPECT_NEAR(got, expected, std::ldexp(std::fabs(expected), -20)) << factor << " " << s;
    }
  }
  EXPECT_FALSE(cuda::tile::has_powers(0.0));
  EXPECT_FALSE(cuda::tile::has_powers(1e29));
  EXPECT_FALSE(cuda::tile::has_powers(-1e-7));
}

}  // namespace
}  // namespace rowmax::test
