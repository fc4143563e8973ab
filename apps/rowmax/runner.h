// Plans and executes with an owned workspace and a clock.
#pragma once

#include <string>
#include <vector>

#include "rowmax/attention.h"
#include "tensor_file.h"

namespace rowmax::app {

// A plan with the workspace for a thread count.
class Runner {
 public:
  // Throws a Failure when no kernel serves the problem.
  Runner(const AttentionProblem& problem, const std::string& kernel, int threads);

  const Plan& plan() const { return plan_; }
  size_t workspace_bytes() const { return workspace_.bytes(); }

  // Executes once and returns seconds. Throws a Failure on any error.
  double run(const AttentionTensors& tensors);

 private:
  Plan plan_;
  int threads_;
  Buffer workspace_;
};

// Median, and quantile p (0 to 1, nearest rank), of at least one value.
double median(std::vector<double> values);
double quantile(std::vector<double> values, double p);

// The present time in UTC, "2026-11-30T12:00:00Z".
std::string date_text();

// The thread count that 0 stands for.
int default_threads();

// Shows a line on stderr while stderr is a terminal; cleared at the end of its life.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(const std::string& text);

 private:
  bool terminal_;
};

}  // namespace rowmax::app
