#include "runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "verbs.h"

namespace rowmax::app {

Runner::Runner(const AttentionProblem& problem, const std::string& kernel, int threads)
    : threads_(threads) {
  require(validate(problem));
  PlanOptions options;
  options.force_kernel = kernel;
  plan_ = require(make_plan(problem, host_device(), options));
  workspace_ = Buffer(plan_.workspace_bytes(threads_));
}

double Runner::run(const AttentionTensors& tensors) {
  ExecuteOptions options;
  options.threads = threads_;
  const auto begin = std::chrono::steady_clock::now();
  const Status status = execute(plan_, tensors, workspace_.data(), workspace_.bytes(), options);
  const auto end = std::chrono::steady_clock::now();
  require(status);
  return std::chrono::duration<double>(end - begin).count();
}

double quantile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(p * static_cast<double>(values.size())) - 1.0;
  return values[static_cast<size_t>(std::max(rank, 0.0))];
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2.0;
}

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int default_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const int asked = text != nullptr ? std::atoi(text) : 0;
  return asked > 0 ? asked : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { show(""); }

void Progress::show(const std::string& text) {
  if (terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", text);
    std::fflush(stderr);
  }
}

}  // namespace rowmax::app
