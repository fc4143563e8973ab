// Results against the fp64 reference, by the numerics rule.
#pragma once

#include <string>
#include <vector>

#include "rowmax/attention.h"

namespace rowmax::app {

// Verdict on one output.
struct TensorCheck {
  std::string tensor;
  double max_error = 0.0;  // largest |computed - reference|
  double limit = 0.0;      // at that element
  double ratio = 0.0;      // largest error / limit; above 1 is a failure
  bool pass = false;
  std::string detail;      // of a failure: where, and what was expected
};

// Checks the outputs that `tensors` holds: out and lse of a forward problem, the gradients of a
// backward problem.
std::vector<TensorCheck> check_against_reference(const AttentionProblem& problem,
                                                 const AttentionTensors& tensors);

}  // namespace rowmax::app
