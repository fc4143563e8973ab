#include "plan/schedule_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "kernel_api/layout.h"
#include "kernel_api/schedule.h"

namespace rowmax::plan {
namespace {

// Enough items for the largest thread counts in use with a few items a thread; a fixed number,
// because the split count must not depend on the threads that happen to run.
constexpr int64_t kForwardItems = 16;  // a split costs partial states and a combine
constexpr int64_t kDecodeItems = 32;   // a split is nearly free there
constexpr int64_t kBackwardItems = 16;
// Below this many items the query tile shrinks, to one of these rows: smaller tiles pack K and V
// more often (0-2 % of peak from 528 to 384), idle threads cost more. Multiples of 96, or halves of
// 528, are whole panels of every instruction set.
constexpr int64_t kLeastForwardItems = 8;
constexpr int64_t kSmallerTiles[] = {264, 192, 96};
// Rows of Q and O of a tile may take this much of the L2 cache; K and V stream through it.
// Measured: fp32 with D = 128 on 512 KiB runs best at 528 rows, which this gives. Tiles are whole
// panels of every instruction set: 24 rows of AVX2, 12 and 6 of the portable kernels.
constexpr int64_t kTilePanel = 24;
constexpr int64_t kLeastTile = 96;
constexpr int64_t kUnknownL2Bytes = int64_t{512} << 10;
// Of a larger cache no more is used, so that a worker's scratch stays small (docs: 8 MB a thread).
constexpr int64_t kMostL2Bytes = int64_t{2} << 20;
// Shortest key range worth a merge: a merge costs Dv values a row, a range 2 (D + Dv) FLOPs a key.
constexpr int64_t kForwardSplitKeys = 512;
constexpr int64_t kDecodeSplitKeys = 512;
constexpr int64_t kLeastDecodeSplitKeys = 256;
// Decode: bounds the partial states of long caches, (splits, Hq, rows, Dv + 2).
constexpr int64_t kMostDecodeItems = 128;
constexpr int64_t kMostBackwardChunks = 8;
// Under a workspace limit there may be more chunks, whose dK and dV are smaller.
constexpr int64_t kMostLimitedChunks = 1024;
// Partial states of forward, whatever the length: with one thread's scratch below 8 MB.
constexpr int64_t kMostPartialBytes = int64_t{4} << 20;

// Splits the keys in at most `splits` ranges whose length is a multiple of `multiple`.
void split_keys_evenly(int64_t splits, int64_t seqlen_k, int64_t multiple, Schedule& schedule) {
  schedule.splits = 1;
  schedule.split_len = 0;
  if (splits <= 1 || seqlen_k <= 0) {
    return;
  }
  const int64_t length = round_up(ceil_div(seqlen_k, splits), multiple);
  const int64_t count = ceil_div(seqlen_k, length);
  if (count > 1) {
    schedule.splits = count;
    schedule.split_len = length;
  }
}

int64_t element_bytes(const KernelConfig& config) {
  return config.compute == Compute::kF64 ? 8 : 4;
}

// Split lengths are multiples of this.
int64_t split_multiple(const KernelConfig& config, const Schedule& schedule) {
  return config.step == StepKind::kDecode ? std::lcm<int64_t>(64, schedule.tile_k)
                                          : schedule.tile_k;
}

// Most key ranges whose partial states, (splits, Hq, rows, Dv + 2), stay within the limit. The
// product of the sizes was checked by validate().
int64_t most_partial_states(const AttentionProblem& problem, const KernelConfig& config) {
  const int64_t bytes = query_rows(problem) * problem.sizes.heads_q *
                        (problem.sizes.head_dim_v + 2) * element_bytes(config);
  return bytes > 0 ? std::max<int64_t>(kMostPartialBytes / bytes, 1) : 1;
}

// Rows of a forward tile that the device's cache holds, at most the kernel's own tile.
int64_t cached_tile(const Sizes& sizes, const KernelConfig& config, const DeviceInfo& device) {
  const int64_t l2_bytes =
      device.l2_bytes > 0 ? std::min(device.l2_bytes, kMostL2Bytes) : kUnknownL2Bytes;
  const int64_t row_bytes = (sizes.head_dim + sizes.head_dim_v) * element_bytes(config);
  const int64_t rows = l2_bytes * 5 / 4 / row_bytes / kTilePanel * kTilePanel;
  return std::min<int64_t>(std::max(rows, kLeastTile), config.tile_q);
}

void schedule_forward(const AttentionProblem& problem, const KernelConfig& config,
                      const DeviceInfo& device, Schedule& schedule) {
  const Sizes& s = problem.sizes;
  const auto items_with = [&s](int64_t tile_q) {
    const ItemShape shape = forward_item_shape(s.heads_q / s.heads_kv, s.seqlen_q, tile_q);
    return forward_items(shape, s.batch, s.heads_kv, 1);
  };
  if (config.tile_q > 0) {
    schedule.tile_q = cached_tile(s, config, device);
  }
  int64_t items = items_with(schedule.tile_q);
  // A window's key blocks start where the item's first row does, so tiles may move its bits.
  for (const int64_t tile_q : kSmallerTiles) {
    if (problem.batch_invariant || items >= kLeastForwardItems) {
      break;
    }
    if (tile_q < schedule.tile_q) {
      schedule.tile_q = tile_q;
      items = items_with(tile_q);
    }
  }
  int64_t splits = 1;
  if (!problem.batch_invariant && items > 0 && items < kForwardItems &&
      s.seqlen_k >= 2 * kForwardSplitKeys) {
    splits = std::min(ceil_div(kForwardItems, items), ceil_div(s.seqlen_k, kForwardSplitKeys));
  }
  split_keys_evenly(std::min(splits, most_partial_states(problem, config)), s.seqlen_k,
                    split_multiple(config, schedule), schedule);
  schedule.items = items * schedule.splits;
}

void schedule_decode(const AttentionProblem& problem, const KernelConfig& config,
                     Schedule& schedule) {
  const Sizes& s = problem.sizes;
  const int64_t heads = s.seqlen_q > 0 ? s.batch * s.heads_kv : 0;
  int64_t splits = 1;
  if (!problem.batch_invariant && heads > 0) {
    const int64_t wanted =
        std::max(ceil_div(kDecodeItems, heads), ceil_div(s.seqlen_k, kDecodeSplitKeys));
    const int64_t most =
        std::min(ceil_div(kMostDecodeItems, heads), ceil_div(s.seqlen_k, kLeastDecodeSplitKeys));
    splits = std::min(wanted, most);
  }
  split_keys_evenly(std::min(splits, most_partial_states(problem, config)), s.seqlen_k,
                    split_multiple(config, schedule), schedule);
  schedule.items = heads * schedule.splits;
}

void schedule_backward(const AttentionProblem& problem, const KernelConfig& config,
                       Schedule& schedule) {
  const Sizes& s = problem.sizes;
  const int64_t heads = s.batch * s.heads_kv;
  int64_t chunks = 1;
  if (!problem.batch_invariant && heads > 0) {
    const int64_t most =
        std::clamp<int64_t>(s.seqlen_k / kForwardSplitKeys, 1, kMostBackwardChunks);
    chunks = std::clamp<int64_t>(ceil_div(kBackwardItems, heads), 1, most);
  }
  split_keys_evenly(chunks, s.seqlen_k, split_multiple(config, schedule), schedule);
  schedule.items = heads * schedule.splits;
}

// Tiles of dbias; a kernel that states no tile cuts it itself: one element an item is the bound.
int64_t bias_gradient_items(const AttentionProblem& problem, const KernelConfig& config) {
  const Sizes& s = problem.sizes;
  const BroadcastShape& bias = problem.score.bias;
  const int64_t row_blocks = ceil_div(bias.rows ? s.seqlen_q : 1, std::max(config.tile_q, 1));
  const int64_t col_blocks = ceil_div(bias.cols ? s.seqlen_k : 1, std::max(config.tile_k, 1));
  return (bias.batch ? s.batch : 1) * (bias.heads ? s.heads_q : 1) * row_blocks * col_blocks;
}

// A config without tiles (the reference) takes the whole axis at once.
void set_tiles(const Sizes& sizes, const KernelConfig& config, Schedule& schedule) {
  schedule.tile_q = config.tile_q > 0 ? config.tile_q : std::max<int64_t>(sizes.seqlen_q, 1);
  schedule.tile_k = config.tile_k > 0 ? config.tile_k : std::max<int64_t>(sizes.seqlen_k, 1);
}

}  // namespace

Schedule main_schedule(const AttentionProblem& problem, const KernelConfig& config,
                       const DeviceInfo& device) {
  Schedule schedule;
  set_tiles(problem.sizes, config, schedule);
  switch (config.step) {
    case StepKind::kDecode:
      schedule_decode(problem, config, schedule);
      break;
    case StepKind::kBackward:
      schedule_backward(problem, config, schedule);
      break;
    default:
      schedule_forward(problem, config, device, schedule);
      break;
  }
  return schedule;
}

Schedule with_splits(const AttentionProblem& problem, const KernelConfig& config,
                     const Schedule& preferred, int64_t splits) {
  Schedule schedule = preferred;
  split_keys_evenly(splits, problem.sizes.seqlen_k, split_multiple(config, schedule), schedule);
  schedule.items = preferred.items / preferred.splits * schedule.splits;
  return schedule;
}

std::vector<int64_t> other_split_counts(const AttentionProblem& problem, const KernelConfig& config,
                                        const Schedule& preferred) {
  std::vector<int64_t> counts;
  if (problem.batch_invariant) {
    return counts;
  }
  for (int64_t count = preferred.splits - 1; count >= 1; --count) {
    counts.push_back(count);
  }
  if (config.step == StepKind::kBackward) {
    const int64_t most =
        std::min(ceil_div(problem.sizes.seqlen_k, preferred.tile_k), kMostLimitedChunks);
    for (int64_t count = preferred.splits + 1; count <= most;
         count = std::max(count + 1, count + count / 8)) {
      counts.push_back(count);
    }
  }
  std::stable_sort(counts.begin(), counts.end(), [&preferred](int64_t a, int64_t b) {
    return std::abs(a - preferred.splits) < std::abs(b - preferred.splits);
  });
  return counts;
}

Schedule helper_schedule(const AttentionProblem& problem, const KernelConfig& config,
                         const Schedule& main) {
  const Sizes& s = problem.sizes;
  Schedule schedule;
  set_tiles(s, config, schedule);
  schedule.splits = main.splits;
  schedule.split_len = main.split_len;
  const int64_t heads = s.batch * s.heads_q;
  // A kernel that states no tile cuts the rows itself: one row an item is the bound.
  const int64_t rows_of_item = std::max(config.tile_q, 1);
  switch (config.step) {
    case StepKind::kRowStats:
      schedule.items = heads * ceil_div(s.seqlen_q, kRowStatsChunk);
      break;
    case StepKind::kBiasGradient:
      schedule.items = bias_gradient_items(problem, config);
      break;
    case StepKind::kReduce:
      // One each for dsinks and dslopes, which an empty batch has to write too.
      schedule.items = heads * ceil_div(s.seqlen_q, rows_of_item) + 2;
      break;
    default:
      schedule.items = heads * ceil_div(s.seqlen_q, rows_of_item);
      break;
  }
  return schedule;
}

}  // namespace rowmax::plan
