// Host checks of lengths and page tables. Only entries that matter are read.
#pragma once

#include "kernel_api/args.h"
#include "rowmax/problem.h"
#include "rowmax/status.h"

namespace rowmax {

// Values of cu_seqlens, seqused and block_table of bound arguments against the problem: offsets
// start at 0 and never decrease, the last one is inside the storage, lengths are within their
// bounds, and every page that a length reaches is in the pool.
Status check_lengths(const AttentionProblem& problem, const SequenceArgs& sequence);

}  // namespace rowmax
