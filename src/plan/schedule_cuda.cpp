#include "plan/schedule_cuda.h"

#include <algorithm>
#include <cmath>

#include "kernel_api/pieces.h"
#include "kernel_api/schedule.h"
#include "problem/band.h"

namespace rowmax::plan {
namespace {

// Fewer blocks than this have no range of their own.
constexpr int64_t kLeastRangeBlocks = 6;
constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;  // the kernel's numbers have 31 bits
// Of one multiprocessor and clock: products, and bytes of pieces read by the one that merges them.
constexpr int64_t kMultiplyAdds = 2048;
constexpr int64_t kMergeBytes = 32;

int64_t block_clocks(const KernelConfig& config) {
  return int64_t{config.tile_q} * config.tile_k * (config.head_dim + config.head_dim_v) /
         kMultiplyAdds;
}

int64_t piece_bytes(const KernelConfig& config) {
  return piece_floats(config.tile_q, config.head_dim_v) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

AttentionProblem ranked_problem(AttentionProblem problem) {
  if (problem.batch_invariant) {
    problem.sizes.batch = 64;
    problem.sizes.seqlen_q = problem.sizes.seqlen_k = 4096;
  }
  return problem;
}

TileBlocks tile_blocks(const AttentionProblem& problem, const KernelConfig& config, int64_t pack) {
  const Sizes& s = problem.sizes;
  const Band& band = problem.band;
  const BandArgs args = {band.left.value(), band.right.value(), band.left.bounded(),
                         band.right.bounded(), band.alignment == Alignment::kTopLeft};
  const RowBand rows = resolve_band(args, s.seqlen_q, s.seqlen_k);
  const int64_t positions = config.tile_q / pack;
  TileBlocks blocks;
  blocks.tiles = ceil_div(s.seqlen_q, positions);
  constexpr int64_t kSamples = 256;  // of long sequences
  const int64_t step = std::max<int64_t>(1, blocks.tiles / kSamples);
  for (int64_t tile = 0; tile < blocks.tiles; tile += step) {
    const int64_t begin = tile * positions;
    const int64_t end = std::min(begin + positions, s.seqlen_q);
    const KeyRange keys = block_keys(rows, begin, end, s.seqlen_k);
    const int64_t first = keys.begin / config.tile_k;
    // A tile whose rows see no key visits one block, all masked.
    const int64_t count = std::max<int64_t>(1, ceil_div(keys.end, config.tile_k) - first);
    blocks.total += count * step;
    blocks.longest = std::max(blocks.longest, count);
  }
  return blocks;
}

int64_t packed_heads(const AttentionProblem& problem, const KernelConfig& config) {
  // With ALiBi the rows of a warp decide together when to look for maxima, and packing by the
  // batch's lengths would change which rows those are.
  if (problem.batch_invariant && problem.score.alibi) {
    return 1;
  }
  const int64_t group = problem.sizes.heads_q / problem.sizes.heads_kv;
  int64_t pack = std::min<int64_t>(group, config.tile_q);
  const bool parts = config.q_load_rows < config.tile_q;  // each of whole positions
  while (group % pack != 0 || (parts && config.q_load_rows % pack != 0)) {
    --pack;
  }
  if (pack == 1) {
    return 1;
  }
  const int64_t plain = pack * tile_blocks(problem, config, 1).total;
  return tile_blocks(problem, config, pack).total < plain ? pack : 1;
}

namespace {

bool has_own_lengths(const AttentionProblem& problem) {
  const Storage& storage = problem.storage;
  return storage.query != Source::kDense || storage.key != Source::kDense || storage.seqused_q ||
         storage.seqused_k;
}

// Ranges that `tiles` tiles of `blocks` blocks are best cut in.
int64_t best_ranges(const KernelConfig& config, int64_t tiles, int64_t blocks, int64_t cores) {
  // A tile's pieces take blocks / pieces at once, then pieces one after the other in one warp.
  const double balance = static_cast<double>(blocks * block_clocks(config) * kMergeBytes) /
                         static_cast<double>(piece_bytes(config));
  const auto pieces = static_cast<int64_t>(std::sqrt(balance));
  return std::min({cores, tiles * blocks / kLeastRangeBlocks, tiles * pieces});
}

// Cuts the tiles that whole waves leave over, where that saves more than merging takes.
void cut_last_wave(const AttentionProblem& problem, const KernelConfig& config,
                   const DeviceInfo& device, Schedule& schedule) {
  if (config.mask != MaskClass::kFull || problem.batch_invariant || has_own_lengths(problem)) {
    return;
  }
  const int64_t blocks = ceil_div(problem.sizes.seqlen_k, config.tile_k);
  const int64_t tiles = schedule.items % device.cores;
  const int64_t ranges = best_ranges(config, tiles, blocks, device.cores);
  if (ranges <= tiles || blocks > kMostBlocks / (tiles * ranges)) {
    return;
  }
  const double block = static_cast<double>(block_clocks(config));
  const double wave = static_cast<double>(blocks) * block;
  const double part = static_cast<double>(ceil_div(tiles * blocks, ranges)) * block;
  // Not below what memory takes: single queries of many heads.
  const double uncut = wave * static_cast<double>(ceil_div(schedule.items, device.cores));
  const double memory = count_work(problem).bytes / device.memory_gbps * device.clock_ghz;
  const double saved = std::min(wave - part, uncut - memory);
  constexpr double kMargin = 1.5;  // all are estimates
  if (saved < kMargin * static_cast<double>(merge_clocks(config))) {
    return;
  }
  schedule.cut_tiles = tiles;
  schedule.cut_ranges = ranges;
}

}  // namespace

int64_t merge_clocks(const KernelConfig& config) {
  constexpr int64_t kLatency = 3000;
  constexpr int64_t kBytes = 15;  // a clock, of every multiprocessor at once
  return kLatency + piece_bytes(config) / kBytes;
}

Schedule without_cuts(Schedule schedule) {
  schedule.cut_tiles = schedule.cut_ranges = 0;
  return schedule;
}

Schedule cuda_schedule(const AttentionProblem& problem, const KernelConfig& config,
                       const DeviceInfo& device) {
  const Sizes& s = problem.sizes;
  Schedule schedule;
  schedule.tile_q = config.tile_q;
  schedule.tile_k = config.tile_k;
  if (config.step == StepKind::kBackward) {
    const bool ragged = problem.storage.query == Source::kRagged;
    schedule.query_tiles = s.heads_q * (ragged ? problem.storage.total_q / config.tile_q + s.batch
                                               : s.batch * ceil_div(s.seqlen_q, config.tile_q));
    schedule.columns = config.head_dim;
    const Gradients& wanted = problem.gradients;
    schedule.first_stores = config.first_stores;
    schedule.items = wanted.dq || wanted.dk || wanted.dv
                         ? s.batch * s.heads_kv * ceil_div(s.seqlen_k, config.tile_k)
                         : 0;  // dsinks alone
    return schedule;
  }
  schedule.pack = packed_heads(problem, config);
  schedule.items =
      s.batch * (s.heads_q / schedule.pack) * ceil_div(s.seqlen_q, config.tile_q / schedule.pack);
  cut_last_wave(problem, config, device, schedule);
  return schedule;
}

Schedule cuda_helper_schedule(const AttentionProblem& problem, const KernelConfig& config,
                              const Schedule& main) {
  const Sizes& s = problem.sizes;
  Schedule schedule = main;
  const int64_t tiles = s.batch * s.heads_q * ceil_div(s.seqlen_q, main.tile_q);
  if (config.step == StepKind::kRowStats) {
    schedule.items = std::max<int64_t>(tiles, 1);  // one prepares the ticket of the main step
  } else {
    const Gradients& wanted = problem.gradients;
    schedule.items = (wanted.dq ? tiles : 0) + (wanted.dsinks ? s.heads_q : 0);
  }
  return schedule;
}

}  // namespace rowmax::plan
