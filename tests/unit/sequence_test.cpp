// sequence_extent: lengths as kernels read them. On a device nobody has checked them.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernel_api/args.h"

namespace rowmax {
namespace {

// One side's offsets and used lengths in int32 and int64.
struct Lengths {
  std::vector<int64_t> wide;
  std::vector<int32_t> narrow;

  explicit Lengths(std::vector<int64_t> values)
      : wide(std::move(values)), narrow(wide.begin(), wide.end()) {}
  IndexArg arg(bool is_int64) const {
    return {
        is_int64 ? static_cast<const void*>(wide.data()) : static_cast<const void*>(narrow.data()),
        is_int64, 1};
  }
};

// Bounds 10 and 12 on the lengths, storage of 20 and 24 rows.
AttentionArgs bounds() {
  AttentionArgs args;
  args.shape.batch = 3;
  args.shape.seqlen_q = 10;
  args.shape.seqlen_k = 12;
  args.sequence.total_q = 20;
  args.sequence.total_k = 24;
  return args;
}

void expect_extent(const SequenceExtent& e, const SequenceExtent& expected) {
  EXPECT_EQ(e.q_begin, expected.q_begin);
  EXPECT_EQ(e.q_len, expected.q_len);
  EXPECT_EQ(e.k_begin, expected.k_begin);
  EXPECT_EQ(e.k_len, expected.k_len);
}

TEST(SequenceExtent, DenseIsTheWholeAxis) {
  expect_extent(sequence_extent(bounds(), 2), {0, 10, 0, 12});
}

class SequenceExtentOf : public testing::TestWithParam<bool> {
 protected:
  // The extent of one pair of offsets on both sides, as batch element 1.
  static SequenceExtent of(int64_t begin, int64_t end) {
    const Lengths offsets({0, begin, end});
    AttentionArgs args = bounds();
    args.sequence.cu_q = offsets.arg(GetParam());
    args.sequence.cu_k = offsets.arg(GetParam());
    return sequence_extent(args, 1);
  }
};

TEST_P(SequenceExtentOf, RaggedOffsets) {
  expect_extent(of(3, 9), {3, 6, 3, 6});
  expect_extent(of(4, 4), {4, 0, 4, 0});
  expect_extent(of(0, 10), {0, 10, 0, 10});
}

TEST_P(SequenceExtentOf, DecreasingOffsetsAreEmpty) {
  expect_extent(of(9, 3), {9, 0, 9, 0});
  expect_extent(of(9, -3), {9, 0, 9, 0});
}

TEST_P(SequenceExtentOf, NegativeOffsetsBeginAtZero) {
  expect_extent(of(-7, 5), {0, 5, 0, 5});
  expect_extent(of(-7, -2), {0, 0, 0, 0});
}

TEST_P(SequenceExtentOf, OffsetsBeyondTheStorageAreItsEnd) {
  expect_extent(of(15, 99), {15, 5, 15, 9});
  expect_extent(of(50, 99), {20, 0, 24, 0});
}

TEST_P(SequenceExtentOf, LengthsBeyondTheBoundAreTheBound) {
  expect_extent(of(1, 20), {1, 10, 1, 12});
}

TEST_P(SequenceExtentOf, UsedLengthsAreClampedToTheSequence) {
  const Lengths offsets({0, 6, 13, 20});
  const Lengths used({4, -1, 9});
  AttentionArgs args = bounds();
  args.sequence.used_q = used.arg(GetParam());
  args.sequence.used_k = used.arg(GetParam());
  expect_extent(sequence_extent(args, 0), {0, 4, 0, 4});
  expect_extent(sequence_extent(args, 1), {0, 0, 0, 0});
  args.sequence.cu_q = offsets.arg(GetParam());
  args.sequence.cu_k = offsets.arg(GetParam());
  expect_extent(sequence_extent(args, 0), {0, 4, 0, 4});
  expect_extent(sequence_extent(args, 1), {6, 0, 6, 0});
  expect_extent(sequence_extent(args, 2), {13, 7, 13, 7});
}

INSTANTIATE_TEST_SUITE_P(Index, SequenceExtentOf, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& test) {
                           return test.param ? "int64" : "int32";
                         });

// Offsets that 32 bits do not hold.
TEST(SequenceExtent, OffsetsOf64Bits) {
  const int64_t far = (int64_t{1} << 40) + 5;
  const Lengths offsets({far, far + 7});
  AttentionArgs args = bounds();
  args.sequence.total_k = int64_t{1} << 41;
  args.sequence.cu_k = offsets.arg(true);
  expect_extent(sequence_extent(args, 0), {0, 10, far, 7});
}

}  // namespace
}  // namespace rowmax
