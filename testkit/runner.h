// Runs a case on one kernel and judges every output against the oracle.
#pragma once

#include <string>
#include <vector>

#include "rowmax/plan.h"
#include "rowmax/status.h"
#include "testkit/case.h"
#include "testkit/inputs.h"
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

// How to run a case.
struct RunOptions {
  std::string kernel;  // exact name, or empty for the planner's choice
  int threads = 0;     // 0: the default
  DeviceInfo device = host_device();
  int runs = 1;  // more than one: all must give the same bits
};

RunReport run_case(const Case& spec, const RunOptions& options = {});

// The same for several kernels, on one set of inputs and against one oracle.
std::vector<RunReport> run_kernels(const Case& spec, const std::vector<std::string>& kernels,
                                   const RunOptions& options);

// Every kernel that serves the plan's problem on its device: the chosen one first.
std::vector<std::string> serving_kernels(const Plan& plan);

// The chosen kernel, and those that lost to it by predicted time.
std::vector<std::string> contending_kernels(const Plan& plan);

// Executes the plan on the inputs, in a workspace full of NaN between guard zones. A GPU's plan
// runs on copies of the tensors, guard zones and all: on every multiprocessor and on one, in one
// workspace. The results of the second run come back, with `one_multiprocessor` of that one.
// `violations` receives what was written outside the workspace, and may be null.
Status execute_case(const Plan& plan, CaseInputs& inputs, int threads,
                    std::vector<std::string>* violations, bool one_multiprocessor = false);

// Plans of one GPU for one problem, on one set of copies of the inputs and in turns: every round
// times each of them and starts with another one. Of every plan the seconds of one call, an entry a
// round; one more round before them warms the chip up.
Result<std::vector<std::vector<double>>> time_on_gpu(const std::vector<Plan>& plans,
                                                     CaseInputs& inputs, int rounds,
                                                     double round_seconds);

// The predicted time of a GPU's plan, in seconds.
double predicted_seconds(const Plan& plan);

}  // namespace rowmax::testkit
