// Band geometry against the rule itself, key by key, over every small shape.
#include "problem/band.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "rowmax/problem.h"

namespace rowmax {
namespace {

// docs/semantics.md: key j is visible to row i iff i + shift - left <= j <= i + shift + right.
bool visible(const Band& band, int64_t seqlen_q, int64_t seqlen_k, int64_t i, int64_t j) {
  const int64_t shift = band.alignment == Alignment::kTopLeft ? 0 : seqlen_k - seqlen_q;
  return (!band.left.bounded() || i + shift - band.left.value() <= j) &&
         (!band.right.bounded() || j <= i + shift + band.right.value());
}

RowBand resolved(const Band& band, int64_t seqlen_q, int64_t seqlen_k) {
  BandArgs args;
  args.left = band.left.value();
  args.right = band.right.value();
  args.has_left = band.left.bounded();
  args.has_right = band.right.bounded();
  args.top_left = band.alignment == Alignment::kTopLeft;
  return resolve_band(args, seqlen_q, seqlen_k);
}

std::vector<Bound> small_bounds() {
  std::vector<Bound> bounds = {Bound::unbounded(), Bound::at(INT64_MAX), Bound::at(INT64_MIN)};
  for (int64_t value = -4; value <= 5; ++value) {
    bounds.push_back(Bound::at(value));
  }
  return bounds;
}

struct Shape {
  Band band;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
};

// INT64_MIN and INT64_MAX stand for "far away"; the rule above is evaluated with nearer numbers.
Band near_band(const Band& band) {
  const auto nearer = [](const Bound& bound) {
    return bound.bounded() ? Bound::at(std::clamp<int64_t>(bound.value(), -1000, 1000)) : bound;
  };
  return {nearer(band.left), nearer(band.right), band.alignment};
}

template <class Check>
void for_every_small_shape(const Check& check) {
  for (const Alignment alignment : {Alignment::kBottomRight, Alignment::kTopLeft}) {
    for (const Bound& left : small_bounds()) {
      for (const Bound& right : small_bounds()) {
        for (int64_t seqlen_q = 0; seqlen_q <= 7; ++seqlen_q) {
          for (int64_t seqlen_k = 0; seqlen_k <= 7; ++seqlen_k) {
            const Shape shape = {{left, right, alignment}, seqlen_q, seqlen_k};
            check(shape);
            if (testing::Test::HasFailure()) {
              FAIL() << "left " << left.value() << " right " << right.value() << " top left "
                     << (alignment == Alignment::kTopLeft) << " sq" << seqlen_q << " sk"
                     << seqlen_k;
            }
          }
        }
      }
    }
  }
}

TEST(Band, RowKeysAreTheVisibleKeys) {
  for_every_small_shape([](const Shape& s) {
    const RowBand band = resolved(s.band, s.seqlen_q, s.seqlen_k);
    for (int64_t i = 0; i < s.seqlen_q; ++i) {
      const KeyRange keys = row_keys(band, i, s.seqlen_k);
      ASSERT_GE(keys.begin, 0);
      ASSERT_LE(keys.begin, keys.end);
      ASSERT_LE(keys.end, s.seqlen_k);
      for (int64_t j = 0; j < s.seqlen_k; ++j) {
        ASSERT_EQ(j >= keys.begin && j < keys.end,
                  visible(near_band(s.band), s.seqlen_q, s.seqlen_k, i, j))
            << "row " << i << " key " << j;
      }
    }
  });
}

TEST(Band, BlockKeysAreTheSmallestRange) {
  for_every_small_shape([](const Shape& s) {
    const RowBand band = resolved(s.band, s.seqlen_q, s.seqlen_k);
    for (int64_t begin = 0; begin < s.seqlen_q; ++begin) {
      for (int64_t end = begin + 1; end <= s.seqlen_q; ++end) {
        int64_t first = s.seqlen_k;
        int64_t last = 0;
        for (int64_t i = begin; i < end; ++i) {
          for (int64_t j = 0; j < s.seqlen_k; ++j) {
            if (visible(near_band(s.band), s.seqlen_q, s.seqlen_k, i, j)) {
              first = std::min(first, j);
              last = std::max(last, j + 1);
            }
          }
        }
        const KeyRange keys = block_keys(band, begin, end, s.seqlen_k);
        if (first >= last) {
          ASSERT_EQ(keys.begin, keys.end) << "rows " << begin << " to " << end;
        } else {
          ASSERT_EQ(keys.begin, first) << "rows " << begin << " to " << end;
          ASSERT_EQ(keys.end, last) << "rows " << begin << " to " << end;
        }
      }
    }
  });
}

TEST(Band, BlockRowsHoldEveryRowThatSeesTheBlock) {
  for_every_small_shape([](const Shape& s) {
    const RowBand band = resolved(s.band, s.seqlen_q, s.seqlen_k);
    const bool nonempty = !band.has_lo || !band.has_hi || band.lo <= band.hi;
    for (int64_t begin = 0; begin < s.seqlen_k; ++begin) {
      for (int64_t end = begin + 1; end <= s.seqlen_k; ++end) {
        int64_t first = s.seqlen_q;
        int64_t last = 0;
        for (int64_t i = 0; i < s.seqlen_q; ++i) {
          for (int64_t j = begin; j < end; ++j) {
            if (visible(near_band(s.band), s.seqlen_q, s.seqlen_k, i, j)) {
              first = std::min(first, i);
              last = std::max(last, i + 1);
            }
          }
        }
        const KeyRange rows = block_rows(band, begin, end, s.seqlen_q);
        ASSERT_GE(rows.begin, 0);
        ASSERT_LE(rows.begin, rows.end);
        ASSERT_LE(rows.end, s.seqlen_q);
        if (first < last) {
          ASSERT_EQ(rows.begin, first) << "keys " << begin << " to " << end;
          ASSERT_EQ(rows.end, last) << "keys " << begin << " to " << end;
        } else if (nonempty) {
          ASSERT_EQ(rows.begin, rows.end) << "keys " << begin << " to " << end;
        }
      }
    }
  });
}

TEST(Band, CleanBlocksHaveNoHiddenPair) {
  for_every_small_shape([](const Shape& s) {
    const RowBand band = resolved(s.band, s.seqlen_q, s.seqlen_k);
    for (int64_t row = 0; row < s.seqlen_q; ++row) {
      for (int64_t row_end = row + 1; row_end <= s.seqlen_q; ++row_end) {
        for (int64_t key = 0; key < s.seqlen_k; ++key) {
          for (int64_t key_end = key + 1; key_end <= s.seqlen_k; ++key_end) {
            bool all = true;
            for (int64_t i = row; i < row_end; ++i) {
              for (int64_t j = key; j < key_end; ++j) {
                all = all && visible(near_band(s.band), s.seqlen_q, s.seqlen_k, i, j);
              }
            }
            ASSERT_EQ(block_is_clean(band, row, row_end, key, key_end), all)
                << "rows " << row << " to " << row_end << " keys " << key << " to " << key_end;
          }
        }
      }
    }
  });
}

AttentionProblem problem_of(const Shape& s) {
  AttentionProblem problem;
  problem.sizes.batch = 3;
  problem.sizes.heads_q = 4;
  problem.sizes.heads_kv = 2;
  problem.sizes.seqlen_q = s.seqlen_q;
  problem.sizes.seqlen_k = s.seqlen_k;
  problem.sizes.head_dim = 8;
  problem.sizes.head_dim_v = 5;
  problem.band = s.band;
  return problem;
}

int64_t pairs_by_enumeration(const Shape& s) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < s.seqlen_q; ++i) {
    for (int64_t j = 0; j < s.seqlen_k; ++j) {
      pairs += visible(near_band(s.band), s.seqlen_q, s.seqlen_k, i, j) ? 1 : 0;
    }
  }
  return pairs;
}

TEST(Work, PairsAreCountedExactly) {
  for_every_small_shape([](const Shape& s) {
    ASSERT_EQ(count_work(problem_of(s)).visible_pairs, 12 * pairs_by_enumeration(s));
  });
}

TEST(Work, PairsOfLongSequences) {
  Shape s = {Band::causal(), 2147483647, 2147483647};
  AttentionProblem problem = problem_of(s);
  problem.sizes.batch = problem.sizes.heads_q = problem.sizes.heads_kv = 1;
  EXPECT_EQ(count_work(problem).visible_pairs, int64_t{2147483647} * 1073741824);
  problem.band = Band::full();
  EXPECT_EQ(count_work(problem).visible_pairs, int64_t{2147483647} * 2147483647);
  problem.band = Band::window(0, 0);
  EXPECT_EQ(count_work(problem).visible_pairs, 2147483647);
}

TEST(Work, FlopsAndBytes) {
  AttentionProblem problem = problem_of({Band::full(), 6, 10});
  const double pairs = 3 * 4 * 6 * 10;
  EXPECT_EQ(count_work(problem).flops, 2.0 * (8 + 5) * pairs);
  const double q = 3 * 4 * 6 * 8, k = 3 * 2 * 10 * 8, v = 3 * 2 * 10 * 5, o = 3 * 4 * 6 * 5;
  const double lse = 3 * 4 * 6;
  EXPECT_EQ(count_work(problem).bytes, 4.0 * (q + k + v + o + lse));
  problem.op = Op::kBackward;
  EXPECT_EQ(count_work(problem).flops, 2.0 * (3 * 8 + 2 * 5) * pairs);
  EXPECT_EQ(count_work(problem).bytes, 4.0 * (2 * (q + k + v + o) + lse));
  problem.op = Op::kForward;
  problem.dtype = DType::kBF16;
  problem.lse = false;
  problem.score.bias = {true, DType::kF32, false, true, false, true};
  EXPECT_EQ(count_work(problem).bytes, 2.0 * (q + k + v) + 4.0 * o + 4.0 * 4 * 10);
}

// ---- intersection -------------------------------------------------------------------------------

TEST(Band, IntersectionSeesWhatBothSee) {
  for (const Bound& left : small_bounds()) {
    for (const Bound& right : small_bounds()) {
      for (const Band& other : {Band::full(), Band::causal(), Band::window(2, 1),
                                Band::window(-1, 3), Band{Bound::at(2), Bound::unbounded()}}) {
        const Band band = {left, right};
        const Band both = intersect(band, other);
        EXPECT_EQ(both, intersect(other, band));
        for (int64_t i = 0; i < 6; ++i) {
          for (int64_t j = 0; j < 7; ++j) {
            ASSERT_EQ(visible(near_band(both), 6, 7, i, j),
                      visible(near_band(band), 6, 7, i, j) && visible(other, 6, 7, i, j));
          }
        }
      }
    }
  }
}

TEST(Band, IntersectionKeepsTheAlignment) {
  Band top_left = Band::causal();
  top_left.alignment = Alignment::kTopLeft;
  EXPECT_EQ(intersect(Band::full(), top_left).alignment, Alignment::kTopLeft);
  EXPECT_EQ(intersect(top_left, Band::full()).alignment, Alignment::kTopLeft);
  EXPECT_EQ(intersect(top_left, top_left), top_left);
}

// ---- geometry of the recorded cases -------------------------------------------------------------

Band band_of(const std::string& words) {
  const Result<AttentionProblem> problem = parse_problem("forward f32 s1 d1 " + words);
  EXPECT_TRUE(problem.ok()) << words;
  return problem.ok() ? problem->band : Band();
}

KeyRange keys_of(const std::string& words, int64_t seqlen_q, int64_t seqlen_k, int64_t row) {
  return row_keys(resolved(band_of(words), seqlen_q, seqlen_k), row, seqlen_k);
}

void expect_keys(const KeyRange& keys, int64_t begin, int64_t end) {
  if (begin == end) {
    EXPECT_EQ(keys.begin, keys.end);
    return;
  }
  EXPECT_EQ(keys.begin, begin);
  EXPECT_EQ(keys.end, end);
}

// One causal row at the end of a long cache sees all of it; top-left sees key 0 only.
TEST(BandCases, BC027_AlignmentOfOneRow) {
  expect_keys(keys_of("causal", 1, 203, 0), 0, 203);
  expect_keys(keys_of("causal topleft", 1, 203, 0), 0, 1);
}

// An unbounded left end is a value, not the number -1.
TEST(BandCases, BC029_UnboundedIsNotMinusOne) {
  EXPECT_EQ(band_of("window=inf,0"), Band::causal());
  EXPECT_EQ(band_of("causal window=inf,inf"), Band::causal());
  expect_keys(keys_of("window=inf,0", 1024, 1024, 700), 0, 701);
  // The number -1 is an offset: row i starts at key i + 1, beyond its right end.
  expect_keys(keys_of("window=-1,0", 1024, 1024, 700), 0, 0);
}

TEST(BandCases, BC030_EquivalentWindows) {
  for (const char* words : {"causal", "window=inf,0", "window=96,0", "window=95,0"}) {
    for (int64_t row = 0; row < 96; ++row) {
      expect_keys(keys_of(words, 96, 96, row), 0, row + 1);
    }
  }
}

// Bottom-right with Sq > Sk: the first rows see nothing.
TEST(BandCases, BC031_WindowWithMoreRowsThanKeys) {
  const int64_t seqlen_q = 129;
  const int64_t seqlen_k = 60;
  for (int64_t row = 0; row < seqlen_q; ++row) {
    const int64_t centre = row + seqlen_k - seqlen_q;
    const int64_t begin = std::clamp<int64_t>(centre - 32, 0, seqlen_k);
    const int64_t end = std::clamp<int64_t>(centre + 64 + 1, begin, seqlen_k);
    expect_keys(keys_of("window=32,64", seqlen_q, seqlen_k, row), begin, end);
  }
  expect_keys(keys_of("window=32,64", seqlen_q, seqlen_k, 4), 0, 0);
  expect_keys(keys_of("window=32,64", seqlen_q, seqlen_k, 5), 0, 1);
}

TEST(BandCases, BC032_NegativeRightIsAnOffset) {
  const Band band = band_of("causal window=inf,-3");
  EXPECT_EQ(band, (Band{Bound::unbounded(), Bound::at(-3)}));
  for (int64_t row = 0; row < 16; ++row) {
    expect_keys(keys_of("causal window=inf,-3", 16, 16, row), 0, std::max<int64_t>(row - 2, 0));
  }
}

TEST(BandCases, BC033_LeftOnlyWindowOfCausalHasNoFuture) {
  for (int64_t row = 0; row < 128; ++row) {
    expect_keys(keys_of("window=16,0", 128, 128, row), std::max<int64_t>(row - 16, 0), row + 1);
  }
}

// The band knows positions only: the same range whatever the head.
TEST(BandCases, BC035_WindowDoesNotDependOnHeads) {
  AttentionProblem wide = problem_of({Band::window(4, 0), 40, 40});
  AttentionProblem narrow = wide;
  wide.sizes.heads_kv = 4;
  EXPECT_EQ(count_work(wide).visible_pairs, count_work(narrow).visible_pairs);
}

TEST(BandCases, BC036_LeftBoundIsInclusive) {
  expect_keys(keys_of("window=4,0", 16, 16, 10), 6, 11);
}

}  // namespace
}  // namespace rowmax
