// Every schedule covers every (row, key) pair of every head exactly once, by enumeration.
#include "kernel_api/schedule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fake_backend.h"
#include "kernel_api/plan_data.h"
#include "plan/planner.h"
#include "plan/schedule_cpu.h"

namespace rowmax::test {
namespace {

// Counts how often each (batch, query head, row, key) is covered.
class Coverage {
 public:
  explicit Coverage(const Sizes& sizes)
      : sizes_(sizes),
        counts_(
            static_cast<size_t>(sizes.batch * sizes.heads_q * sizes.seqlen_q * sizes.seqlen_k)) {}

  void add(int64_t b, int64_t head, int64_t row, const KeyRange& keys) {
    ASSERT_TRUE(b >= 0 && b < sizes_.batch && head >= 0 && head < sizes_.heads_q && row >= 0 &&
                row < sizes_.seqlen_q);
    ASSERT_TRUE(keys.begin >= 0 && keys.end <= sizes_.seqlen_k);
    const int64_t base = ((b * sizes_.heads_q + head) * sizes_.seqlen_q + row) * sizes_.seqlen_k;
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      ++counts_[static_cast<size_t>(base + key)];
    }
  }
  bool exactly_once() const {
    for (const uint8_t count : counts_) {
      if (count != 1) {
        return false;
      }
    }
    return true;
  }

 private:
  Sizes sizes_;
  std::vector<uint8_t> counts_;
};

void enumerate_forward(const Sizes& s, const Schedule& schedule, Coverage& coverage) {
  const int64_t group = s.heads_q / s.heads_kv;
  const ItemShape shape = forward_item_shape(group, s.seqlen_q, schedule.tile_q);
  const int64_t items = forward_items(shape, s.batch, s.heads_kv, schedule.splits);
  ASSERT_EQ(items, schedule.items);
  for (int64_t index = 0; index < items; ++index) {
    const ForwardItem item =
        forward_item(shape, index, s.heads_kv, group, s.batch, schedule.tile_q, schedule.splits);
    ASSERT_EQ(item.head_begin / group, item.kv_head);
    ASSERT_EQ((item.head_end - 1) / group, item.kv_head);
    const int64_t row_end = std::min(item.row_end, s.seqlen_q);
    ASSERT_LE((row_end - item.row_begin) * (item.head_end - item.head_begin), schedule.tile_q);
    const KeyRange keys = split_keys(item.split, schedule.splits, schedule.split_len, s.seqlen_k);
    for (int64_t head = item.head_begin; head < item.head_end; ++head) {
      for (int64_t row = item.row_begin; row < row_end; ++row) {
        coverage.add(item.batch, head, row, keys);
      }
    }
  }
}

void enumerate_by_keys(const Sizes& s, const Schedule& schedule, Coverage& coverage) {
  const int64_t group = s.heads_q / s.heads_kv;
  for (int64_t index = 0; index < schedule.items; ++index) {
    const KeyItem item = key_item(index, s.heads_kv, schedule.splits);
    const KeyRange keys = split_keys(item.split, schedule.splits, schedule.split_len, s.seqlen_k);
    for (int64_t head = item.kv_head * group; head < (item.kv_head + 1) * group; ++head) {
      for (int64_t row = 0; row < s.seqlen_q; ++row) {
        coverage.add(item.batch, head, row, keys);
      }
    }
  }
}

void check_split_rules(const Sizes& s, const KernelConfig& config, const Schedule& schedule) {
  ASSERT_GE(schedule.splits, 1);
  if (schedule.splits == 1) {
    ASSERT_EQ(schedule.split_len, 0);
    return;
  }
  ASSERT_GT(schedule.split_len, 0);
  ASSERT_EQ(schedule.split_len % config.tile_k, 0);
  ASSERT_LT((schedule.splits - 1) * schedule.split_len, s.seqlen_k) << "an empty key range";
  ASSERT_GE(schedule.splits * schedule.split_len, s.seqlen_k);
}

// `splits`: 0 for the preferred schedule.
void check(const AttentionProblem& problem, const KernelConfig& config, int64_t splits) {
  SCOPED_TRACE(to_string(problem) + " " + config.name + " splits " + std::to_string(splits));
  Schedule schedule = plan::main_schedule(problem, config, fake_device("avx2"));
  if (splits > 0) {
    schedule = plan::with_splits(problem, config, schedule, splits);
    ASSERT_LE(schedule.splits, splits);
  }
  check_split_rules(problem.sizes, config, schedule);
  Coverage coverage(problem.sizes);
  if (config.step == StepKind::kForward) {
    enumerate_forward(problem.sizes, schedule, coverage);
  } else {
    enumerate_by_keys(problem.sizes, schedule, coverage);
  }
  ASSERT_TRUE(coverage.exactly_once());
}

constexpr KernelConfig kConfigs[] = {
    {"forward 64 x 256", StepKind::kForward, Isa::kAvx2, Compute::kF32, 64, 256, 0},
    {"forward 48 x 96", StepKind::kForward, Isa::kPortable, Compute::kF32, 48, 96, 0},
    {"forward 1 x 1", StepKind::kForward, Isa::kPortable, Compute::kF64, 1, 1, 0},
    {"decode 16 x 64", StepKind::kDecode, Isa::kAvx2, Compute::kF32, 16, 64, 16},
    {"decode 16 x 96", StepKind::kDecode, Isa::kAvx2, Compute::kF32, 16, 96, 16},
    {"backward 64 x 64", StepKind::kBackward, Isa::kAvx2, Compute::kF32, 64, 64, 0},
};

TEST(Schedule, CoversEveryPairOnce) {
  const int64_t heads[][2] = {{1, 1}, {4, 4}, {4, 1}, {6, 2}};
  for (const KernelConfig& config : kConfigs) {
    for (const auto& [heads_q, heads_kv] : heads) {
      for (const int64_t batch : {0, 1, 3}) {
        for (const int64_t seqlen_q : {0, 1, 2, 5, 16, 63, 64, 65, 130}) {
          for (const int64_t seqlen_k : {0, 1, 255, 1023, 1024, 1025, 2500}) {
            AttentionProblem problem;
            problem.op = config.step == StepKind::kBackward ? Op::kBackward : Op::kForward;
            problem.sizes = {batch, heads_q, heads_kv, seqlen_q, seqlen_k, 8, 8};
            check(problem, config, 0);
            ASSERT_FALSE(HasFailure());
          }
        }
      }
    }
  }
}

TEST(Schedule, CoversEveryPairOnceWithOtherSplits) {
  for (const KernelConfig& config : kConfigs) {
    for (const int64_t splits : {1, 2, 3, 5, 7, 40}) {
      AttentionProblem problem;
      problem.op = config.step == StepKind::kBackward ? Op::kBackward : Op::kForward;
      problem.sizes = {1, 2, 1, 33, 9001, 8, 8};
      check(problem, config, splits);
      ASSERT_FALSE(HasFailure());
    }
  }
}

// Longest first: under a causal band the row blocks of later items never see more keys.
TEST(Schedule, ForwardItemsGoFromTheLastRowBlockToTheFirst) {
  const ItemShape shape = forward_item_shape(3, 200, 64);
  int64_t last = INT64_MAX;
  for (int64_t i = 0; i < forward_items(shape, 2, 2, 1); ++i) {
    const ForwardItem item = forward_item(shape, i, 2, 3, 2, 64, 1);
    ASSERT_LE(item.row_begin, last);
    last = item.row_begin;
  }
  EXPECT_EQ(last, 0);
}

TEST(Schedule, ShortHeadsShareAnItem) {
  const auto expect = [](const ItemShape& shape, int64_t heads, int64_t groups, int64_t blocks) {
    EXPECT_EQ(shape.heads_per_item, heads);
    EXPECT_EQ(shape.head_groups, groups);
    EXPECT_EQ(shape.blocks, blocks);
  };
  expect(forward_item_shape(8, 64, 64), 1, 8, 1);
  expect(forward_item_shape(8, 63, 64), 1, 8, 1);
  expect(forward_item_shape(8, 32, 64), 2, 4, 1);
  expect(forward_item_shape(8, 20, 64), 3, 3, 1);
  expect(forward_item_shape(8, 1, 64), 8, 1, 1);
  expect(forward_item_shape(8, 65, 64), 1, 8, 2);
  expect(forward_item_shape(8, 0, 64), 1, 0, 0);
  static_assert(forward_items(forward_item_shape(4, 100, 64), 2, 3, 5) == 2 * 3 * 4 * 2 * 5);
}

Schedule schedule_of(const std::string& line, const KernelConfig& config) {
  return plan::main_schedule(problem_of(line), config, fake_device("avx2"));
}

TEST(Schedule, SplitsOnlyWhenItemsAreFewAndKeysAreMany) {
  const KernelConfig& forward = kConfigs[0];
  EXPECT_EQ(schedule_of("forward f32 b4 h8 s2048 d64", forward).splits, 1);
  EXPECT_EQ(schedule_of("forward f32 h1 sq64 sk1023 d64", forward).splits, 1);
  EXPECT_EQ(schedule_of("forward f32 h1 sq64 sk1024 d64", forward).splits, 2);
  EXPECT_EQ(schedule_of("forward f32 h1 sq64 sk1048576 d64", forward).splits, 16);
  // Partial states of at most 4 MiB: 960 rows of 514 floats are 1.9 MiB, 480 of 2050 are 3.8 MiB.
  EXPECT_EQ(schedule_of("forward f32 h1 sq480 sk1048576 d64 dv512", forward).splits, 2);
  EXPECT_EQ(schedule_of("forward f32 h1 sq960 sk1048576 d64 dv512", forward).splits, 2);
  EXPECT_EQ(schedule_of("forward f32 h1 sq480 sk1048576 d64 dv2048", forward).splits, 1);
  EXPECT_EQ(schedule_of("forward f32 b0 h1 sq64 sk4096 d64", forward).items, 0);
  EXPECT_EQ(schedule_of("forward f32 h1 sq0 sk4096 d64", forward).items, 0);

  // Few items: smaller query tiles first.
  KernelConfig wide = forward;
  wide.tile_q = 528;
  EXPECT_EQ(schedule_of("forward f32 h1 s512 d64", wide).items, 6);
  EXPECT_EQ(schedule_of("forward f32 h4 s512 d64", wide).items, 8);
  EXPECT_EQ(schedule_of("forward f32 h8 s512 d64", wide).items, 8);
  EXPECT_EQ(schedule_of("forward f32 h1 s512 d64 invariant", wide).items, 1);

  const KernelConfig& decode = kConfigs[3];
  EXPECT_EQ(schedule_of("forward f32 h1 sq1 sk256 d64", decode).splits, 1);
  EXPECT_EQ(schedule_of("forward f32 h1 sq1 sk512 d64", decode).splits, 2);
  EXPECT_EQ(schedule_of("forward f32 b8 h8 sq1 sk4096 d64", decode).split_len, 2048);
  EXPECT_EQ(schedule_of("forward f32 b2 h8 sq1 sk4096 d64", decode).split_len, 512);
  EXPECT_LE(schedule_of("forward f32 h1 sq1 sk1048576 d64", decode).splits, 128);

  const KernelConfig& backward = kConfigs[5];
  EXPECT_EQ(schedule_of("backward f32 b2 h8 s8192 d64", backward).splits, 1);
  EXPECT_EQ(schedule_of("backward f32 h4 s8192 d64", backward).splits, 4);
  EXPECT_EQ(schedule_of("backward f32 h1 s8192 d64", backward).splits, 8);
  EXPECT_EQ(schedule_of("backward f32 h1 s1024 d64", backward).splits, 2);
  EXPECT_EQ(schedule_of("backward f32 h1 s1023 d64", backward).splits, 1);
}

int64_t tile_on(int64_t l2_bytes, const std::string& line, Compute compute) {
  DeviceInfo device = fake_device("avx2");
  device.l2_bytes = l2_bytes;
  KernelConfig config = kConfigs[0];
  config.tile_q = 528;
  config.compute = compute;
  return plan::main_schedule(problem_of(line), config, device).tile_q;
}

// Forward tiles: Q and O take 1.25 of the L2 cache, in whole panels of 24 rows, 96 to 528 rows.
TEST(Schedule, ForwardTilesFollowTheCache) {
  const Compute f32 = Compute::kF32;
  const Compute f64 = Compute::kF64;
  const int64_t kib = 1024;
  const char* narrow = "forward f32 b4 h8 s4096 d128";
  const char* wide = "forward f32 b4 h8 s4096 d576";
  EXPECT_EQ(tile_on(512 * kib, narrow, f32), 528);
  EXPECT_EQ(tile_on(256 * kib, narrow, f32), 312);
  EXPECT_EQ(tile_on(2048 * kib, narrow, f32), 528);
  EXPECT_EQ(tile_on(512 * kib, wide, f32), 120);
  EXPECT_EQ(tile_on(256 * kib, wide, f32), 96);
  EXPECT_EQ(tile_on(2048 * kib, wide, f32), 528);
  EXPECT_EQ(tile_on(512 * kib, "forward f64 b4 h8 s4096 d128", f64), 312);
  EXPECT_EQ(tile_on(2048 * kib, "forward f64 b4 h8 s4096 d576", f64), 264);
  // Not known; more than is used; one tile whatever the batch.
  EXPECT_EQ(tile_on(0, wide, f32), tile_on(512 * kib, wide, f32));
  EXPECT_EQ(tile_on(65536 * kib, "forward f64 b4 h8 s4096 d576", f64), 264);
  EXPECT_EQ(tile_on(512 * kib, "forward f32 b1 h1 s8 d576 invariant", f32), 120);
  EXPECT_EQ(tile_on(512 * kib, "forward f32 b64 h8 s4096 d576 invariant", f32), 120);
}

}  // namespace
}  // namespace rowmax::test
