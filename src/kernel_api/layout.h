// Layout of the shared workspace regions. One source for planner, kernels and combine steps.
#pragma once

#include <cstdint>

#include "kernel_api/args.h"

namespace rowmax {

// Rows of one row-statistics item; also the granularity of dsink partials.
inline constexpr int64_t kRowStatsChunk = 1024;

// Row of the flattened query axis: dense b * Sq + i, ragged q_begin + i.
ROWMAX_FORCE_INLINE int64_t flat_query_row(const AttentionArgs& args, const SequenceExtent& extent,
                                           int64_t b, int64_t i) {
  return args.sequence.cu_q.data != nullptr ? extent.q_begin + i : b * args.shape.seqlen_q + i;
}

// Length of the flattened query axis.
ROWMAX_FORCE_INLINE int64_t flat_query_rows(const AttentionArgs& args) {
  return args.sequence.cu_q.data != nullptr ? args.sequence.total_q
                                            : args.shape.batch * args.shape.seqlen_q;
}

// Region::kRowStats: two arrays of (Hq, rows): delta - dLSE, then LSE * log2(e) (+inf for rows
// without keys, so that their probabilities are 0).
ROWMAX_FORCE_INLINE int64_t row_stats_index(int64_t rows, int64_t head, int64_t row) {
  return head * rows + row;
}

// The regions of a GPU's backward hold whole tiles, Schedule::query_tiles of them: in the order of
// (batch, query head, tile of its rows), of ragged queries (query head, tile), where those of batch
// element b start at q_begin / tile_q + b. Columns are padded to the head dim of the kernel's row.
//   kRowStats:   (tiles, 2, tile_q) fp32: LSE * log2(e) as above, then delta - dLSE; rows past the
//                sequence's end are rows without keys
//   kDqPartials: (tiles, tile_q, head_dim) fp32, the sum over the keys so far, in the order of the
//                kernel's registers
//   kSinkPartials: (tiles) fp64, dsink of its rows
//   kTurns:      (tiles) int32, the key tile whose turn it is to add

// Region::kPartialStates: m (splits, Hq, rows), l (the same), O (splits, Hq, rows, Dv), all of the
// compute type. m is in log2 units; a range without visible keys has m = -inf, l = 0, O = 0.
ROWMAX_FORCE_INLINE int64_t partial_state_index(int64_t heads_q, int64_t rows, int64_t split,
                                                int64_t head, int64_t row) {
  return (split * heads_q + head) * rows + row;
}

// Region::kDqPartials: (chunks, Hq, rows, D) of the compute type.
ROWMAX_FORCE_INLINE int64_t dq_partial_index(int64_t heads_q, int64_t rows, int64_t chunk,
                                             int64_t head, int64_t row) {
  return (chunk * heads_q + head) * rows + row;
}

// Region::kSinkPartials: (B, Hq, row chunks) fp64. Region::kSlopePartials: (B, Hq, key chunks)
// fp64.
ROWMAX_FORCE_INLINE int64_t per_head_partial_index(int64_t heads_q, int64_t chunks, int64_t b,
                                                   int64_t head, int64_t chunk) {
  return (b * heads_q + head) * chunks + chunk;
}

}  // namespace rowmax
