// The ranking table: what it changes, what it cannot break, and that the committed one names rows.
#include "plan/ranking.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/backends.h"
#include "fake_backend.h"
#include "kernel_api/plan_data.h"
#include "plan/cost_cuda.h"
#include "plan/planner.h"

namespace rowmax::test {
namespace {

using plan::RankingEntry;
using plan::RankingFactors;
using plan::RankingPlace;

Plan plan_with(plan::RankingTable table, const std::string& line) {
  const Result<Plan> plan =
      make_plan_with(problem_of(line), find_device("h200").value(), {}, all_backends(), table);
  EXPECT_TRUE(plan.ok()) << line << ": " << plan.status().message();
  return plan.ok() ? *plan : Plan();
}

KernelConfig named(const char* name) {
  KernelConfig config;
  config.name = name;
  return config;
}

constexpr RankingPlace kFullAt1024 = {MaskClass::kFull, 1024.0};

TEST(Ranking, WeightsAreLinearInTheLogarithm) {
  using Weights = RankingFactors;
  EXPECT_EQ(plan::ranking_weights(1024.0), (Weights{0.0, 1.0, 0.0, 0.0}));
  EXPECT_EQ(plan::ranking_weights(2048.0), (Weights{0.0, 0.5, 0.5, 0.0}));
  EXPECT_EQ(plan::ranking_weights(16384.0), (Weights{0.0, 0.0, 0.0, 1.0}));
  for (const double few : {0.0, 1.0, 256.0}) {
    EXPECT_EQ(plan::ranking_weights(few), (Weights{1.0, 0.0, 0.0, 0.0}));
  }
  EXPECT_EQ(plan::ranking_weights(1e9), (Weights{0.0, 0.0, 0.0, 1.0}));
}

TEST(Ranking, PlaceIsTheKeysThatARowSees) {
  const auto place = [](const char* line) { return plan::ranking_place(problem_of(line)); };
  EXPECT_EQ(place("forward bf16 b3 h2 s512 d64").keys, 512.0);
  EXPECT_EQ(place("forward bf16 b3 h2 s511 d64 causal").keys, 256.0);
  EXPECT_EQ(place("forward bf16 b3 h2 s511 d64 causal").problems, MaskClass::kBanded);
  EXPECT_EQ(place("forward bf16 b0 h2 s512 d64").keys, 0.0);
}

TEST(Ranking, EntriesAreOfAClass) {
  const RankingEntry table[] = {{"a", MaskClass::kBanded, {4.0, 4.0, 4.0, 4.0}},
                                {"a", MaskClass::kFull, {2.0, 2.0, 2.0, 2.0}},
                                {"b", MaskClass::kBanded, {9.0, 9.0, 9.0, 9.0}}};
  EXPECT_DOUBLE_EQ(plan::ranking_factor(table, kFullAt1024, named("a")), 2.0);
  EXPECT_DOUBLE_EQ(plan::ranking_factor(table, {MaskClass::kBanded, 1.0}, named("a")), 4.0);
  EXPECT_EQ(plan::ranking_factor({}, kFullAt1024, named("a")), 1.0);
  const RankingEntry banded[] = {table[0], table[2]};
  EXPECT_EQ(plan::ranking_factor(banded, kFullAt1024, named("a")), 1.0);
}

// A factor of 1 would put a kernel that was not measured ahead of all that were.
TEST(Ranking, BackwardKernelsAreNotTunedYet) {
  const Plan plan = plan_with(plan::sm90_ranking(), "backward bf16 b2 h4 s1000 d128 causal");
  EXPECT_EQ(plan.data().ranking_factor, 1.0);
}

TEST(Ranking, WithoutAnEntryTheMeanOfTheOthers) {
  const RankingEntry table[] = {{"a", MaskClass::kBanded, {4.0, 4.0, 4.0, 4.0}},
                                {"a", MaskClass::kFull, {2.0, 2.0, 2.0, 2.0}},
                                {"b", MaskClass::kBanded, {9.0, 9.0, 9.0, 9.0}}};
  EXPECT_DOUBLE_EQ(plan::ranking_factor(table, {MaskClass::kBanded, 50.0}, named("c")), 6.0);
  EXPECT_DOUBLE_EQ(plan::ranking_factor(table, kFullAt1024, named("b")), 2.0);
}

TEST(Ranking, WithoutATableTheCostModelDecides) {
  for (const char* line : {"forward bf16 b4 h16 s4096 d128", "forward f16 b2 h8 s900 d64 causal"}) {
    const Plan plan = plan_with({}, line);
    EXPECT_EQ(plan.data().predicted_us,
              plan::predicted_us(problem_of(line), plan.data().steps[0].kernel->config,
                                 plan.data().device));
    EXPECT_EQ(plan.data().ranking_factor, 1.0);
    EXPECT_EQ(explain(plan).find("ranking table"), std::string::npos);
  }
}

TEST(Ranking, ATableCorrectsTheChoice) {
  const std::string line = "forward bf16 b4 h16 s4096 d128";
  const Plan before = plan_with({}, line);
  const RankingEntry table[] = {
      {before.kernel(), MaskClass::kFull, {16.0, 16.0, 16.0, 16.0}},
      {"sm90_forward_bf16_d128_q128k128_banded", MaskClass::kFull, {1.0, 1.0, 1.0, 1.0}}};
  const Plan after = plan_with(table, line);
  EXPECT_NE(after.kernel(), before.kernel());
  const RankingEntry halved[] = {{before.kernel(), MaskClass::kFull, {0.5, 0.5, 0.5, 0.5}}};
  const Plan faster = plan_with(halved, line);
  EXPECT_EQ(faster.kernel(), before.kernel());
  const auto beyond_launch = [](const Plan& plan) {
    return plan.data().predicted_us - plan::kLaunchUs;
  };
  EXPECT_DOUBLE_EQ(beyond_launch(faster), beyond_launch(before) / 2.0);
  EXPECT_NE(explain(faster).find("0.50 of the cost model by the ranking table"), std::string::npos)
      << explain(faster);
}

// The table changes which row serves a problem, never whether one does.
TEST(Ranking, EveryTableGivesPlans) {
  std::vector<RankingEntry> odd;
  for (const KernelEntry& entry : find_backend("cuda")->kernels) {
    const double factor = odd.size() % 3 == 0 ? 0.125 : 8.0;
    odd.push_back({entry.config.name, MaskClass::kBanded, {factor, 1.0, 1.0, factor}});
  }
  for (const plan::RankingTable table : {plan::RankingTable(), plan::RankingTable(odd)}) {
    for (const char* line :
         {"forward bf16 b2 h2 s40 d64", "forward f16 b1 hq8 hkv2 sq113 sk203 d128 causal",
          "forward bf16 b0 h1 s8 d8", "forward bf16 b1 h2 s900 d96 window=50,3 softcap=30",
          "forward bf16 b3 h2 sq9 sk50 d32 ragged_q=21 ragged_k=120 alibi",
          "forward f16 b4 h8 s4096 d256 invariant"}) {
      EXPECT_FALSE(plan_with(table, line).empty()) << line;
    }
  }
}

TEST(Ranking, TheCommittedTableNamesEveryRowThatContends) {
  std::set<std::string> rows;
  std::set<std::string> rows_without;
  for (const KernelEntry& entry : find_backend("cuda")->kernels) {
    if (entry.config.step == StepKind::kForward) {  // the one pass that is tuned so far
      rows.insert(entry.config.name);
      if (entry.config.options != OptionClass::kAll) {  // those contend only with one another
        rows_without.insert(entry.config.name);
      }
    }
  }
  std::set<std::pair<std::string, MaskClass>> seen;
  for (const RankingEntry& entry : plan::sm90_ranking()) {
    EXPECT_EQ(rows.count(entry.kernel), 1u) << entry.kernel << " is no row; run rowmax tune again";
    EXPECT_TRUE(seen.insert({entry.kernel, entry.problems}).second) << entry.kernel;
    for (const double factor : entry.factors) {
      EXPECT_TRUE(factor > 0.125 && factor < 8.0) << entry.kernel << ": " << factor;
    }
    rows_without.erase(entry.kernel);
  }
  // One without an entry would compete with the others' mean.
  EXPECT_TRUE(seen.empty() || rows_without.empty())
      << *rows_without.begin() << " has no entry; run rowmax tune again";
}

}  // namespace
}  // namespace rowmax::test
