// rowmax verify: cases against the fp64 reference.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "case_text.h"
#include "check.h"
#include "option_checks.h"
#include "rowmax/version.h"
#include "runner.h"
#include "testkit/fuzz.h"
#include "testkit/inputs.h"
#include "testkit/runner.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kFuzzSuite = "fuzz";
// A run of this many random cases must have seen every feature.
constexpr int64_t kCoverageCount = 500;
// And this share of them must have crossed the tiles in both directions.
constexpr double kSpanningShare = 0.3;
// Bits are compared between one thread and this many.
constexpr int kManyThreads = 3;
constexpr double kPortableShare = 0.3;

struct Options {
  std::vector<std::string> cases;
  std::string suite;
  std::string kernel;
  std::string device_name = "cpu";
  DeviceInfo device;  // of device_name
  int threads = 0;
  uint64_t seed = 1;
  int64_t count = 200;
  double seconds = 0.0;
  bool json = false;
};

// What happened to one case.
struct Outcome {
  std::string text;
  std::string kernel;
  double ratio = 0.0;
  bool pass = false;
  bool bad_input = false;
  std::string failure;
  std::vector<TensorCheck> checks;
};

struct Summary {
  int64_t cases = 0;
  int64_t failed = 0;
  int64_t bad_input = 0;
  int64_t declined = 0;  // GPU: cases that no kernel serves
  double worst_ratio = 0.0;
  std::string worst_case;
  Json cases_json = Json::array();
};

// The bits of every output of a run with `threads` threads.
Result<testkit::OutputValues> outputs_of(const testkit::Case& spec, testkit::CaseInputs& inputs,
                                         const Options& options, int threads) {
  PlanOptions plan_options;
  plan_options.force_kernel = options.kernel;
  const Result<Plan> plan = make_plan(spec.problem, options.device, plan_options);
  if (!plan) {
    return plan.status();
  }
  const Status status = testkit::execute_case(*plan, inputs, threads, nullptr);
  if (!status) {
    return status;
  }
  return testkit::gather(spec.problem, inputs.args());
}

// Empty when one thread and several give the same bits, else the first difference.
std::string thread_difference(const testkit::Case& spec, const Options& options) {
  const auto inputs = testkit::CaseInputs::create(spec);
  if (!inputs) {
    return inputs.status().message();
  }
  const Result<testkit::OutputValues> one = outputs_of(spec, **inputs, options, 1);
  const Result<testkit::OutputValues> many = outputs_of(spec, **inputs, options, kManyThreads);
  if (!one || !many) {
    return (one ? many : one).status().message();
  }
  for (size_t output = 0; output < testkit::kOutputCount; ++output) {
    const std::vector<double>& a = (*one)[output];
    const std::vector<double>& b = (*many)[output];
    for (size_t i = 0; i < a.size(); ++i) {
      if (std::memcmp(&a[i], &b[i], sizeof(double)) != 0) {
        return fmt::format("{} differs between 1 and {} threads: element {} is {} and {}",
                           testkit::to_string(static_cast<testkit::Output>(output)), kManyThreads,
                           i, a[i], b[i]);
      }
    }
  }
  return "";
}

Outcome outcome_of(const testkit::Case& spec, const testkit::RunReport& report) {
  Outcome outcome;
  outcome.text = testkit::to_string(spec);
  outcome.kernel = report.kernel;
  outcome.ratio = report.worst_ratio();
  outcome.pass = report.passed();
  outcome.bad_input = report.status.code() == StatusCode::kInvalidArgument ||
                      report.status.code() == StatusCode::kUnsupported;
  for (const testkit::OutputReport& output : report.outputs) {
    outcome.checks.push_back(check_of(output));
  }
  if (!outcome.pass) {
    outcome.failure = report.text();
  }
  return outcome;
}

Outcome run_and_compare(const testkit::Case& spec, const Options& options) {
  const testkit::RunReport report = testkit::run_case(
      spec, {.kernel = options.kernel, .threads = options.threads, .device = options.device});
  Outcome outcome = outcome_of(spec, report);
  if (outcome.pass) {
    outcome.failure = thread_difference(spec, options);
    if (!outcome.failure.empty()) {
      outcome.failure += "\n  " + report.repro;
      outcome.pass = false;
    }
  }
  return outcome;
}

Outcome run_one(const testkit::Case& spec, const Options& options) {
  return with_memory_for(spec, [&] { return run_and_compare(spec, options); });
}

Json json_of(const Outcome& outcome) {
  Json entry = {{"case", outcome.text}, {"kernel", outcome.kernel}, {"pass", outcome.pass}};
  for (const TensorCheck& check : outcome.checks) {
    entry["checks"].push_back(json_of(check));
  }
  if (!outcome.pass) {
    entry["failure"] = outcome.failure;
  }
  return entry;
}

void report_outcome(const Outcome& outcome, const Options& options, Progress& progress,
                    Summary* summary) {
  ++summary->cases;
  summary->failed += outcome.pass ? 0 : 1;
  summary->bad_input += outcome.bad_input ? 1 : 0;
  if (outcome.ratio > summary->worst_ratio) {
    summary->worst_ratio = outcome.ratio;
    summary->worst_case = outcome.text;
  }
  if (options.json) {
    if (options.suite != kFuzzSuite || !outcome.pass) {
      summary->cases_json.push_back(json_of(outcome));
    }
    return;
  }
  if (!outcome.pass) {
    progress.show("");
    fmt::print("FAIL  {}\n{}\n", outcome.text, outcome.failure);
  } else if (options.suite != kFuzzSuite) {
    progress.show("");
    fmt::print("PASS  {:5.3f}  {:<28}  {}\n", outcome.ratio, outcome.kernel, outcome.text);
  }
}

int finish(const Options& options, const Summary& summary, Json extra, bool covered) {
  const bool pass = summary.failed == 0 && covered;
  if (options.json) {
    Json object = {{"command", "verify"},
                   {"version", ROWMAX_VERSION_STRING},
                   {"device", options.device.name},
                   {"isa", options.device.isa},
                   {"cases", summary.cases},
                   {"declined", summary.declined},
                   {"failed", summary.failed},
                   {"worst_ratio", json_number(summary.worst_ratio)},
                   {"worst_case", summary.worst_case},
                   {"pass", pass},
                   {"results", summary.cases_json}};
    object.update(extra);
    fmt::print("{}\n", object.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else {
    if (summary.declined > 0) {
      fmt::print("\n{} cases that no kernel of {} serves", summary.declined, options.device.name);
    }
    fmt::print("\n{} cases, {} failed; largest error / limit {:.3f} in \"{}\"\n{}\n", summary.cases,
               summary.failed, summary.worst_ratio, summary.worst_case, pass ? "PASS" : "FAIL");
  }
  if (summary.bad_input > 0 && summary.bad_input == summary.failed) {
    return kExitBadInput;
  }
  return pass ? kExitOk : kExitCheckFailed;
}

// On a GPU every kernel that serves the case runs it. Cases of a suite that none serves count as
// declined.
void run_on_every_kernel(const testkit::Case& spec, const Options& options, Progress& progress,
                         Summary* summary) {
  std::vector<std::string> kernels = {options.kernel};
  if (options.kernel.empty()) {
    const Result<Plan> plan = make_plan(spec.problem, options.device);
    const bool unsupported = (!plan && plan.status().code() == StatusCode::kUnsupported) ||
                             spec.strides == testkit::StrideKind::kPadded;  // rows are not aligned
    if (unsupported && options.cases.empty()) {
      ++summary->declined;
      return;
    }
    if (plan) {
      kernels = testkit::serving_kernels(*plan);
    }
  }
  constexpr int kRuns = 2;
  const auto reports = with_memory_for(spec, [&] {
    return testkit::run_kernels(spec, kernels, {.device = options.device, .runs = kRuns});
  });
  for (const testkit::RunReport& report : reports) {
    report_outcome(outcome_of(spec, report), options, progress, summary);
  }
}

int run_cases(const Options& options) {
  const std::vector<testkit::Case> cases =
      read_cases(options.cases, options.suite, "smoke", kFuzzSuite);
  Progress progress;
  Summary summary;
  for (size_t i = 0; i < cases.size(); ++i) {
    progress.show(fmt::format("{} of {}: {}", i + 1, cases.size(), testkit::to_string(cases[i])));
    if (options.device.kind == "cpu") {
      report_outcome(run_one(cases[i], options), options, progress, &summary);
    } else {
      run_on_every_kernel(cases[i], options, progress, &summary);
    }
  }
  progress.show("");
  return finish(options, summary, Json::object(), true);
}

// The instruction set is limited through the documented variable for a share of the cases.
class IsaLimit {
 public:
  explicit IsaLimit(bool portable) : portable_(portable) {
    const char* before = std::getenv(kVariable);
    had_value_ = before != nullptr;
    value_ = had_value_ ? before : "";
    if (portable_) {
      ::setenv(kVariable, "portable", 1);
    }
  }
  ~IsaLimit() {
    if (portable_) {
      had_value_ ? ::setenv(kVariable, value_.c_str(), 1) : ::unsetenv(kVariable);
    }
  }
  IsaLimit(const IsaLimit&) = delete;
  IsaLimit& operator=(const IsaLimit&) = delete;

 private:
  static constexpr const char* kVariable = "ROWMAX_MAX_ISA";
  bool portable_;
  bool had_value_ = false;
  std::string value_;
};

int run_fuzz(Options options) {
  std::map<std::string, int64_t> counters;
  for (const std::string& feature : testkit::all_features()) {
    counters[feature] = 0;
  }
  counters["isa portable"] = 0;
  counters["isa " + host_device().isa] = 0;
  testkit::Random random(options.seed);
  const bool any_threads = options.threads == 0;
  const auto begin = Clock::now();
  const auto elapsed = [begin] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  Progress progress;
  Summary summary;
  for (int64_t n = 0; n < options.count; ++n) {
    if (options.seconds > 0.0 && elapsed() > options.seconds) {
      break;
    }
    const testkit::Case spec = options.device.kind == "cpu" ? testkit::random_case(&random)
                                                            : testkit::random_gpu_case(&random);
    const bool portable = random.chance(kPortableShare);
    if (any_threads) {
      constexpr int kCounts[] = {1, 2, 3, 5, 8};
      options.threads = kCounts[random.integer(0, std::ssize(kCounts) - 1)];
    }
    progress.show(fmt::format("{} of {}: {}", n + 1, options.count, testkit::to_string(spec)));
    const IsaLimit limit(portable);
    if (options.device.kind != "cpu") {
      run_on_every_kernel(spec, options, progress, &summary);
      continue;
    }
    Outcome outcome = run_one(spec, options);
    if (!outcome.pass && portable) {
      outcome.failure += "\n  with ROWMAX_MAX_ISA=portable";
    }
    for (const std::string& feature : testkit::features_of(spec)) {
      ++counters[feature];
    }
    ++counters["isa " + host_device().isa];
    report_outcome(outcome, options, progress, &summary);
  }
  progress.show("");
  if (options.device.kind != "cpu") {
    return finish(options, summary, {{"seed", options.seed}, {"seconds", elapsed()}},
                  summary.cases > 0);
  }
  bool covered = true;
  Json counts = Json::object();
  for (const auto& [name, count] : counters) {
    counts[name] = count;
    covered = covered && count > 0;
    if (!options.json) {
      fmt::print("{:>7}  {}{}\n", count, name, count == 0 ? "  NEVER" : "");
    }
  }
  covered = covered && static_cast<double>(counters["spans tiles"]) >=
                           kSpanningShare * static_cast<double>(summary.cases);
  covered = covered || summary.cases < kCoverageCount;
  return finish(options, summary,
                {{"seed", options.seed}, {"seconds", elapsed()}, {"counters", counts}}, covered);
}

int run(Options options) {
  options.device = require(find_device(options.device_name));
  if (options.device.kind != "cpu" && !options.device_name.starts_with("cuda")) {
    bad_input(
        fmt::format("--device is '{}', a model for rowmax explain; accepted: cpu, cuda, cuda:N",
                    options.device_name));
  }
  const bool fuzz = options.suite == kFuzzSuite && options.cases.empty();
  return fuzz ? run_fuzz(options) : run_cases(options);
}

constexpr const char* kFooter =
    R"(Each line shows the largest error / limit of the case; the limit follows docs/numerics.md. Every
case is run with poisoned memory, and its bits are compared between 1 and 3 threads. On a GPU every
kernel that serves a case runs it on all multiprocessors and on one, and the bits are compared.
Exit codes are those of rowmax --help; also 1 when fuzz left a feature untested, and 2 when no
kernel serves a case.

Examples:
  rowmax verify --suite ci
  rowmax verify "backward bf16 b2 hq8 hkv2 s200 d64 causal seed7"
  rowmax verify --suite fuzz --count 2000 --seed 5)";

}  // namespace

Verb add_verify(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("cases", options->cases, "cases, each quoted; or the words of one case");
  app.add_option("--suite", options->suite, suite_names(kFuzzSuite) + " (default: smoke)")
      ->check(not_empty(suite_names(kFuzzSuite)));
  app.add_option("--kernel", options->kernel, "force a kernel by its exact name")
      ->check(not_empty("the name of a kernel"));
  app.add_option("--device", options->device_name, "cpu (default), cuda or cuda:N")
      ->check(not_empty("cpu, cuda, cuda:N"));
  app.add_option("--threads", options->threads, "threads (0: all; fuzz: varied)")
      ->check(integer(0, kMaxThreads));
  app.add_option("--seed", options->seed, "fuzz: seed of the generator")->check(unsigned_integer());
  app.add_option("--count", options->count, "fuzz: number of cases")
      ->check(integer(1, int64_t{1} << 40));
  app.add_option("--seconds", options->seconds, "fuzz: stop after this time")->check(seconds());
  app.add_flag("--json", options->json, "one JSON object instead of text");
  app.footer(kFooter);
  return [options] { return run(*options); };
}

}  // namespace rowmax::app
