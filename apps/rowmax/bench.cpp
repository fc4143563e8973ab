// rowmax bench: times of cases, against a naive implementation when asked.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_case.h"
#include "bench_gpu.h"
#include "case_text.h"
#include "option_checks.h"
#include "plot.h"
#include "rowmax/version.h"
#include "table.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> cases;
  std::string suite;
  std::string json;
  std::string plot;
  std::string baseline;
  std::string device = "cpu";
  bool every_kernel = false;
  BenchLimits limits;
};

int thread_count(const Options& options) {
  return options.limits.threads > 0 ? options.limits.threads : default_threads();
}

Json json_of(const Measurement& m, double flops) {
  return {{"seconds_median", median(m.seconds)},
          {"seconds_p10", quantile(m.seconds, 0.1)},
          {"gflops", flops / median(m.seconds) * 1e-9},
          {"planned_bytes", m.planned_bytes},
          {"measured_bytes", m.measured_bytes}};
}

// Lines as they are for .jsonl, else the array of them.
std::string as_file(const std::string& lines, const std::string& path) {
  if (path.ends_with(".jsonl")) {
    return lines;
  }
  std::string array = "[\n";
  for (size_t at = 0; at < lines.size();) {
    const size_t end = lines.find('\n', at);
    array += lines.substr(at, end - at);
    at = end + 1;
    array += at < lines.size() ? ",\n" : "\n";
  }
  return array + "]\n";
}

// One line of the JSON file.
std::string json_line(const BenchResult& result, const Options& options) {
  const DeviceInfo device = host_device();
  Json line = {{"case", testkit::to_string(result.spec)},
               {"kernel", result.kernel},
               {"machine", device.name},
               {"isa", device.isa},
               {"threads", thread_count(options)},
               {"version", ROWMAX_VERSION_STRING},
               {"compiler", __VERSION__},
               {"date", date_text()},
               {"rounds", result.ours.seconds.size()},
               {"flops", result.flops},
               {"rowmax", json_of(result.ours, result.flops)}};
  if (result.naive) {
    line["naive"] = json_of(*result.naive, result.flops);
    line["ratio_median"] = median(result.ratios());
    line["ratio_p10"] = quantile(result.ratios(), 0.1);
  } else if (!result.naive_skipped.empty()) {
    line["naive_skipped"] = result.naive_skipped;
  }
  for (const TensorCheck& check : result.checks) {
    line["checks"].push_back(json_of(check));
  }
  if (!result.checks.empty()) {
    line["checked_rows"] = result.checked_rows > 0 ? Json(result.checked_rows) : Json("all");
  }
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string error_text(const BenchResult& result) {
  if (result.checks.empty()) {
    return "";
  }
  double error = 0.0;
  double ratio = 0.0;
  for (const TensorCheck& check : result.checks) {
    error = check.tensor == "lse" ? error : std::max(error, check.max_error);
    ratio = std::max(ratio, check.ratio);
  }
  return fmt::format("{:.1e} ({:.2f}){}{}", error, ratio, result.checked_rows > 0 ? "*" : "",
                     all_pass(result.checks) ? "" : " FAIL");
}

// "1024", or "1 x 8192" (query x key length).
std::string length_text(const Sizes& sizes) {
  return sizes.seqlen_q == sizes.seqlen_k ? fmt::format("{}", sizes.seqlen_k)
                                          : fmt::format("{} x {}", sizes.seqlen_q, sizes.seqlen_k);
}

// The text of a case but for its length, which is a column of its own.
std::string text_without_length(const testkit::Case& spec) {
  const Sizes& sizes = spec.problem.sizes;
  const std::string length = sizes.seqlen_q == sizes.seqlen_k
                                 ? fmt::format(" s{}", sizes.seqlen_k)
                                 : fmt::format(" sq{} sk{}", sizes.seqlen_q, sizes.seqlen_k);
  std::string text = testkit::to_string(spec);
  return text.erase(text.find(length), length.size());
}

std::string peak_text(const Measurement& side) {
  return bytes_text(static_cast<double>(side.peak_bytes()));
}

std::string case_and_kernel(const BenchResult& result) {
  return fmt::format("{}: {}", text_without_length(result.spec), result.kernel);
}

bool same_but_length(const std::vector<BenchResult>& results) {
  return std::all_of(results.begin(), results.end(), [&results](const BenchResult& result) {
    return case_and_kernel(result) == case_and_kernel(results[0]);
  });
}

Table table_of(const std::vector<BenchResult>& results, const Options& options) {
  const bool baseline = !options.baseline.empty();
  const bool name_cases = !same_but_length(results);
  std::vector<std::string> header = {"length", "time", "GFLOP/s"};
  if (baseline) {
    header.insert(header.end(), {"naive time", "ratio", "memory", "naive memory"});
  } else {
    header.push_back("memory");
  }
  if (options.limits.check) {
    header.push_back("error (/ limit)");
  }
  if (name_cases) {
    header.push_back("<case: kernel");
  }
  Table table(header);
  for (const BenchResult& result : results) {
    std::vector<std::string> row = {length_text(result.spec.problem.sizes),
                                    time_text(median(result.ours.seconds)),
                                    number_text(result.gflops())};
    if (result.naive) {
      row.insert(row.end(), {time_text(median(result.naive->seconds)),
                             fmt::format("{:.1f}x", median(result.ratios())),
                             peak_text(result.ours), peak_text(*result.naive)});
    } else if (baseline) {
      row.insert(row.end(), {"skipped", "-", peak_text(result.ours), "-"});
    } else {
      row.push_back(peak_text(result.ours));
    }
    if (options.limits.check) {
      row.push_back(error_text(result));
    }
    if (name_cases) {
      row.push_back(case_and_kernel(result));
    }
    table.add(std::move(row));
  }
  return table;
}

void print_table(const std::vector<BenchResult>& results, const Options& options) {
  const DeviceInfo device = host_device();
  fmt::print("{}, {}, {}; median of up to {} rounds\n", device.name, device.isa,
             threads_text(thread_count(options)), options.limits.rounds);
  if (same_but_length(results)) {
    fmt::print("{}\n", case_and_kernel(results[0]));
  }
  fmt::print("\n{}\n", table_of(results, options).text());
  if (!options.baseline.empty()) {
    fmt::print("ratio: naive time / time, median of the rounds\n");
  }
  fmt::print("memory: peak beyond inputs and outputs\n");
  const int64_t sampled_rows =
      std::max_element(results.begin(), results.end(), [](const auto& a, const auto& b) {
        return a.checked_rows < b.checked_rows;
      })->checked_rows;
  if (sampled_rows > 0) {
    fmt::print("*: checked on {} query rows; the reference takes too long for all\n", sampled_rows);
  }
  for (const BenchResult& result : results) {
    if (!result.naive_skipped.empty()) {
      fmt::print("naive skipped for {}: {}\n", testkit::to_string(result.spec),
                 result.naive_skipped);
    }
  }
}

// Whether a case has a place on the logarithmic axis of lengths.
bool on_plot(const testkit::Case& spec) { return spec.problem.sizes.seqlen_k > 0; }

void check_plot(const std::vector<testkit::Case>& cases) {
  if (std::none_of(cases.begin(), cases.end(), on_plot)) {
    bad_input(
        "--plot with cases of length 0 only; accepted: at least one case of length 1 or more");
  }
}

// What the plot leaves out, for stderr.
void report_left_out(const std::vector<testkit::Case>& cases) {
  for (const testkit::Case& spec : cases) {
    if (!on_plot(spec)) {
      fmt::print(stderr, "rowmax bench: not on the plot, whose axes are logarithmic: {}\n",
                 testkit::to_string(spec));
    }
  }
}

// Time and memory over the key length: for suites whose cases differ in their length only.
std::string plot_of(const std::vector<BenchResult>& results, const Options& options) {
  PlotSeries our_time{"rowmax", {}};
  PlotSeries our_memory{"rowmax", {}};
  PlotSeries naive_time{"naive (stores the scores)", {}};
  PlotSeries naive_memory{"naive (stores the scores)", {}};
  for (const BenchResult& result : results) {
    if (!on_plot(result.spec)) {
      continue;
    }
    const double length = static_cast<double>(result.spec.problem.sizes.seqlen_k);
    our_time.points.emplace_back(length, median(result.ours.seconds));
    our_memory.points.emplace_back(
        length, static_cast<double>(std::max<int64_t>(result.ours.peak_bytes(), 1)));
    if (result.naive) {
      naive_time.points.emplace_back(length, median(result.naive->seconds));
      naive_memory.points.emplace_back(
          length, static_cast<double>(std::max<int64_t>(result.naive->peak_bytes(), 1)));
    }
  }
  const AttentionProblem& problem = results[0].spec.problem;
  const DeviceInfo device = host_device();
  const std::string title = fmt::format(
      "Exact attention, {} {}, {} heads of {}", problem.op == Op::kForward ? "forward" : "backward",
      to_string(problem.dtype), problem.sizes.heads_q, problem.sizes.head_dim);
  const std::string subtitle =
      fmt::format("{}, {}, {}, rowmax {}", device.name, device.isa,
                  threads_text(thread_count(options)), ROWMAX_VERSION_STRING);
  return render_svg(
      title, subtitle,
      {{"Time of one call", "sequence length (log)", AxisUnit::kSeconds, {our_time, naive_time}},
       {"Peak memory beyond inputs and outputs",
        "sequence length (log)",
        AxisUnit::kBytes,
        {our_memory, naive_memory}}});
}

bool all_pass(const std::vector<BenchResult>& results) {
  return std::all_of(results.begin(), results.end(),
                     [](const BenchResult& result) { return all_pass(result.checks); });
}

int run(const Options& options) {
  if (!options.baseline.empty() && options.baseline != "naive") {
    bad_input(fmt::format("--baseline is '{}'; accepted: naive", options.baseline));
  }
  if (options.json != "-") {
    refuse_same_file({"--plot", options.plot}, {{"--json", options.json}});
    refuse_unwritable({"--json", options.json});
  }
  refuse_unwritable({"--plot", options.plot});
  const std::vector<testkit::Case> cases = read_cases(options.cases, options.suite, "bench");
  if (!options.plot.empty()) {
    check_plot(cases);
  }
  if (const DeviceInfo device = require(find_device(options.device)); device.kind != "cpu") {
    if (!options.device.starts_with("cuda")) {
      bad_input(
          fmt::format("--device is '{}', a model for rowmax explain; accepted: cpu, cuda, "
                      "cuda:N",
                      options.device));
    }
    if (!options.baseline.empty() || !options.plot.empty() || options.limits.check) {
      bad_input("--baseline, --plot and --check are for the CPU; on a GPU: rowmax verify --device");
    }
    return bench_on_gpu(cases, options.json,
                        {device, options.every_kernel ? testkit::serving_kernels : chosen_kernel,
                         options.limits.rounds, options.limits.round_seconds});
  }
  Progress progress;
  BaselineBudget budget;
  std::vector<BenchResult> results;
  std::string json;
  for (const testkit::Case& spec : cases) {
    results.push_back(with_memory_for(spec, [&] {
      return bench_case(spec, options.limits, options.baseline.empty() ? nullptr : &budget,
                        progress);
    }));
    json += json_line(results.back(), options);
  }
  progress.show("");
  if (!options.json.empty() && options.json != "-") {
    require(write_file_atomically(options.json, {as_file(json, options.json)}));
  }
  if (!options.plot.empty()) {
    require(write_file_atomically(options.plot, {plot_of(results, options)}));
    report_left_out(cases);
  }
  if (options.json == "-") {
    fmt::print("{}", json);
  } else {
    print_table(results, options);
  }
  return all_pass(results) ? kExitOk : kExitCheckFailed;
}

constexpr const char* kFooter =
    R"(Sides run in turns, round by round; the ratio is the median over the rounds (the JSON also has
the 10th percentile). FLOPs are exact: only visible (row, key) pairs count.
The naive implementation stores the score matrix. It is skipped, with the reason printed, where it
would need more than half of the memory or longer than --baseline-seconds.

Examples:
  rowmax bench "forward f32 b1 h8 s2048 d64 causal" --baseline naive --check
  rowmax bench --suite sweep --baseline naive --plot sweep.svg --json sweep.json)";

}  // namespace

Verb add_bench(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("cases", options->cases, "cases, each quoted; or the words of one case");
  app.add_option("--suite", options->suite, suite_names() + " (default: bench)")
      ->check(not_empty(suite_names()));
  app.add_option(
         "--json", options->json,
         "write the results to this file: a JSON array, or one JSON line a case if it ends in "
         ".jsonl ('-': lines to stdout, instead of the table)")
      ->check(not_empty("the path of a file, or -"));
  app.add_option("--plot", options->plot, "write an SVG of time and memory over the length")
      ->check(not_empty("the path of a file"));
  app.add_option("--baseline", options->baseline, "also time this implementation: naive")
      ->check(not_empty("naive"));
  app.add_option("--baseline-seconds", options->limits.baseline_seconds,
                 "longest predicted call of the baseline that is run")
      ->check(seconds());
  app.add_option("--device", options->device, "cpu (default), cuda or cuda:N")
      ->check(not_empty("cpu, cuda, cuda:N"));
  app.add_flag("--every-kernel", options->every_kernel,
               "on a GPU: every kernel that serves a case, not the planner's choice alone");
  app.add_option("--threads", options->limits.threads, "threads of both sides (0: all)")
      ->check(integer(0, kMaxThreads));
  app.add_option("--rounds", options->limits.rounds, "rounds")->check(integer(1, 10000));
  app.add_option("--case-seconds", options->limits.case_seconds,
                 "fewer rounds, at least one, where they would take longer")
      ->check(seconds());
  app.add_option("--round-seconds", options->limits.round_seconds, "shortest round of one side")
      ->check(seconds());
  app.add_flag("--check", options->limits.check, "also the error against the fp64 reference");
  app.footer(kFooter);
  return [options] { return run(*options); };
}

}  // namespace rowmax::app
