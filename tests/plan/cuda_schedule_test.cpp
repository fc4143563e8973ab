// Schedules of GPU kernels: how many query heads share a tile, what that does to items and to the
// predicted time.
#include <gtest/gtest.h>

#include <string>

#include "api/backends.h"
#include "fake_backend.h"
#include "kernel_api/plan_data.h"
#include "plan/planner.h"

namespace rowmax::test {
namespace {

constexpr const char* kWideFull = "sm90_forward_bf16_d128_q192k80_full";
constexpr const char* kWideBanded = "sm90_forward_bf16_d128_q192k80_banded";
constexpr const char* kEven = "sm90_forward_bf16_d128_q128k128_banded";

Plan plan_on(const std::string& kernel, const std::string& words, const char* dim = "d64") {
  PlanOptions options;
  options.force_kernel = kernel;
  const Result<Plan> plan = make_plan_with(problem_of("forward bf16 " + words + " " + dim),
                                           find_device("h200").value(), options, all_backends());
  EXPECT_TRUE(plan.ok()) << words << ": " << plan.status().message();
  return plan.ok() ? *plan : Plan();
}

const Schedule& schedule_of(const Plan& plan) { return plan.data().steps[0].schedule; }

int64_t pack_of(const std::string& kernel, const std::string& words, const char* dim = "d64") {
  const Plan plan = plan_on(kernel, words, dim);
  return plan.empty() ? 0 : schedule_of(plan).pack;
}

// A whole group where that leaves fewer rows past the end or fewer masked keys, else one head.
TEST(CudaSchedule, PacksHeadsWhereItSavesProducts) {
  const struct {
    const char* kernel;
    const char* words;
    int64_t pack;
  } cases[] = {
      {kWideFull, "hq4 hkv1 s300", 4},
      {kWideFull, "hq4 hkv1 s4096", 4},  // 22 tiles of 192 rows end 128 rows behind the last one
      {kWideFull, "hq8 hkv2 sq1 sk4096", 4},
      {kWideFull, "hq8 hkv1 s16384", 8},
      {kWideFull, "hq24 hkv8 s300", 3},
      {kWideFull, "hq16 hkv1 s16384", 16},
      {kWideFull, "hq71 hkv1 s40", 71},  // 71 heads at 2 positions fill 142 of 192 rows
      {kWideFull, "hq71 hkv1 s300", 1},
      {kWideFull, "h8 s40", 1},
      {kWideBanded, "hq4 hkv1 s4096 causal", 4},
      {kWideBanded, "hq24 hkv8 s16384 causal", 3},
      {kWideBanded, "hq71 hkv1 s300 causal", 71},
      {kWideBanded, "hq71 hkv1 s4096 causal", 1},
      {kWideBanded, "hq71 hkv1 s4096 window=256,0", 71},
      {kEven, "hq4 hkv1 sq1 sk4096 causal", 4},
      {kEven, "hq4 hkv1 s300 causal", 4},
      {kEven, "hq4 hkv1 s4096", 1},  // tiles of 128 rows end with the last one, keys as well
      {kEven, "hq4 hkv1 s4096 causal", 1},
      {kEven, "hq8 hkv1 s16384 causal", 1},
      {kEven, "hq16 hkv1 s4096 window=256,0", 1},
      {kEven, "hq24 hkv8 s300", 3},
      {kEven, "b4 hq8 hkv2 sq300 sk300 ragged_q=800 ragged_k=800", 4},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(pack_of(c.kernel, c.words), c.pack) << c.kernel << " " << c.words;
  }
}

// Where a copy of Q brings 64 rows of a tile, these must be whole positions.
TEST(CudaSchedule, PackedHeadsFillACopyOfQ) {
  const char* kernel = "sm90_forward_bf16_d256_q128k80_full";
  EXPECT_EQ(pack_of(kernel, "hq8 hkv1 sq9 sk300", "d256"), 8);
  EXPECT_EQ(pack_of(kernel, "hq12 hkv2 sq9 sk300", "d256"), 2);
  EXPECT_EQ(pack_of(kernel, "hq12 hkv1 sq9 sk300", "d256"), 4);
  EXPECT_EQ(pack_of(kernel, "hq80 hkv1 sq3 sk300", "d256"), 16);
  EXPECT_EQ(pack_of(kernel, "hq128 hkv1 sq1 sk300", "d256"), 64);
}

TEST(CudaSchedule, ItemsAreTilesOfPackedHeads) {
  EXPECT_EQ(schedule_of(plan_on(kWideFull, "b2 hq8 hkv2 s300")).items, 2 * 2 * 7);  // of 48
  EXPECT_EQ(schedule_of(plan_on(kWideFull, "b2 h8 s300")).items, 2 * 8 * 2);
}

TEST(CudaSchedule, ExplainSaysHowManyHeadsArePacked) {
  const auto says = [](const std::string& words, const std::string& part) {
    return explain(plan_on(kEven, words)).find(part) != std::string::npos;
  };
  EXPECT_TRUE(says("hq8 hkv2 s300", "query heads packed: 4\n"));
  EXPECT_TRUE(says("hq8 hkv2 s4096", "query heads packed: 1\n"));
  EXPECT_FALSE(says("h8 s300", "query heads packed"));
}

// A warp's rows must not change with the longest sequence of the batch where they matter.
TEST(CudaSchedule, InvariantAlibiIsNotPacked) {
  for (const char* length : {"s60", "s300", "s4096"}) {
    const std::string words = std::string("hq8 hkv2 alibi invariant causal ") + length;
    EXPECT_EQ(schedule_of(plan_on("sm90_forward_bf16_d128_q128k128_banded_alibi", words)).pack, 1)
        << words;
  }
}

struct Cut {
  int64_t tiles;
  int64_t ranges;
  friend bool operator==(const Cut&, const Cut&) = default;
};

Cut cut_of(const std::string& kernel, const std::string& words, const char* dim = "d64") {
  const Plan plan = plan_on(kernel, words, dim);
  return plan.empty() ? Cut{-1, -1}
                      : Cut{schedule_of(plan).cut_tiles, schedule_of(plan).cut_ranges};
}

// Tiles that whole waves of 132 leave over, where that saves more than merging pieces takes.
TEST(CudaSchedule, CutsTheLastWaveWhereItPays) {
  EXPECT_EQ(cut_of(kWideFull, "b2 h16 s8192"), (Cut{56, 132}));       // 10.42 waves
  EXPECT_EQ(cut_of(kWideFull, "b8 h16 s2048"), (Cut{88, 132}));       // 10.67, measured +1 %
  EXPECT_EQ(cut_of(kWideFull, "b16 h16 s1024"), (Cut{0, 0}));         // measured -2 %
  EXPECT_EQ(cut_of(kWideFull, "b11 h12 s2048"), (Cut{0, 0}));         // whole waves: 1452 tiles
  EXPECT_EQ(cut_of(kWideFull, "b1 h20 s1024"), (Cut{0, 0}));          // 120 of 132 are at work
  EXPECT_EQ(cut_of(kWideFull, "b1 h2 sq100 sk30000"), (Cut{2, 28}));  // few tiles: few readers
  EXPECT_EQ(cut_of(kWideFull, "b1 h2 sq100 sk300"), (Cut{0, 0}));
  // 64 tiles that wait for memory on half of the multiprocessors: measured -12 %.
  EXPECT_EQ(cut_of("sm90_forward_bf16_d128_q128k128_full", "b8 hq32 hkv8 sq1 sk4096", "d128"),
            (Cut{0, 0}));
}

TEST(CudaSchedule, CutsFullProblemsOfEqualLengthsOnly) {
  const std::string sizes = "b2 h16 s8192";
  EXPECT_EQ(cut_of(kWideBanded, sizes), (Cut{0, 0}));
  EXPECT_EQ(cut_of(kWideFull, sizes + " invariant"), (Cut{0, 0}));
  EXPECT_EQ(cut_of(kWideFull, sizes + " used_k"), (Cut{0, 0}));
  EXPECT_EQ(cut_of(kWideFull, sizes + " ragged_q=16000"), (Cut{0, 0}));
}

TEST(CudaSchedule, PiecesTakeWorkspaceWithinItsLimit) {
  const std::string words = "b2 h16 s8192";
  const Plan plan = plan_on(kWideFull, words);
  ASSERT_FALSE(plan.empty());
  const size_t pieces = 56 + 132 - 1;
  EXPECT_EQ(plan.workspace_bytes(), pieces * (192 * (128 + 8) * 4 + 12 * 8) + 64 + 32);
  EXPECT_NE(explain(plan).find("56 tiles cut along keys in 132 ranges"), std::string::npos);
  PlanOptions options;
  options.force_kernel = kWideFull;
  options.max_workspace = 1 << 20;
  const Result<Plan> small = make_plan_with(problem_of("forward bf16 d64 " + words),
                                            find_device("h200").value(), options, all_backends());
  ASSERT_TRUE(small.ok()) << small.status().message();
  EXPECT_EQ(schedule_of(*small).cut_ranges, 0);
  EXPECT_EQ(small->workspace_bytes(), 64U);
  EXPECT_FALSE(*small == plan);
}

// The cost of a wave that is cut is that of its part, and of merging.
TEST(CudaSchedule, PredictionsCountPieces) {
  const auto us = [](const std::string& words) {
    return plan_on(kWideFull, words).data().predicted_us;
  };
  const double waves = us("b1 h12 sq2112 sk16384");  // 132 tiles
  EXPECT_LT(us("b1 h13 sq2112 sk16384"), 1.25 * waves);
  EXPECT_GT(us("b1 h13 sq2112 sk16384"), 1.05 * waves);
}

// One row of each of 8 heads that share keys is one tile, not eight.
TEST(CudaSchedule, PredictionsCountPackedTiles) {
  const auto us = [](const std::string& words) {
    return plan_on(kEven, "b64 sq1 sk8192 " + words).data().predicted_us;
  };
  EXPECT_GT(us("hq8 hkv8 causal"), 4.0 * us("hq8 hkv1 causal"));
}

}  // namespace
}  // namespace rowmax::test
