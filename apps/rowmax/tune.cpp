// rowmax tune: times the kernels that may serve best, and writes the planner's ranking table.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "bench_gpu.h"
#include "case_text.h"
#include "option_checks.h"
#include "table.h"
#include "tensor_file.h"
#include "tune_times.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

struct Options {
  std::vector<std::string> cases;
  std::string suite;
  std::string device = "cuda";
  std::string json;
  std::string from;
  std::string out;
  int rounds = 5;
  double round_seconds = 0.005;
};

void refuse_repeated(const std::vector<testkit::Case>& cases) {
  std::set<std::string> texts;
  for (const testkit::Case& spec : cases) {
    if (const std::string text = testkit::to_string(spec); !texts.insert(text).second) {
      bad_input(fmt::format("case \"{}\" is given twice; accepted: each case once", text));
    }
  }
}

// What a measurement takes has no meaning for recorded times.
void refuse_with_from(const CLI::App& app) {
  for (const char* name :
       {"cases", "--suite", "--device", "--rounds", "--round-seconds", "--json"}) {
    if (app.count("--from") > 0 && app.count(name) > 0) {
      bad_input(
          fmt::format("--from is given with {}; accepted: --from alone, or with --out", name));
    }
  }
}

// It would take the place of the planner's choice, which the report judges.
void refuse_forced_kernel() {
  const char* name = std::getenv("ROWMAX_FORCE_KERNEL");
  if (name != nullptr && *name != '\0') {
    bad_input(fmt::format("ROWMAX_FORCE_KERNEL is '{}'; accepted: unset or empty", name));
  }
}

std::string measured_lines(const Options& options) {
  if (!options.device.starts_with("cuda")) {
    bad_input(
        fmt::format("--device is '{}'; accepted: cuda, cuda:N (there is a ranking table for "
                    "GPU kernels alone)",
                    options.device));
  }
  const std::vector<testkit::Case> cases = read_cases(options.cases, options.suite, "tune");
  refuse_repeated(cases);
  GpuBenchOptions bench;
  bench.device = require(find_device(options.device));
  bench.kernels = [&bench](const Plan& chosen) { return contenders(chosen, bench.device); };
  bench.rounds = options.rounds;
  bench.round_seconds = options.round_seconds;
  bench.ahead = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) - 1);
  return json_lines(measure_on_gpu(cases, bench, options.json), bench.device);
}

std::string recorded_lines(const Options& options) {
  const Buffer file = require(read_file(options.from));
  return {file.data(), file.bytes()};
}

std::string percent_text(double loss) { return fmt::format("{:.1f} %", loss * 100.0); }

// What the planner chooses with one table, over the cases.
class Choices {
 public:
  Choices(plan::RankingTable table, const DeviceInfo& device) : table_(table), device_(device) {}

  // Loss and kernel of a case, for the report.
  std::pair<std::string, std::string> add(std::span<const TimedKernel> times) {
    const std::string kernel = choice_with(table_, times[0].text, device_);
    const std::optional<double> loss = loss_of(times, kernel);
    if (!loss) {
      ++unmeasured_;
      return {"not measured", kernel};
    }
    most_ = std::max(most_, *loss);
    sum_ += *loss;
    ++measured_;
    return {percent_text(*loss), kernel};
  }

  std::string text() const {
    return fmt::format(
        "at most {} beyond the best kernel, {} on average{}", percent_text(most_),
        percent_text(measured_ > 0 ? sum_ / measured_ : 0.0),
        unmeasured_ > 0 ? fmt::format(" ({} choices not measured)", unmeasured_) : "");
  }

 private:
  plan::RankingTable table_;
  const DeviceInfo& device_;
  double most_ = 0.0;
  double sum_ = 0.0;
  int measured_ = 0;
  int unmeasured_ = 0;
};

// The times of the case that begins at `begin`, which are neighbours.
std::span<const TimedKernel> case_at(std::span<const TimedKernel> times, size_t begin) {
  size_t end = begin;
  while (end < times.size() && times[end].text == times[begin].text) {
    ++end;
  }
  return times.subspan(begin, end - begin);
}

// Best kernel and the planner's choices of every case.
void print_report(const TuneTimes& all, plan::RankingTable ranking) {
  Table table({"time", "<best", "loss", "<with the table", "loss", "<without", "<case"});
  Choices with(ranking, all.device);
  Choices without({}, all.device);
  for (size_t begin = 0; begin < all.times.size();) {
    const std::span<const TimedKernel> times = case_at(all.times, begin);
    const TimedKernel& best = best_of(times);
    const auto [loss, kernel] = with.add(times);
    const auto [loss_without, kernel_without] = without.add(times);
    table.add({time_text(best.seconds), best.kernel, loss, kernel, loss_without, kernel_without,
               best.text});
    begin += times.size();
  }
  fmt::print("{}\n\n{}\nplanner with the table:    {}\nplanner without the table: {}\n", all.source,
             table.text(), with.text(), without.text());
}

int run(const Options& options, const CLI::App& app) {
  refuse_forced_kernel();
  refuse_with_from(app);
  refuse_same_file({"--out", options.out}, {{"--json", options.json}, {"--from", options.from}});
  refuse_unwritable({"--out", options.out});
  refuse_unwritable({"--json", options.json});
  const std::string lines =
      options.from.empty() ? measured_lines(options) : recorded_lines(options);
  const TuneTimes all = read_times(lines, options.from.empty() ? "measurement" : options.from);
  if (all.unknown > 0) {
    fmt::print(stderr, "rowmax tune: {} times left out: this build has no such kernel\n",
               all.unknown);
  }
  const std::vector<plan::RankingEntry> ranking = fit_ranking(all.times);
  if (!options.out.empty()) {
    require(write_file_atomically(options.out, {ranking_text(ranking, all.source)}));
  }
  print_report(all, ranking);
  return kExitOk;
}

constexpr const char* kFooter =
    R"(Every kernel whose time the cost model puts near the least of a case is timed, in turns, round by
round. The table holds measured over predicted time of each kernel by the keys that a query row sees.
The report says what the planner would choose with the new table and with none, and how much longer
than the best kernel that took.

Examples:
  rowmax tune --json times.jsonl --out src/plan/ranking_sm90.def
  rowmax tune --from times.jsonl --out src/plan/ranking_sm90.def     # the same table again, no GPU)";

}  // namespace

Verb add_tune(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("cases", options->cases, "cases, each quoted; or the words of one case");
  app.add_option("--suite", options->suite, suite_names() + " (default: tune)")
      ->check(not_empty(suite_names()));
  app.add_option("--device", options->device, "cuda (default) or cuda:N")
      ->check(not_empty("cuda, cuda:N"));
  app.add_option("--rounds", options->rounds, "rounds")->check(integer(1, 10000));
  app.add_option("--round-seconds", options->round_seconds, "shortest round of one kernel")
      ->check(seconds());
  app.add_option("--json", options->json, "write the times to this file, a JSON line a kernel")
      ->check(not_empty("the path of a file"));
  app.add_option("--from", options->from, "times that were written by --json, instead of measuring")
      ->check(not_empty("the path of a file"));
  app.add_option("--out", options->out, "write the table to this file")
      ->check(not_empty("the path of a file"));
  app.footer(kFooter);
  return [options, &app] { return run(*options, app); };
}

}  // namespace rowmax::app
