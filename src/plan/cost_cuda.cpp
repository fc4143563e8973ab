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
// Backward: instructions for a score beside its exponential, the share of the tensor peak that a
// step of query rows reaches, and what a tile of keys takes beside its steps (measured on a
// prototype: 3590 clocks for 2560 of products, 3.6 us a tile).
constexpr double kGradientInstructions = 6.0;
constexpr double kBackwardShare = 0.71;
constexpr double kKeyTileClocks = 6000.0;
// Of a tile, beyond its key blocks: loads of Q, first scores, normalisation, store; in clocks.
constexpr double kTileClocks = 900.0;

struct BlockClocks {
  double matrix = 0.0;
  double exponential = 0.0;
  double softmax = 0.0;
};

bool is_backward(const KernelConfig& config) { return config.step == StepKind::kBackward; }

// Clocks of one key block of one tile on every unit.
BlockClocks block_clocks(const KernelConfig& config) {
  const double scores = static_cast<double>(config.tile_q) * config.tile_k;
  const bool backward = is_backward(config);
  // Forward: Q K^T and P V; backward: K Q^T, dQ, dK and V dO^T, dV.
  const double columns = backward ? 3.0 * config.head_dim + 2.0 * config.head_dim_v
                                  : config.head_dim + config.head_dim_v;
  BlockClocks clocks;
  clocks.matrix = 2.0 * scores * columns / kMatrixFlops;
  clocks.exponential = scores / kExponentials;
  clocks.softmax = scores * (backward ? kGradientInstructions : kSoftmaxInstructions) / kLanes;
  return clocks;
}

// The tiles of a problem and their blocks: query tiles and key blocks, in backward the other way
// round.
struct Work {
  double tiles = 0.0;
  double blocks = 0.0;   // of all tiles
  double longest = 0.0;  // blocks of one tile
};

Work work_of(const AttentionProblem& problem, const KernelConfig& config) {
  const Sizes& s = problem.sizes;
  const int64_t pack = is_backward(config) ? 1 : packed_heads(problem, config);
  const TileBlocks blocks = tile_blocks(problem, config, pack);
  // In floating point: the products may exceed 64 bits.
  const double units = static_cast<double>(s.batch) * static_cast<double>(s.heads_q / pack);
  const double total = units * static_cast<double>(blocks.total);
  if (is_backward(config)) {
    const double keys = static_cast<double>((s.seqlen_k + config.tile_k - 1) / config.tile_k);
    const double group = static_cast<double>(s.heads_q) / static_cast<double>(s.heads_kv);
    return {units / group * keys, total, group * static_cast<double>(blocks.tiles)};
  }
  return {units * static_cast<double>(blocks.tiles), total, static_cast<double>(blocks.longest)};
}

double clocks_of_block(const KernelConfig& config, const BlockClocks& clocks) {
  const double share =
      is_backward(config) ? kBackwardShare : kMatrixShare[std::clamp(config.warpgroups, 1, 4)];
  return std::max(clocks.matrix / share, clocks.exponential + clocks.softmax) + kBlockOverhead;
}

// Of the steps beside a backward main step, in us: dQ's sums are read, and cleared unless the main
// step's first additions store, O, dO and dQ pass.
double helpers_us(const AttentionProblem& problem, const KernelConfig& config,
                  const DeviceInfo& device) {
  const Sizes& s = problem.sizes;
  const double rows = static_cast<double>(s.batch) * static_cast<double>(s.heads_q) *
                      static_cast<double>(s.seqlen_q);
  const double sums = config.first_stores ? 1.0 : 2.0;
  const double bytes = rows * (sums * sizeof(float) + 3.0 * 2.0) * config.head_dim;
  return 2.0 * kLaunchUs + bytes / (device.memory_gbps * 1e3);
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

struct TileClocks {
  double tile = 0.0;
  double block = 0.0;
};

// Whole waves of equal tiles, the last one without the tiles that are cut.
double wave_clocks(const AttentionProblem& problem, const KernelConfig& config,
                   const DeviceInfo& device, const Work& work, const TileClocks& clocks) {
  const double all = std::ceil(work.tiles / device.cores) * clocks.tile;
  if (is_backward(config)) {
    return all;
  }
  const Schedule schedule = cuda_schedule(problem, config, device);
  if (schedule.cut_ranges == 0) {
    return all;
  }
  const double pieces = static_cast<double>(schedule.cut_tiles) * work.longest /
                        static_cast<double>(schedule.cut_ranges);
  return all - (work.longest - pieces) * clocks.block + static_cast<double>(merge_clocks(config));
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
  const double tile = is_backward(config) ? kKeyTileClocks : kTileClocks;
  const double all = block * work.blocks + tile * work.tiles;
  const double longest = block * work.longest + tile;
  // Whole waves of equal tiles for a full band; a band of unequal ones fills the gaps itself.
  const double average = all / device.cores;
  const double waves = problem.band.is_full() && work.tiles > 0
                           ? wave_clocks(problem, config, device, work, {longest, block})
                           : average + longest / 2;
  const double memory = count_work(problem).bytes / (device.memory_gbps * 1e3);
  const double main =
      kLaunchUs + factor * std::max(us_of(std::max(waves, average), device), memory);
  return is_backward(config) ? main + helpers_us(problem, config, device) : main;
}

}  // namespace rowmax::plan
