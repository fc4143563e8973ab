#include "check.h"

#include <fmt/format.h>
#include <algorithm>

#include <cmath>

#include "testkit/judge.h"
#include "verbs.h"

namespace rowmax::app {

nlohmann::ordered_json json_number(double value) {
  using Json = nlohmann::ordered_json;
  return std::isfinite(value) ? Json(value) : Json(fmt::format("{}", value));
}

nlohmann::ordered_json json_of(const TensorCheck& check) {
  return {{"tensor", check.tensor},
          {"max_error", json_number(check.max_error)},
          {"limit", json_number(check.limit)},
          {"ratio", json_number(check.ratio)},
          {"pass", check.pass}};
}

bool all_pass(const std::vector<TensorCheck>& checks) {
  return std::all_of(checks.begin(), checks.end(),
                     [](const TensorCheck& check) { return check.pass; });
}

TensorCheck check_of(const testkit::OutputReport& report) {
  TensorCheck check;
  check.tensor = testkit::to_string(report.output);
  check.max_error = report.max_error;
  check.limit = report.limit;
  check.ratio = report.ratio;
  check.pass = report.passed();
  check.detail = check.pass ? "" : report.worst;
  return check;
}

std::vector<TensorCheck> check_against_reference(const AttentionProblem& problem,
                                                 const AttentionTensors& tensors) {
  std::vector<TensorCheck> checks;
  for (const testkit::OutputReport& report : require(testkit::judge_tensors(problem, tensors))) {
    checks.push_back(check_of(report));
  }
  return checks;
}

}  // namespace rowmax::app
