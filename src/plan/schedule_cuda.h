// Schedules of GPU kernels: tiles, heads that share them, items. Functions of the sizes and the
// kernel's tiles; which tiles are cut along keys depends on the device's multiprocessors, too.
#pragma once

#include "kernel_api/kernel.h"
#include "rowmax/problem.h"

namespace rowmax::plan {

// What choices for a problem are made on. For a batch-invariant problem a fixed batch and length:
// the bounds of its lengths come from the longest sequence of the batch.
AttentionProblem ranked_problem(AttentionProblem problem);

// Tiles of one (batch element, group of packed query heads) and the key blocks that they visit, by
// the upper bounds of the lengths. Of long sequences samples are counted: `total` is then up to 0.4
// % off.
struct TileBlocks {
  int64_t tiles = 0;
  int64_t total = 0;    // over the tiles
  int64_t longest = 0;  // of one tile
};

// Of tiles that hold tile_q / pack positions of `pack` query heads.
TileBlocks tile_blocks(const AttentionProblem& problem, const KernelConfig& config, int64_t pack);

// Query heads of a kv head whose rows share a tile: 1, or the largest divisor of the group that
// fits a tile, whichever needs fewer products. Packing shortens the tiles' spans of positions:
// fewer rows past the end of a short sequence, fewer masked keys on a diagonal. A row's bits do not
// depend on the rows beside it, so batch-invariant plans may pack by the batch's lengths, too.
int64_t packed_heads(const AttentionProblem& problem, const KernelConfig& config);

// The schedule of a main step, counted with the upper bounds of the lengths. Forward: its items are
// the query tiles of every batch element and group of packed heads; those that whole waves on
// `device` leave over are cut along keys where that pays. Backward: the key tiles of every batch
// element and kv head.
Schedule cuda_schedule(const AttentionProblem& problem, const KernelConfig& config,
                       const DeviceInfo& device);

// What writing and merging the pieces of cut tiles takes, in clocks of every multiprocessor
// (measured: docs/kernels/sm90_forward.md).
int64_t merge_clocks(const KernelConfig& config);

// The same without cut tiles: needs no workspace.
Schedule without_cuts(Schedule schedule);

// The schedule of a step beside a backward main step: its items are the query tiles, of the last
// one also the heads of dsinks.
Schedule cuda_helper_schedule(const AttentionProblem& problem, const KernelConfig& config,
                              const Schedule& main);

}  // namespace rowmax::plan
