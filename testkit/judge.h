// Judges outputs that a run left in memory against the fp64 oracle, by the pass rule.
#pragma once

#include <vector>

#include "kernel_api/args.h"
#include "rowmax/attention.h"
#include "rowmax/status.h"
#include "testkit/numerics.h"

namespace rowmax::testkit {

// One report for every output that the problem writes and `args` points to.
std::vector<OutputReport> judge_outputs(const AttentionProblem& problem, const AttentionArgs& args);

// The same on a caller's tensors, checked as execute does.
Result<std::vector<OutputReport>> judge_tensors(const AttentionProblem& problem,
                                                const AttentionTensors& tensors);

}  // namespace rowmax::testkit
