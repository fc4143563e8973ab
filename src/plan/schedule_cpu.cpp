#include "plan/schedule_cpu.h"

#include <algorithm>
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
// Shortest key range worth a merge: a merge costs Dv values a row, a range 2 (D + Dv) FLOPs a key.
constexpr int64_t kForwardSplitKeys = 512;
constexpr int64_t kDecodeSplitKeys = 512;
constexpr int64_t kLeastDecodeSplitKeys = 256;
// Decode: bounds the partial states of long caches, (splits, Hq, rows, Dv + 2).
constexpr int64_t kMostDecodeItems = 128;
constexpr int64_t kMostBackwardChunks = 8;
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

// Most key ranges whose partial states, (splits, Hq, rows, Dv + 2), stay within the limit.
int64_t most_partial_states(const AttentionProblem& problem, Compute compute) {
  const int64_t element_bytes = compute == Compute::kF64 ? 8 : 4;
  const int64_t bytes =
      query_rows(problem) * problem.sizes.heads_q * (problem.sizes.head_dim_v + 2) * element_bytes;
  return bytes > 0 ? std::max<int64_t>(kMostPartialBytes / bytes, 1) : 1;
}

void schedule_forward(const AttentionProblem& problem, const KernelConfig& config,
                      int64_t max_splits, Schedule& schedule) {
  const Sizes& s = problem.sizes;
  const auto items_with = [&s](int64_t tile_q) {
    const ItemShape shape = forward_item_shape(s.heads_q / s.heads_kv, s.seqlen_q, tile_q);
    return forward_items(shape, s.batch, s.heads_kv, 1);
  };
  int64_t items = items_with(schedule.tile_q);
  // A window's key blocks start where the item's first row does, so tiles may move its bits.
  for (const int64_t tile_q : kSmallerTiles) {
    if (problem.batch_invariant || items >= kLeastForwardItems || tile_q >= config.tile_q) {
      break;
    }
    schedule.tile_q = tile_q;
    items = items_with(tile_q);
  }
  int64_t splits = 1;
  if (!problem.batch_invariant && items > 0 && items < kForwardItems &&
      s.seqlen_k >= 2 * kForwardSplitKeys) {
    splits = std::min(ceil_div(kForwardItems, items), ceil_div(s.seqlen_k, kForwardSplitKeys));
  }
  split_keys_evenly(std::min(splits, max_splits), s.seqlen_k, schedule.tile_k, schedule);
  schedule.items = items * schedule.splits;
}

void schedule_decode(const AttentionProblem& problem, int64_t max_splits, Schedule& schedule) {
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
  split_keys_evenly(std::min(splits, max_splits), s.seqlen_k,
                    std::lcm<int64_t>(64, schedule.tile_k), schedule);
  schedule.items = heads * schedule.splits;
}

void schedule_backward(const AttentionProblem& problem, int64_t max_splits, Schedule& schedule) {
  const Sizes& s = problem.sizes;
  const int64_t heads = s.batch * s.heads_kv;
  int64_t chunks = 1;
  if (!problem.batch_invariant && heads > 0) {
    const int64_t most =
        std::clamp<int64_t>(s.seqlen_k / kForwardSplitKeys, 1, kMostBackwardChunks);
    chunks = std::clamp<int64_t>(ceil_div(kBackwardItems, heads), 1, most);
  }
  split_keys_evenly(std::min(chunks, max_splits), s.seqlen_k, schedule.tile_k, schedule);
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
                       int64_t max_splits) {
  Schedule schedule;
  set_tiles(problem.sizes, config, schedule);
  switch (config.step) {
    case StepKind::kDecode:
      schedule_decode(problem, std::min(max_splits, most_partial_states(problem, config.compute)),
                      schedule);
      break;
    case StepKind::kBackward:
      schedule_backward(problem, max_splits, schedule);
      break;
    default:
      schedule_forward(problem, config,
                       std::min(max_splits, most_partial_states(problem, config.compute)),
                       schedule);
      break;
  }
  return schedule;
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
