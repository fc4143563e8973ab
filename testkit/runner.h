// Runs a case on one kernel and judges every output against the oracle.
#pragma once

#include <string>
#include <vector>

#include "rowmax/status.h"
#include "testkit/case.h"
#include "testkit/numerics.h"

namespace rowmax::testkit {

struct RunReport {
  Status status;       // of validate, make_plan, execute; kUnsupported when no kernel serves it
  std::string kernel;  // the plan's main kernel
  std::vector<OutputReport> outputs;
  std::vector<std::string> violations;  // memory that must not be written and was
  std::string repro;                    // a line that repeats the run

  bool passed() const;
  double worst_ratio() const;  // largest error / limit of the outputs
  // One line when it passed; else every failing output with its worst coordinate, and `repro`.
  std::string text() const;
};

// `force_kernel`: exact name or empty for the planner's choice. `threads`: 0 is the default.
RunReport run_case(const Case& spec, const std::string& force_kernel = "", int threads = 0);

}  // namespace rowmax::testkit
