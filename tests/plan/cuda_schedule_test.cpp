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

Plan plan_on(const std::string& kernel, const std::string& words) {
  PlanOptions options;
  options.force_kernel = kernel;
  const Result<Plan> plan = make_plan_with(problem_of("forward bf16 d64 " + words),
                                           find_device("h200").value(), options, all_backends());
  EXPECT_TRUE(plan.ok()) << words << ": " << plan.status().message();
  return plan.ok() ? *plan : Plan();
}

const Schedule& schedule_of(const Plan& plan) { return plan.data().steps[0].schedule; }

int64_t pack_of(const std::string& kernel, const std::string& words) {
  const Plan plan = plan_on(kernel, words);
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

// One row of each of 8 heads that share keys is one tile, not eight.
TEST(CudaSchedule, PredictionsCountPackedTiles) {
  const auto us = [](const std::string& words) {
    return plan_on(kEven, "b64 sq1 sk8192 " + words).data().predicted_us;
  };
  EXPECT_GT(us("hq8 hkv8 causal"), 4.0 * us("hq8 hkv1 causal"));
}

}  // namespace
}  // namespace rowmax::test
