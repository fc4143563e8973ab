// The judge itself: a wrong value, a wrong class, a stray write and a missing write are noticed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "testkit/arena.h"
#include "testkit/case.h"
#include "testkit/fuzz.h"
#include "testkit/inputs.h"
#include "testkit/judge.h"
#include "testkit/numerics.h"
#include "testkit/runner.h"

namespace rowmax::testkit {
namespace {

OutputReport compare(std::vector<double> got, std::vector<double> oracle) {
  OutputRow row;
  row.count = static_cast<int64_t>(got.size());
  OutputBound bound;
  bound.bound.assign(got.size(), epsilon_of(DType::kF32));
  bound.rounding.assign(got.size(), 0.0);
  return compare_output({row}, Output::kOut, got, oracle, oracle, bound);
}

TEST(Judge, AcceptsWhatIsWithinTheBound) {
  const double inside = kBoundFactor * epsilon_of(DType::kF32) * 0.9;
  EXPECT_TRUE(compare({1.0, 2.0 + inside}, {1.0, 2.0}).passed());
}

TEST(Judge, RejectsAValueBeyondTheBound) {
  const double outside = kBoundFactor * epsilon_of(DType::kF32) * 1.1;
  const OutputReport report = compare({1.0, 2.0 + outside}, {1.0, 2.0});
  EXPECT_EQ(report.value_mismatches, 1);
  EXPECT_GT(report.ratio, 1.0);
}

TEST(Judge, RejectsAnotherClass) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(compare({std::nan(""), 2.0}, {1.0, 2.0}).nonfinite_mismatches, 1);
  EXPECT_EQ(compare({1.0, 2.0}, {1.0, -inf}).nonfinite_mismatches, 1);
  EXPECT_EQ(compare({1.0, inf}, {1.0, -inf}).nonfinite_mismatches, 1);
  EXPECT_TRUE(compare({1.0, -inf}, {1.0, -inf}).passed());
}

TEST(Arena, NoticesStrayWrites) {
  for (const int64_t at : {-1, 0, 7, 8}) {
    Arena arena;
    auto* data = static_cast<float*>(arena.allocate("x", DType::kF32, 8, 3));
    arena.expect_write(data + 1, 6 * sizeof(float));
    arena.seal();
    for (int64_t i = 1; i < 7; ++i) {
      data[i] = 1.0f;
    }
    EXPECT_TRUE(arena.violations().empty());
    data[at] = 1.0f;
    EXPECT_EQ(arena.violations().size(), 1u) << at;
  }
}

// Outputs start as NaN, so a row that nobody writes cannot pass.
TEST(Judge, RejectsARowThatWasNotWritten) {
  const Case spec = parse_case("forward f32 b1 h1 s8 d8").value();
  const std::unique_ptr<CaseInputs> inputs = std::move(CaseInputs::create(spec).value());
  for (const OutputReport& report : judge_outputs(spec.problem, inputs->args())) {
    EXPECT_FALSE(report.passed()) << to_string(report.output);
  }
}

// ---- case texts ---------------------------------------------------------------------------------

void expect_refused(const std::string& words, const std::string& message) {
  const Result<Case> spec = parse_case(words);
  ASSERT_FALSE(spec.ok()) << words;
  EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument) << words;
  EXPECT_NE(spec.status().message().find(message), std::string::npos)
      << words << ": " << spec.status().message();
}

TEST(CaseText, FactsAreStatedOnce) {
  const std::string good = "forward f32 b1 h1 s8 d8 ragged_q=8 ragged_k=8";
  for (const auto& [first, second] :
       {std::pair("seed1", "seed2"), std::pair("inputs=large", "inputs=equal"),
        std::pair("strides=bhsd", "strides=bhsd"), std::pair("lengths=one", "lengths=full"),
        std::pair("qlens=1", "qlens=1"), std::pair("klens=2", "klens=3"), std::pair("d8", "d8"),
        std::pair("causal", "causal"), std::pair("sinks", "sinks")}) {
    const std::string text = good + " " + first + " " + second;
    expect_refused(text, std::string("word '") + second + "': ");
    expect_refused(text, "is stated twice");
  }
}

TEST(CaseText, WordsWithoutEffectAreRefused) {
  const std::string forward = "forward f32 b1 h1 s8 d8 ";
  for (const char* words : {"qlens=1", "ragged_k=8 qlens=1", "used_k qlens=1"}) {
    expect_refused(forward + words, "word 'qlens' has no effect: query lengths need ragged_q or");
  }
  for (const char* words : {"klens=1", "ragged_q=8 klens=1", "used_q klens=1"}) {
    expect_refused(forward + words, "word 'klens' has no effect: key lengths need ragged_k or");
  }
  for (const char* words : {"lengths=random", "lengths=zero", "used_q qlens=1 lengths=one",
                            "ragged_q=8 ragged_k=8 qlens=8 klens=8 lengths=full"}) {
    expect_refused(forward + words, "word 'lengths' has no effect: no length is drawn");
  }
  expect_refused(forward + "topleft", "word 'topleft' has no effect");
  expect_refused(forward + "window=inf,inf topleft", "word 'topleft' has no effect");
  expect_refused("backward f32 b1 h1 s8 d8 grads=dv dlse", "word 'dlse' has no effect");
}

TEST(CaseText, ASequenceOfNaNNeedsANeighbour) {
  expect_refused("forward f32 b1 h1 s8 d8 inputs=nansequence", "two or more sequences");
  expect_refused("backward f32 b2 h1 s8 d8 inputs=nansequence", "forward");
  EXPECT_TRUE(parse_case("forward f32 b2 h1 s8 d8 inputs=nansequence").ok());
}

TEST(CaseText, ASequenceOfNaNSharesNoKeys) {
  const auto text = [](const std::string& words) {
    return "forward f32 b2 " + words + " inputs=nansequence";
  };
  for (const char* words :
       {"hq4 hkv1 s8 d8 strides=broadcast_kv", "h1 s8 d8 paged=4,4,2 used_k strides=broadcast_kv",
        "h2 s8 d8 paged=4,3,2 used_k"}) {
    expect_refused(text(words), "the sequences share K and V");
  }
  expect_refused(text("h1 s8 d8 mask=bc"), "with a mask or documents");
  expect_refused(text("h1 s8 d8 documents"), "with a mask or documents");
  for (const char* words : {"h2 s8 d8 strides=broadcast_kv", "h2 s8 d8 paged=4,4,2 used_k",
                            "h1 s8 d8 ragged_k=16 strides=broadcast_kv"}) {
    const Result<Case> spec = parse_case(text(words));
    EXPECT_TRUE(spec.ok()) << words << ": " << spec.status().message();
  }
}

TEST(Inputs, ASequenceOfNaNHasANeighbourWithRows) {
  const std::string form =
      "forward f32 b2 h1 sq8 sk8 d8 used_q used_k inputs=nansequence klens=8,8 qlens=";
  const Status alone = CaseInputs::create(parse_case(form + "0,8").value()).status();
  EXPECT_NE(alone.message().find("no other sequence has query rows"), std::string::npos);
  EXPECT_TRUE(CaseInputs::create(parse_case(form + "1,8").value()).ok());
}

TEST(Inputs, EveryRowOfASequenceOfNaNSeesAKey) {
  const std::string form = "forward f32 b2 h1 sq8 sk8 d8 used_q used_k inputs=nansequence ";
  const auto status_of = [&form](const std::string& words) {
    return CaseInputs::create(parse_case(form + words).value()).status();
  };
  for (const char* words : {"qlens=8,8 klens=8,0", "qlens=8,5 klens=8,4 causal"}) {
    EXPECT_NE(status_of(words).message().find("sees no key"), std::string::npos) << words;
  }
  for (const char* words :
       {"qlens=8,8 klens=0,8", "qlens=8,4 klens=2,4 causal", "qlens=8,0 klens=8,0"}) {
    const Status status = status_of(words);
    EXPECT_TRUE(status.ok()) << words << ": " << status.message();
  }
}

TEST(CaseText, WordsWithEffectAreTaken) {
  for (const char* words :
       {"used_q qlens=1", "ragged_q=8 qlens=1", "used_k klens=1", "paged=4,2,2 used_k klens=1",
        "used_q lengths=zero", "ragged_q=8 used_k qlens=1 lengths=one", "alibi topleft",
        "ragged_q=8 used_q qlens=1 lengths=one", "causal topleft", "window=2,inf topleft"}) {
    const std::string text = std::string("forward f32 b1 h1 s8 d8 ") + words;
    const Result<Case> spec = parse_case(text);
    EXPECT_TRUE(spec.ok()) << text << ": " << spec.status().message();
  }
}

// The line that repeats a failure must be one that can be read.
TEST(CaseText, RandomCasesRoundTrip) {
  Random random(11);
  for (int n = 0; n < 2000; ++n) {
    const std::string text =
        to_string(n % 2 == 0 ? random_case(&random) : random_gpu_case(&random));
    const Result<Case> back = parse_case(text);
    ASSERT_TRUE(back.ok()) << text << ": " << back.status().message();
    EXPECT_EQ(to_string(*back), text);
  }
}

}  // namespace
}  // namespace rowmax::testkit
