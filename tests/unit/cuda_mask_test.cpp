// Masks of GPU kernels, one bit a score, against the layout of the accumulator registers.
#include <gtest/gtest.h>

#include <array>
#include <climits>
#include <cmath>
#include <utility>

#include "backend/cuda/tile/mask.cuh"

namespace rowmax::test {
namespace {

constexpr int kWidest = 128;  // keys of a block
constexpr int kBeyond = 12;   // how far columns go past a block, on both sides

// Bit by bit: bit i stands for column 8 (i / 2) + i % 2.
uint32_t columns_one_by_one(int column) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) {
    bits |= 8 * (i / 2) + i % 2 < column ? 1u << i : 0u;
  }
  return bits;
}

TEST(CudaMask, BitsOfTheColumnsBeforeOne) {
  for (int column = -2 * kWidest; column <= 2 * kWidest; ++column) {
    ASSERT_EQ(cuda::tile::columns_before(column), columns_one_by_one(column)) << column;
  }
  // Bands saturate at 2^30; what a tile adds keeps its sums away from the ends of int.
  for (const int column : {1 << 30, INT_MAX, INT_MAX - 1, -(1 << 30), INT_MIN, INT_MIN + 1}) {
    EXPECT_EQ(cuda::tile::columns_before(column), column < 0 ? 0u : ~0u) << column;
  }
}

TEST(CudaMask, ShiftsBeyondAWord) {
  for (uint32_t bits = 0; bits < 70; ++bits) {
    EXPECT_EQ(cuda::ptx::shift_left(5u, bits), bits < 32 ? 5u << bits : 0u) << bits;
  }
  EXPECT_EQ(cuda::ptx::shift_left(1u, ~0u), 0u);
}

// Row and column of element e of a lane of a warp that holds 16 rows of m64nNk16's accumulator.
struct Place {
  int row;
  int column;
};

Place place_of(int e, int lane) {
  return {lane / 4 + 8 * ((e / 2) % 2), 8 * (e / 4) + 2 * (lane % 4) + e % 2};
}

// Each row sees its own columns [begin, end), given relative to the block.
template <int kWidth>
void check_block(int lane, const int (&begin)[2], const int (&end)[2]) {
  constexpr int kScores = kWidth / 2;
  float s[kScores];
  for (int e = 0; e < kScores; ++e) {
    s[e] = static_cast<float>(e + 1);
  }
  uint32_t visible[2];
  for (int r = 0; r < 2; ++r) {
    const int first = 2 * (lane % 4);
    visible[r] =
        cuda::tile::columns_before(end[r] - first) & ~cuda::tile::columns_before(begin[r] - first);
  }
  cuda::tile::mask_columns(s, visible);
  for (int e = 0; e < kScores; ++e) {
    const Place at = place_of(e, lane);
    const int r = at.row / 8;
    const bool seen = begin[r] <= at.column && at.column < end[r];
    ASSERT_EQ(s[e], seen ? static_cast<float>(e + 1) : -INFINITY)
        << "width " << kWidth << ", lane " << lane << ", element " << e << ", row " << at.row
        << ", column " << at.column << ", visible [" << begin[r] << ", " << end[r] << ")";
  }
}

// Every end for one row while the other has another, every begin too.
template <int kWidth>
void check_width() {
  for (int lane = 0; lane < 8; ++lane) {
    for (int a = -kBeyond; a <= kWidth + kBeyond && !testing::Test::HasFatalFailure(); ++a) {
      const int b = kWidth - a;
      check_block<kWidth>(lane, {-kBeyond, -kBeyond}, {a, b});
      check_block<kWidth>(lane, {a, b}, {kWidth, kWidth + kBeyond});
      for (int width = 0; width <= 18; width += 3) {
        check_block<kWidth>(lane, {a, b}, {a + width, b + 1});
      }
    }
  }
}

template <int... kEighths>
void check_widths(std::integer_sequence<int, kEighths...>) {
  (check_width<8 * (kEighths + 1)>(), ...);
}

TEST(CudaMask, ScoresOfEveryWidthAndColumn) {
  check_widths(std::make_integer_sequence<int, kWidest / 8>());
}

}  // namespace
}  // namespace rowmax::test
