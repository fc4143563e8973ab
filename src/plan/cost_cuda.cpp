#include "plan/cost_cuda.h"

#include <algorithm>
#include <cmath>

#include "plan/schedule_cuda.h"

namespace rowmax::plan {
namespace {

// Of one Hopper multiprocessor and clock: dense bf16 FLOPs of the tensor cores, results of the
// special function units, lanes of the fp32 pipes.
constexpr double kMatrixFlops = 4096.0;
constexpr double kExponentials = 16.0;
constexpr double kLanes = 128.0;
// Instructions of the softmax for a score beside its exponential: scale, sum, half a conversion.
constexpr double kSoftmaxInstructions = 2.5;
// Share of the tensor peak that a mainloop reaches when nothing else limits it, by its consumer
// warpgroups: a third one hides the softmax of the others (measured: docs/kernels/sm90_forward.md).
constexpr double kMatrixShare[] = {0.0, 0.60, 0.83, 0.93, 0.93};
// What options leave of a row's rate, and what the code of all of them does (measured:
// docs/kernels/sm90_forward.md).
constexpr double kAlibiShare = 0.88;
constexpr double kSoftcapShare = 0.75;
constexpr double kAllOptionsShare = 0.88;
// Of a key block, beside its products: barriers, first scores of an empty pipe; in clocks.
constexpr double kBlockOverhead = 150.0;
// Of a tile, beyond its key blocks: loads of Q, first scores, normalisation, store; in clocks.
constexpr double kTileClocks = 900.0;

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

// The tiles of a problem and their key blocks.
struct Work {
  double tiles = 0.0;
  double blocks = 0.0;   // of all tiles
  double longest = 0.0;  // blocks of one tile
};

Work work_of(const AttentionProblem& problem, const KernelConfig& config) {
  const int64_t pack = packed_heads(problem, config);
  const TileBlocks blocks = tile_blocks(problem, config, pack);
  // In floating point: the products may exceed 64 bits.
  const double units =
      static_cast<double>(problem.sizes.batch) * static_cast<double>(problem.sizes.heads_q / pack);
  return {units * static_cast<double>(blocks.tiles), units * static_cast<double>(blocks.total),
          static_cast<double>(blocks.longest)};
}

double clocks_of_block(const KernelConfig& config, const BlockClocks& clocks) {
  const double share = kMatrixShare[std::clamp(config.warpgroups, 1, 4)];
  return std::max(clocks.matrix / share, clocks.exponential + clocks.softmax) + kBlockOverhead;
}

double factor_of_options(const AttentionProblem& problem, const KernelConfig& config) {
  double share = 1.0;
  if (problem.score.softcap != 0.0) {
    share *= kSoftcapShare;
  }
  if (problem.score.alibi) {
    share *= kAlibiShare;
  }
  if (config.options == OptionClass::kAll) {
    share *= kAllOptionsShare;
  }
  return 1.0 / share;
}

// Clocks -> us.
double us_of(double clocks, const DeviceInfo& device) { return clocks / (device.clock_ghz * 1e3); }

}  // namespace

UnitTimes unit_times(const AttentionProblem& problem, const KernelConfig& config,
                     const DeviceInfo& device) {
  const BlockClocks clocks = block_clocks(config);
  const double blocks = work_of(problem, config).blocks / device.cores;
  UnitTimes times;
  times.matrix = us_of(blocks * clocks.matrix, device);
  times.exponential = us_of(blocks * clocks.exponential, device);
  times.softmax = us_of(blocks * clocks.softmax, device);
  times.memory = count_work(problem).bytes / (device.memory_gbps * 1e3);
  return times;
}

double predicted_us(const AttentionProblem& problem, const KernelConfig& config,
                    const DeviceInfo& device, double factor) {
  const BlockClocks clocks = block_clocks(config);
  const Work work = work_of(problem, config);
  const double block = clocks_of_block(config, clocks) * factor_of_options(problem, config);
  const double all = block * work.blocks + kTileClocks * work.tiles;
  const double longest = block * work.longest + kTileClocks;
  // Whole waves of equal tiles for a full band; a band of unequal ones fills the gaps itself.
  const double average = all / device.cores;
  const double waves = problem.band.is_full() && work.tiles > 0
                           ? std::ceil(work.tiles / device.cores) * longest
                           : average + longest / 2;
  const double memory = count_work(problem).bytes / (device.memory_gbps * 1e3);
  return kLaunchUs + factor * std::max(us_of(std::max(waves, average), device), memory);
}

}  // namespace rowmax::plan
