// Batch-invariant plans, equivalent bands, and results that must not depend on where a row stands.
#include <gtest/gtest.h>

#include "runs.h"

namespace rowmax::test {
namespace {

// Rows [first, first + count) of one batch element of a (B, S, X) array.
std::vector<float> slice(const std::vector<float>& values, int64_t length, int64_t width, int64_t b,
                         int64_t first, int64_t count) {
  const auto begin = values.begin() + static_cast<ptrdiff_t>((b * length + first) * width);
  return {begin, begin + static_cast<ptrdiff_t>(count * width)};
}

// BC-108: a row's bits do not depend on its neighbours in the batch.
TEST(BatchInvariant, BC108_NeighboursDoNotChangeBits) {
  for (const char* score : {"", "causal", "window=50,0", "softcap=10", "sinks"}) {
    const std::string options = std::string(" invariant ") + score;
    const float sinks[8] = {0.1f, -1.0f, 2.0f, 0.0f, 0.5f, 0.25f, -0.5f, 1.0f};
    for (const int64_t seqlen_q : {1, 40}) {
      const std::string sizes = " hq8 hkv2 sq" + std::to_string(seqlen_q) + " sk1300 d64";
      DenseRun batch("forward f32 b4" + sizes + options);
      if (batch.problem.score.sinks) {
        batch.tensors.score.sinks = contiguous(static_cast<const void*>(sinks), DType::kF32, {8});
      }
      ASSERT_TRUE(batch.run("", 2).ok());
      for (const int64_t b : {0, 3}) {
        DenseRun alone("forward f32 b1" + sizes + options);
        alone.tensors.score = batch.tensors.score;
        alone.q = slice(batch.q, seqlen_q, 8 * 64, b, 0, seqlen_q);
        alone.k = slice(batch.k, 1300, 2 * 64, b, 0, 1300);
        alone.v = slice(batch.v, 1300, 2 * 64, b, 0, 1300);
        ASSERT_TRUE(alone.run("", 1).ok());
        EXPECT_TRUE(same_bits(alone.out, slice(batch.out, seqlen_q, 8 * 64, b, 0, seqlen_q)))
            << to_string(batch.problem);
        EXPECT_TRUE(same_bits(alone.lse, slice(batch.lse, 8 * seqlen_q, 1, b, 0, 8 * seqlen_q)));
      }
    }
  }
}

// BC-037: the first new token's bits do not depend on how many tokens come after it.
TEST(BatchInvariant, BC037_LaterTokensDoNotChangeBits) {
  constexpr int64_t kPast = 200;
  constexpr int64_t kMost = 12;
  for (const char* band : {"causal", "window=60,0"}) {
    DenseRun most("forward f32 b1 hq4 hkv2 sq12 sk212 d64 invariant " + std::string(band));
    ASSERT_TRUE(most.run().ok());
    for (int64_t count = 1; count < kMost; ++count) {
      DenseRun fewer("forward f32 b1 hq4 hkv2 sq" + std::to_string(count) + " sk" +
                     std::to_string(kPast + count) + " d64 invariant " + band);
      fewer.q = slice(most.q, kMost, 4 * 64, 0, 0, count);
      fewer.k = slice(most.k, kPast + kMost, 2 * 64, 0, 0, kPast + count);
      fewer.v = slice(most.v, kPast + kMost, 2 * 64, 0, 0, kPast + count);
      ASSERT_TRUE(fewer.run().ok());
      EXPECT_TRUE(same_bits(fewer.out, slice(most.out, kMost, 4 * 64, 0, 0, count)))
          << count << " tokens, " << band;
    }
  }
}

// BC-029, BC-030: the same set of keys, described in other ways, gives the same bits.
TEST(EquivalentBands, BC030_GiveTheSameBits) {
  for (const char* op : {"forward", "backward"}) {
    const std::string sizes = std::string(op) + " f32 b1 hq4 hkv2 sq150 sk300 d32 ";
    DenseRun forward("forward f32 b1 hq4 hkv2 sq150 sk300 d32 causal");
    ASSERT_TRUE(forward.run().ok());
    DenseRun causal(sizes + "causal");
    causal.out = forward.out;
    causal.lse = forward.lse;
    ASSERT_TRUE(causal.run().ok());
    for (const char* band : {"window=inf,0", "window=300,0", "window=299,0"}) {
      DenseRun other(sizes + band);
      other.out = forward.out;
      other.lse = forward.lse;
      ASSERT_TRUE(other.run().ok());
      EXPECT_TRUE(same_bits(causal.out, other.out)) << band;
      EXPECT_TRUE(same_bits(causal.dq, other.dq)) << op << " " << band;
      EXPECT_TRUE(same_bits(causal.dk, other.dk)) << op << " " << band;
      EXPECT_TRUE(same_bits(causal.dv, other.dv)) << op << " " << band;
    }
  }
}

// BC-035, BC-038: grouped heads equal K and V repeated to every query head.
TEST(GroupedHeads, BC035_EqualExpandedHeads) {
  for (const char* score : {"causal", "window=40,3", ""}) {
    DenseRun grouped("forward f32 b2 hq6 hkv2 sq100 sk160 d32 " + std::string(score));
    ASSERT_TRUE(grouped.run().ok());
    DenseRun expanded("forward f32 b2 h6 sq100 sk160 d32 " + std::string(score));
    expanded.q = grouped.q;
    for (size_t x = 0; x < expanded.k.size(); ++x) {
      const size_t d = x % 32;
      const size_t head = x / 32 % 6;
      const size_t row = x / 32 / 6;
      expanded.k[x] = grouped.k[(row * 2 + head / 3) * 32 + d];
      expanded.v[x] = grouped.v[(row * 2 + head / 3) * 32 + d];
    }
    ASSERT_TRUE(expanded.run().ok());
    EXPECT_TRUE(same_bits(grouped.out, expanded.out)) << score;
    EXPECT_TRUE(same_bits(grouped.lse, expanded.lse)) << score;
  }
}

// A plan may run any number of times, with other lengths, in a dirty workspace.
TEST(Rerun, GivesTheSameBits) {
  for (const char* text :
       {"forward f32 b1 h2 sq60 sk1300 d64", "backward f32 b1 h1 sq90 sk1300 d16"}) {
    DenseRun forward("forward" + std::string(text).substr(std::string(text).find(' ')));
    ASSERT_TRUE(forward.run().ok());
    DenseRun first(text);
    first.out = forward.out;
    first.lse = forward.lse;
    ASSERT_TRUE(first.run("", 2).ok());
    const std::vector<float> dq = first.dq;
    const std::vector<float> out = first.out;
    for (int repeat = 0; repeat < 5; ++repeat) {
      ASSERT_TRUE(first.run("", 2).ok());
      EXPECT_TRUE(same_bits(out, first.out));
      EXPECT_TRUE(same_bits(dq, first.dq));
    }
  }
}

}  // namespace
}  // namespace rowmax::test
