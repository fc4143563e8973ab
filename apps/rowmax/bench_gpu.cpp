#include "bench_gpu.h"

#include <fmt/format.h>

#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_case.h"
#include "case_text.h"
#include "rowmax/version.h"
#include "runner.h"
#include "table.h"
#include "testkit/inputs.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

using Json = nlohmann::ordered_json;
using Inputs = std::unique_ptr<testkit::CaseInputs>;

// Whether two cases have the same tensors: their bands alone differ, which biases look at.
bool same_tensors(const testkit::Case& a, const testkit::Case& b) {
  testkit::Case other = b;
  other.problem.band = a.problem.band;
  return !a.problem.score.bias.present && testkit::to_string(a) == testkit::to_string(other);
}

// The inputs of cases in their order. Making them takes seconds on one processor: those of up to
// `ahead` cases are made at once while the GPU works, and neighbours with the same tensors share.
class InputQueue {
 public:
  InputQueue(const std::vector<testkit::Case>& cases, int ahead) : cases_(cases) {
    for (int n = 0; n < ahead; ++n) {
      start();
    }
  }

  // Of the next case; valid until the next call.
  testkit::CaseInputs& next() {
    const size_t n = taken_++;
    if (!follows(n)) {
      current_ = nullptr;
      current_ = require(pending_.front().get());
      pending_.pop_front();
      start();
    }
    return *current_;
  }

 private:
  bool follows(size_t n) const { return n > 0 && same_tensors(cases_[n - 1], cases_[n]); }

  void start() {
    while (started_ < cases_.size() && follows(started_)) {
      ++started_;
    }
    if (started_ < cases_.size()) {
      pending_.push_back(std::async(std::launch::async, testkit::CaseInputs::create,
                                    std::cref(cases_[started_++])));
    }
  }

  const std::vector<testkit::Case>& cases_;
  size_t taken_ = 0;
  size_t started_ = 0;
  Inputs current_;
  std::deque<std::future<Result<Inputs>>> pending_;
};

// A plan for each kernel that is timed.
std::vector<Plan> plans_of(const testkit::Case& spec, const GpuBenchOptions& options) {
  const std::string text = testkit::to_string(spec);
  const Plan chosen = require(make_plan(spec.problem, options.device), text);
  std::vector<Plan> plans;
  for (const std::string& kernel : options.kernels(chosen)) {
    PlanOptions forced;
    forced.force_kernel = kernel;
    plans.push_back(require(make_plan(spec.problem, options.device, forced), text));
  }
  return plans;
}

// What is no regular file (a device, a pipe) cannot be replaced: it gets all lines after the last
// case.
bool replaceable(const std::string& path) {
  std::error_code error;
  return !std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error);
}

}  // namespace

std::vector<std::string> chosen_kernel(const Plan& chosen) { return {chosen.kernel()}; }

std::vector<GpuResult> measure_on_gpu(const std::vector<testkit::Case>& cases,
                                      const GpuBenchOptions& options, const std::string& json) {
  std::vector<std::vector<Plan>> plans;
  for (const testkit::Case& spec : cases) {
    plans.push_back(plans_of(spec, options));
  }
  Progress progress;
  std::vector<GpuResult> results;
  InputQueue queue(cases, options.ahead);
  for (size_t n = 0; n < cases.size(); ++n) {
    const std::string text = testkit::to_string(cases[n]);
    progress.show(fmt::format("{} of {}: {}", n + 1, cases.size(), text));
    testkit::CaseInputs& inputs =
        with_memory_for(cases[n], [&queue] { return std::ref(queue.next()); });
    std::vector<std::vector<double>> seconds = require(
        testkit::time_on_gpu(plans[n], inputs, options.rounds, options.round_seconds), text);
    const std::string date = date_text();
    for (size_t k = 0; k < plans[n].size(); ++k) {
      results.push_back({text, plans[n][k].kernel(), case_flops(cases[n], inputs),
                         testkit::predicted_seconds(plans[n][k]), std::move(seconds[k]), date});
    }
    if (!json.empty() && (n + 1 == cases.size() || replaceable(json))) {
      require(write_file_atomically(json, {json_lines(results, options.device)}));
    }
  }
  return results;
}

std::string json_lines(const std::vector<GpuResult>& results, const DeviceInfo& device) {
  std::string lines;
  for (const GpuResult& result : results) {
    const Json line = {{"case", result.text},
                       {"kernel", result.kernel},
                       {"device", device.name},
                       {"isa", device.isa},
                       {"multiprocessors", device.cores},
                       {"clock_ghz", device.clock_ghz},
                       {"memory_gbps", device.memory_gbps},
                       {"version", ROWMAX_VERSION_STRING},
                       {"date", result.date},
                       {"rounds", result.seconds.size()},
                       {"seconds_median", median(result.seconds)},
                       {"seconds_p10", quantile(result.seconds, 0.1)},
                       {"predicted_seconds", result.predicted},
                       {"tflops", result.flops / median(result.seconds) * 1e-12}};
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return lines;
}

int bench_on_gpu(const std::vector<testkit::Case>& cases, const std::string& json,
                 const GpuBenchOptions& options) {
  const bool to_stdout = json == "-";
  const std::vector<GpuResult> results = measure_on_gpu(cases, options, to_stdout ? "" : json);
  if (to_stdout) {
    fmt::print("{}", json_lines(results, options.device));
    return kExitOk;
  }
  Table table({"time", "predicted", "measured / predicted", "TFLOP/s", "<kernel", "<case"});
  for (const GpuResult& result : results) {
    const double seconds = median(result.seconds);
    table.add({time_text(seconds), time_text(result.predicted),
               fmt::format("{:.2f}", seconds / result.predicted),
               number_text(result.flops / seconds * 1e-12), result.kernel, result.text});
  }
  fmt::print("{}, {}; median of {} rounds of CUDA graphs\n\n{}", options.device.name,
             options.device.isa, options.rounds, table.text());
  return kExitOk;
}

}  // namespace rowmax::app
