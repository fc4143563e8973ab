// Judges outputs that a run left in memory against the fp64 oracle, by the pass rule.
#pragma once

#include <vector>

#include "kernel_api/args.h"
#include "rowmax/attention.h"
#include "rowmax/status.h"
#include "testkit/bounds.h"
#include "testkit/numerics.h"
#include "testkit/outputs.h"

namespace rowmax::testkit {

// What outputs are judged by: the oracle, the naive implementation and the bounds of one problem on
// one set of inputs. Inputs must stay as they are while it lives.
class Judge {
 public:
  Judge(const AttentionProblem& problem, const AttentionArgs& args);

  // One report for every output that the problem writes, as its memory is now.
  std::vector<OutputReport> judge() const;

 private:
  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  OutputValues oracle_;
  OutputValues naive_;
  OutputBounds bounds_;
};

// One report for every output that the problem writes and `args` points to.
std::vector<OutputReport> judge_outputs(const AttentionProblem& problem, const AttentionArgs& args);

// The same on a caller's tensors, checked as execute does.
Result<std::vector<OutputReport>> judge_tensors(const AttentionProblem& problem,
                                                const AttentionTensors& tensors);

}  // namespace rowmax::testkit
