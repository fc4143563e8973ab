// The naive implementation: the textbook formula in the kernels' precision, with the whole score
// matrix in memory. It sets the first half of the pass rule (docs/numerics.md) and is the baseline
// of `rowmax bench`.
#pragma once

#include <cstdint>

#include "kernel_api/args.h"
#include "rowmax/attention.h"
#include "rowmax/problem.h"
#include "rowmax/status.h"

namespace rowmax::testkit {

// Computes the problem's outputs where `args` says, in fp32 (fp64 for fp64 problems), P unrounded.
// Backward recomputes P from the inputs. Parallel over heads with OpenMP; threads 0: its default.
void run_naive(const AttentionProblem& problem, const AttentionArgs& args, int threads);

// The same on a caller's tensors, checked as execute does.
Status execute_naive(const AttentionProblem& problem, const AttentionTensors& tensors, int threads);

// Bytes that run_naive allocates for this thread count.
int64_t naive_bytes(const AttentionProblem& problem, int threads);

}  // namespace rowmax::testkit
