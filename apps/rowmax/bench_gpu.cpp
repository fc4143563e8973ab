#include "bench_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_case.h"
#include "case_text.h"
#include "rowmax/version.h"
#include "runner.h"
#include "table.h"
#include "testkit/inputs.h"
#include "testkit/runner.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

using Json = nlohmann::ordered_json;

struct GpuResult {
  std::string text;
  std::string kernel;
  double flops = 0.0;
  double predicted = 0.0;  // seconds
  std::vector<double> seconds;
};

std::vector<GpuResult> bench_one(const testkit::Case& spec, const GpuBenchOptions& options,
                                 Progress& progress) {
  const std::string text = testkit::to_string(spec);
  progress.show("preparing " + text);
  const std::unique_ptr<testkit::CaseInputs> inputs =
      require(testkit::CaseInputs::create(spec), text);
  const Plan chosen = require(make_plan(spec.problem, options.device), text);
  std::vector<std::string> kernels = {chosen.kernel()};
  if (options.every_kernel) {
    kernels = testkit::serving_kernels(chosen);
  }
  std::vector<GpuResult> results;
  for (const std::string& kernel : kernels) {
    progress.show(fmt::format("{}: {}", text, kernel));
    PlanOptions plan_options;
    plan_options.force_kernel = kernel;
    const Plan plan = require(make_plan(spec.problem, options.device, plan_options), text);
    results.push_back(
        {text, kernel, case_flops(spec, *inputs), testkit::predicted_seconds(plan),
         require(testkit::time_on_gpu(plan, *inputs, options.rounds, options.round_seconds),
                 text)});
  }
  return results;
}

std::string json_lines(const std::vector<GpuResult>& results, const DeviceInfo& device) {
  std::string lines;
  for (const GpuResult& result : results) {
    const Json line = {{"case", result.text},
                       {"kernel", result.kernel},
                       {"device", device.name},
                       {"version", ROWMAX_VERSION_STRING},
                       {"seconds_median", median(result.seconds)},
                       {"seconds_p10", quantile(result.seconds, 0.1)},
                       {"predicted_seconds", result.predicted},
                       {"tflops", result.flops / median(result.seconds) * 1e-12}};
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return lines;
}

}  // namespace

int bench_on_gpu(const std::vector<testkit::Case>& cases, const GpuBenchOptions& options) {
  Progress progress;
  std::vector<GpuResult> results;
  for (const testkit::Case& spec : cases) {
    std::vector<GpuResult> found =
        with_memory_for(spec, [&] { return bench_one(spec, options, progress); });
    std::move(found.begin(), found.end(), std::back_inserter(results));
  }
  progress.show("");
  const std::string lines = json_lines(results, options.device);
  if (options.json == "-") {
    fmt::print("{}", lines);
    return kExitOk;
  }
  if (!options.json.empty()) {
    require(write_file_atomically(options.json, {lines}));
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
