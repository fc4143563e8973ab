// The arithmetic of `rowmax tune` on made-up times.
#include "ranking_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace rowmax::app::testing {
namespace {

using plan::RankingEntry;
using plan::RankingFactors;

TimedKernel time_of(const std::string& kernel, double keys, double seconds,
                    double model_seconds = 1.0, MaskClass problems = MaskClass::kFull) {
  return {"case", kernel, seconds, model_seconds, {problems, keys}, true};
}

TEST(RankingFit, OneFactorEverywhere) {
  const std::vector<TimedKernel> times = {time_of("k", 512.0, 2.5, 2.0),
                                          time_of("k", 5000.0, 1.25)};
  const std::vector<RankingEntry> table = fit_ranking(times);
  ASSERT_EQ(table.size(), 1u);
  EXPECT_EQ(table[0].kernel, "k");
  EXPECT_EQ(table[0].problems, MaskClass::kFull);
  EXPECT_EQ(table[0].factors, (RankingFactors{1.25, 1.25, 1.25, 1.25}));
}

// With enough times the pull of neighbours is below the rounding.
TEST(RankingFit, FindsFactorsThatVaryWithTheKeys) {
  const RankingFactors factors = {2.0, 1.5, 1.0, 0.75};
  std::vector<TimedKernel> times;
  for (int n = 0; n < 1000; ++n) {
    for (size_t point = 0; point < factors.size(); ++point) {
      times.push_back(time_of("k", plan::kRankingKeys[point], factors[point]));
    }
    times.push_back(time_of("k", 512.0, std::sqrt(2.0 * 1.5)));  // half-way between two points
  }
  EXPECT_EQ(fit_ranking(times)[0].factors, factors);
}

// A point between measured ones lies between them, one beyond them is like the last.
TEST(RankingFit, FillsPointsThatWereNotMeasured) {
  const std::vector<TimedKernel> times = {time_of("k", 256.0, 2.0), time_of("k", 4096.0, 1.0)};
  const RankingFactors factors = fit_ranking(times)[0].factors;
  EXPECT_GT(factors[0], factors[1]);
  EXPECT_GT(factors[1], factors[2]);
  EXPECT_EQ(factors[2], factors[3]);
}

// A kernel that was measured on long problems alone is not taken for one without the others' errors
// on short ones.
TEST(RankingFit, KernelsWithoutTimesFollowTheOthers) {
  std::vector<TimedKernel> times;
  for (size_t point = 0; point < plan::kRankingKeys.size(); ++point) {
    times.push_back(time_of("everywhere", plan::kRankingKeys[point], 2.0 - 0.25 * point));
  }
  times.push_back(time_of("long", 4096.0, 1.5 * 1.02));
  times.push_back(time_of("long", 16384.0, 1.25 * 1.02));
  const std::vector<RankingEntry> table = fit_ranking(times);
  ASSERT_EQ(table.size(), 2u);
  for (size_t point = 0; point < plan::kRankingKeys.size(); ++point) {
    const double ratio = table[1].factors[point] / table[0].factors[point];
    EXPECT_TRUE(ratio > 1.0 && ratio < 1.025) << point << ": " << ratio;
  }
}

TEST(RankingFit, KernelsAndClassesHaveTheirOwnEntries) {
  std::vector<TimedKernel> times = {time_of("b", 512.0, 2.0), time_of("a", 512.0, 4.0),
                                    time_of("b", 512.0, 8.0, 1.0, MaskClass::kBanded),
                                    time_of("ragged", 512.0, 1.0)};
  times[3].fitted = false;
  const std::vector<RankingEntry> table = fit_ranking(times);
  ASSERT_EQ(table.size(), 3u);
  EXPECT_EQ(
      ranking_text(table, "somewhere, today"),
      "// Ranking table of the sm90 rows: ROWMAX_RANKING(kernel, class of the problems' bands, "
      "measured\n// over predicted time where a query row sees 256, 1024, 4096, 16384 keys).\n"
      "// Written by `rowmax tune` (docs/add_a_kernel.md); without rows the cost model alone "
      "decides.\n// somewhere, today\n"
      "ROWMAX_RANKING(a, kFull, 4.000, 4.000, 4.000, 4.000)\n"
      "ROWMAX_RANKING(b, kBanded, 8.000, 8.000, 8.000, 8.000)\n"
      "ROWMAX_RANKING(b, kFull, 2.000, 2.000, 2.000, 2.000)\n");
}

TEST(RankingFit, LossesAreOfTheBestMeasuredKernel) {
  const std::vector<TimedKernel> times = {time_of("a", 512.0, 2.5), time_of("b", 512.0, 2.0)};
  EXPECT_EQ(best_of(times).kernel, "b");
  EXPECT_EQ(loss_of(times, "a"), 0.25);
  EXPECT_EQ(loss_of(times, "b"), 0.0);
  EXPECT_EQ(loss_of(times, "c"), std::nullopt);
}

}  // namespace
}  // namespace rowmax::app::testing
