#include "plan/schedule_cuda.h"

#include <algorithm>

#include "kernel_api/schedule.h"
#include "problem/band.h"

namespace rowmax::plan {

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
  while (group % pack != 0) {
    --pack;
  }
  if (pack == 1) {
    return 1;
  }
  const int64_t plain = pack * tile_blocks(problem, config, 1).total;
  return tile_blocks(problem, config, pack).total < plain ? pack : 1;
}

Schedule cuda_schedule(const AttentionProblem& problem, const KernelConfig& config) {
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
    schedule.items = wanted.dq || wanted.dk || wanted.dv
                         ? s.batch * s.heads_kv * ceil_div(s.seqlen_k, config.tile_k)
                         : 0;  // dsinks alone
    return schedule;
  }
  schedule.pack = packed_heads(problem, config);
  schedule.items =
      s.batch * (s.heads_q / schedule.pack) * ceil_div(s.seqlen_q, config.tile_q / schedule.pack);
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
