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

// Names of the main kernels that serve a problem; at least one does.
std::vector<std::string> serving(const std::string& problem_text) {
  const AttentionProblem problem = parse_problem(problem_text).value();
  std::vector<std::string> names;
  for (const KernelEntry* entry : main_kernels()) {
    if (entry->supports(problem, entry->config).ok()) {
      names.push_back(entry->config.name);
    }
  }
  EXPECT_FALSE(names.empty()) << problem_text;
  return names;
}

// Every element of the batch, run alone on the same kernel, has the bits it has in the batch.
void expect_batch_invariance(const std::string& sizes, const std::string& options) {
  const Sizes s = parse_problem("forward f32 b4" + sizes).value().sizes;
  const float sinks[8] = {0.1f, -1.0f, 2.0f, 0.0f, 0.5f, 0.25f, -0.5f, 1.0f};
  for (const std::string& kernel : serving("forward f32 b4" + sizes + options)) {
    SCOPED_TRACE(kernel + sizes + options);
    DenseRun batch("forward f32 b4" + sizes + options);
    if (batch.problem.score.sinks) {
      batch.tensors.score.sinks = contiguous(static_cast<const void*>(sinks), DType::kF32, {8});
    }
    ASSERT_TRUE(batch.run(kernel, 2).ok());
    for (const int64_t b : {0, 3}) {
      DenseRun alone("forward f32 b1" + sizes + options);
      alone.tensors.score = batch.tensors.score;
      alone.q = slice(batch.q, s.seqlen_q, 8 * 64, b, 0, s.seqlen_q);
      alone.k = slice(batch.k, s.seqlen_k, 2 * 64, b, 0, s.seqlen_k);
      alone.v = slice(batch.v, s.seqlen_k, 2 * 64, b, 0, s.seqlen_k);
      ASSERT_TRUE(alone.run(kernel, 1).ok());
      EXPECT_TRUE(same_bits(alone.out, slice(batch.out, s.seqlen_q, 8 * 64, b, 0, s.seqlen_q)));
      EXPECT_TRUE(same_bits(alone.lse, slice(batch.lse, 8 * s.seqlen_q, 1, b, 0, 8 * s.seqlen_q)));
    }
  }
}

// BC-108: a row's bits do not depend on its neighbours in the batch.
TEST(BatchInvariant, BC108_NeighboursDoNotChangeBits) {
  for (const char* score : {"", "causal", "window=50,0", "softcap=10", "sinks"}) {
    for (const char* sizes : {" hq8 hkv2 sq1 sk1300 d64", " hq8 hkv2 sq40 sk1300 d64"}) {
      expect_batch_invariance(sizes, std::string(" invariant ") + score);
    }
  }
}

// BC-037: the first new token's bits do not depend on how many tokens come after it.
TEST(BatchInvariant, BC037_LaterTokensDoNotChangeBits) {
  constexpr int64_t kPast = 200;
  constexpr int64_t kMost = 12;
  for (const char* band : {"causal", "window=60,0"}) {
    const std::string text =
        "forward f32 b1 hq4 hkv2 sq12 sk212 d64 invariant " + std::string(band);
    for (const std::string& kernel : serving(text)) {
      DenseRun most(text);
      ASSERT_TRUE(most.run(kernel).ok());
      for (int64_t count = 1; count < kMost; ++count) {
        DenseRun fewer("forward f32 b1 hq4 hkv2 sq" + std::to_string(count) + " sk" +
                       std::to_string(kPast + count) + " d64 invariant " + band);
        fewer.q = slice(most.q, kMost, 4 * 64, 0, 0, count);
        fewer.k = slice(most.k, kPast + kMost, 2 * 64, 0, 0, kPast + count);
        fewer.v = slice(most.v, kPast + kMost, 2 * 64, 0, 0, kPast + count);
        ASSERT_TRUE(fewer.run(kernel).ok());
        EXPECT_TRUE(same_bits(fewer.out, slice(most.out, kMost, 4 * 64, 0, 0, count)))
            << kernel << ": " << count << " tokens, " << band;
      }
    }
  }
}

// BC-029, BC-030: the same set of keys, described in other ways, gives the same bits.
TEST(EquivalentBands, BC030_GiveTheSameBits) {
  for (const char* text :
       {"forward f32 b1 hq4 hkv2 sq150 sk300 d32 ", "forward f32 b1 hq4 hkv2 sq3 sk300 d32 ",
        "backward f32 b1 hq4 hkv2 sq150 sk300 d32 "}) {
    const std::string sizes(text);
    DenseRun forward("forward" + sizes.substr(sizes.find(' ')) + "causal");
    ASSERT_TRUE(forward.run().ok());
    for (const std::string& kernel : serving(sizes + "causal")) {
      DenseRun causal(sizes + "causal");
      causal.out = forward.out;
      causal.lse = forward.lse;
      ASSERT_TRUE(causal.run(kernel).ok());
      for (const char* band : {"window=inf,0", "window=300,0", "window=299,0"}) {
        SCOPED_TRACE(sizes + band + " " + kernel);
        DenseRun other(sizes + band);
        other.out = forward.out;
        other.lse = forward.lse;
        ASSERT_TRUE(other.run(kernel).ok());
        EXPECT_TRUE(same_bits(causal.out, other.out));
        EXPECT_TRUE(same_bits(causal.lse, other.lse));
        EXPECT_TRUE(same_bits(causal.dq, other.dq));
        EXPECT_TRUE(same_bits(causal.dk, other.dk));
        EXPECT_TRUE(same_bits(causal.dv, other.dv));
      }
    }
  }
}

// BC-035, BC-038: grouped heads equal K and V repeated to every query head. Bit for bit where
// panels never mix heads; decode folds heads into rows, and how many there are changes its order of
// sums.
TEST(GroupedHeads, BC035_EqualExpandedHeads) {
  for (const char* score : {" causal", " window=40,3", ""}) {
    for (const char* lengths : {" sq100 sk160 d32 invariant", " sq2 sk160 d32 invariant"}) {
      const std::string text = "forward f32 b2 hq6 hkv2" + std::string(lengths) + score;
      for (const std::string& kernel : serving(text)) {
        SCOPED_TRACE(text + " " + kernel);
        DenseRun grouped(text);
        ASSERT_TRUE(grouped.run(kernel).ok());
        DenseRun expanded("forward f32 b2 h6" + std::string(lengths) + score);
        expanded.q = grouped.q;
        for (size_t x = 0; x < expanded.k.size(); ++x) {
          const size_t d = x % 32;
          const size_t head = x / 32 % 6;
          const size_t row = x / 32 / 6;
          expanded.k[x] = grouped.k[(row * 2 + head / 3) * 32 + d];
          expanded.v[x] = grouped.v[(row * 2 + head / 3) * 32 + d];
        }
        ASSERT_TRUE(expanded.run(kernel).ok());
        EXPECT_TRUE(same_bits(grouped.out, expanded.out));
        EXPECT_TRUE(same_bits(grouped.lse, expanded.lse));
      }
    }
  }
}

// BC-106: a plan may run any number of times, with other lengths, in a dirty workspace.
TEST(Rerun, BC106_GivesTheSameBits) {
  for (const char* text : {"forward f32 b1 h2 sq60 sk1300 d64", "forward f32 b1 h2 sq2 sk1300 d64",
                           "backward f32 b1 h1 sq90 sk1300 d16"}) {
    DenseRun forward("forward" + std::string(text).substr(std::string(text).find(' ')));
    ASSERT_TRUE(forward.run().ok());
    for (const std::string& kernel : serving(text)) {
      SCOPED_TRACE(text + (" " + kernel));
      DenseRun run(text);
      run.out = forward.out;
      run.lse = forward.lse;
      ASSERT_TRUE(run.run(kernel, 2).ok());
      const DenseRun first = run;
      for (int repeat = 0; repeat < 5; ++repeat) {
        ASSERT_TRUE(run.run(kernel, 2).ok());
        EXPECT_TRUE(same_bits(first.out, run.out));
        EXPECT_TRUE(same_bits(first.lse, run.lse));
        EXPECT_TRUE(same_bits(first.dq, run.dq));
        EXPECT_TRUE(same_bits(first.dk, run.dk));
        EXPECT_TRUE(same_bits(first.dv, run.dv));
      }
    }
  }
}

}  // namespace
}  // namespace rowmax::test
