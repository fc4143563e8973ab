#include "plan/cost_cuda.h"

#include <algorithm>

#include "kernel_api/schedule.h"
#include "problem/band.h"

namespace rowmax::plan {
namespace {

// Of one Hopper multiprocessor and clock: dense bf16 FLOPs of the tensor cores, results of the
// special function units, lanes of the fp32 pipes.
constexpr double kMatrixFlops = 4096.0;
constexpr double kExponentials = 16.0;
constexpr double kLanes = 128.0;
// Instructions of the softmax for a score beside its exponential: scale, maximum, sum, conversion.
constexpr double kSoftmaxInstructions = 4.0;
// Share of the tensor peak that a mainloop reaches when nothing else limits it, by its consumer
// warpgroups: a third one hides the softmax of the others (measured: docs/kernels/sm90_forward.md).
constexpr double kMatrixShare[] = {0.0, 0.60, 0.83, 0.93, 0.93};
// What is left of a row's rate when options are used: ALiBi's share (softcap 0.54).
constexpr double kOptionsShare = 0.73;
// A row with options serves a problem that needs none only when no other row does.
constexpr double kUnneededOptions = 2.0;
// Of a key block, beside its products: barriers, first scores of an empty pipe; in clocks.
constexpr double kBlockOverhead = 150.0;
// Of a tile, beyond its key blocks: loads of Q, first scores, normalisation, store; in clocks.
constexpr double kTileClocks = 900.0;
// Of a launch, in us.
constexpr double kLaunchUs = 3.0;

// Key blocks of every query tile of one (batch element, head), by the upper bounds of the lengths.
struct Blocks {
  double total = 0.0;    // over the tiles
  double longest = 0.0;  // of one tile
  int64_t tiles = 0;
};

Blocks count_blocks(const AttentionProblem& problem, const KernelConfig& config) {
  const Sizes& s = problem.sizes;
  const Band& band = problem.band;
  const BandArgs args = {band.left.value(), band.right.value(), band.left.bounded(),
                         band.right.bounded(), band.alignment == Alignment::kTopLeft};
  const RowBand rows = resolve_band(args, s.seqlen_q, s.seqlen_k);
  Blocks blocks;
  blocks.tiles = ceil_div(s.seqlen_q, config.tile_q);
  constexpr int64_t kSamples = 512;  // of long sequences
  const int64_t step = std::max<int64_t>(1, blocks.tiles / kSamples);
  for (int64_t tile = 0; tile < blocks.tiles; tile += step) {
    const int64_t begin = tile * config.tile_q;
    const int64_t end = std::min<int64_t>(begin + config.tile_q, s.seqlen_q);
    const KeyRange keys = block_keys(rows, begin, end, s.seqlen_k);
    const int64_t first = keys.begin / config.tile_k;
    const double count =
        keys.end > keys.begin ? static_cast<double>(ceil_div(keys.end, config.tile_k) - first) : 0;
    blocks.total += count * static_cast<double>(std::min(step, blocks.tiles - tile));
    blocks.longest = std::max(blocks.longest, count);
  }
  return blocks;
}

struct BlockClocks {
  double matrix = 0.0;
  double exponential = 0.0;
  double softmax = 0.0;
};

// Clocks of one key block of one tile on every unit.
BlockClocks block_clocks(const KernelConfig& config) {
  const double scores = static_cast<double>(config.tile_q) * config.tile_k;
  BlockClocks clocks;
  clocks.matrix = 2.0 * scores * (config.head_dim + config.head_dim_v) / kMatrixFlops;
  clocks.exponential = scores / kExponentials;
  clocks.softmax = scores * kSoftmaxInstructions / kLanes;
  return clocks;
}

double heads_of(const AttentionProblem& problem) {
  return static_cast<double>(problem.sizes.batch) * static_cast<double>(problem.sizes.heads_q);
}

double clocks_of_block(const KernelConfig& config, const BlockClocks& clocks) {
  const double share = kMatrixShare[std::clamp(config.warpgroups, 1, 4)];
  return std::max(clocks.matrix / share, clocks.exponential + clocks.softmax) + kBlockOverhead;
}

double factor_of_options(const AttentionProblem& problem, const KernelConfig& config) {
  if (!config.score_options) {
    return 1.0;
  }
  const bool needed = problem.score.softcap != 0.0 || problem.score.alibi ||
                      problem.effective_scale() <= 0.0 || problem.out_dtype != problem.dtype;
  return needed ? 1.0 / kOptionsShare : kUnneededOptions;
}

// Clocks -> us.
double us_of(double clocks, const DeviceInfo& device) { return clocks / (device.clock_ghz * 1e3); }

}  // namespace

UnitTimes unit_times(const AttentionProblem& problem, const KernelConfig& config,
                     const DeviceInfo& device) {
  const BlockClocks clocks = block_clocks(config);
  const double blocks = count_blocks(problem, config).total * heads_of(problem) / device.cores;
  UnitTimes times;
  times.matrix = us_of(blocks * clocks.matrix, device);
  times.exponential = us_of(blocks * clocks.exponential, device);
  times.softmax = us_of(blocks * clocks.softmax, device);
  times.memory = count_work(problem).bytes / (device.memory_gbps * 1e3);
  return times;
}

AttentionProblem ranked_problem(AttentionProblem problem) {
  if (problem.batch_invariant) {
    problem.sizes.batch = 64;
    problem.sizes.seqlen_q = problem.sizes.seqlen_k = 4096;
  }
  return problem;
}

double predicted_us(const AttentionProblem& problem, const KernelConfig& config,
                    const DeviceInfo& device) {
  const BlockClocks clocks = block_clocks(config);
  const Blocks blocks = count_blocks(problem, config);
  const double block = clocks_of_block(config, clocks) * factor_of_options(problem, config);
  const double tiles = static_cast<double>(blocks.tiles) * heads_of(problem);
  const double all = block * blocks.total * heads_of(problem) + kTileClocks * tiles;
  const double longest = block * blocks.longest + kTileClocks;
  // Whole waves of equal tiles for a full band; a band of unequal ones fills the gaps itself.
  const double average = all / device.cores;
  const double waves = problem.band.is_full() && tiles > 0
                           ? static_cast<double>(ceil_div(static_cast<int64_t>(tiles),
                                                          static_cast<int64_t>(device.cores))) *
                                 longest
                           : average + longest / 2;
  const double memory = count_work(problem).bytes / (device.memory_gbps * 1e3);
  return kLaunchUs + std::max(us_of(std::max(waves, average), device), memory);
}

}  // namespace rowmax::plan
