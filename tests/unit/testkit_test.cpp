// The judge itself: a wrong value, a wrong class, a stray write and a missing write are noticed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "testkit/arena.h"
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

}  // namespace
}  // namespace rowmax::testkit
