// Error bounds of every output of a case, derived from its fp64 quantities (docs/numerics.md).
#pragma once

#include <array>

#include "kernel_api/args.h"
#include "rowmax/problem.h"
#include "testkit/numerics.h"

namespace rowmax::testkit {

using OutputBounds = std::array<OutputBound, kOutputCount>;

// `oracle`: the outputs in fp64, for the storage rounding. `args` as the kernel under test sees
// them (for backward: with the LSE that it reads).
OutputBounds error_bounds(const AttentionProblem& problem, const AttentionArgs& args,
                          const OutputValues& oracle);

}  // namespace rowmax::testkit
