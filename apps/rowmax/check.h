// Results against the fp64 reference, by the numerics rule.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rowmax/attention.h"
#include "testkit/numerics.h"

namespace rowmax::app {

// Verdict on one output.
struct TensorCheck {
  std::string tensor;
  double max_error = 0.0;  // largest |computed - reference|
  double ratio = 0.0;      // largest error / limit; above 1 is a failure
  double limit = 0.0;      // at the element of that ratio
  bool pass = false;
  std::string detail;  // of a failure: where, and what was expected
};

// JSON has no infinities and no NaN: they become strings.
nlohmann::ordered_json json_number(double value);
nlohmann::ordered_json json_of(const TensorCheck& check);

bool all_pass(const std::vector<TensorCheck>& checks);

TensorCheck check_of(const testkit::OutputReport& report);

// Checks the outputs that `tensors` holds: out and lse of a forward problem, the gradients of a
// backward problem.
std::vector<TensorCheck> check_against_reference(const AttentionProblem& problem,
                                                 const AttentionTensors& tensors);

}  // namespace rowmax::app
