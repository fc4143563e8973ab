#include "tune_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "api/backends.h"
#include "plan/planner.h"
#include "testkit/case.h"
#include "testkit/runner.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

using Json = nlohmann::json;

// Kernels contend whose times the model puts within this factor of the least of a case: larger than
// the model's errors between rows.
constexpr double kWithin = 1.5;
// Shorter problems are bound by memory: what they take says nothing of a row's inner loop.
constexpr int64_t kFittedRows = 256;

Result<Plan> plan_with(plan::RankingTable table, const AttentionProblem& problem,
                       const DeviceInfo& device, const std::string& kernel) {
  PlanOptions options;
  options.force_kernel = kernel;
  return make_plan_with(problem, device, options, all_backends(), table);
}

DeviceInfo device_of(const Json& line) {
  DeviceInfo device;
  device.kind = "cuda";
  device.name = line.at("device").get<std::string>();
  device.isa = line.at("isa").get<std::string>();
  device.cores = line.at("multiprocessors").get<int>();
  device.clock_ghz = line.at("clock_ghz").get<double>();
  device.memory_gbps = line.at("memory_gbps").get<double>();
  return device;
}

// Refuses a line of another device or build than the first one's: the table is of one.
void check_source(const Json& line, const Json& first) {
  for (const char* key :
       {"device", "isa", "multiprocessors", "clock_ghz", "memory_gbps", "version"}) {
    if (line.at(key) != first.at(key)) {
      bad_input(fmt::format("{} is {}, that of the first line {}; accepted: one device and version",
                            key, line.at(key).dump(), first.at(key).dump()));
    }
  }
}

std::string source_of(const Json& line) {
  return fmt::format("{}, rowmax {}", line.at("device").get<std::string>(),
                     line.at("version").get<std::string>());
}

AttentionProblem problem_of(const std::string& text) {
  return require(testkit::parse_case(text), fmt::format("case \"{}\"", text)).problem;
}

// The problem holds bounds of the lengths, not the lengths.
bool has_own_lengths(const Storage& storage) {
  return storage.query == Source::kRagged || storage.key == Source::kRagged || storage.seqused_q ||
         storage.seqused_k;
}

double positive(const Json& line, const char* key) {
  const double value = line.at(key).get<double>();
  if (!(value > 0.0)) {
    bad_input(fmt::format("{} is {}; accepted: a positive number", key, value));
  }
  return value;
}

// Lines that were read: the first, and where each kernel of a case has its time.
struct ReadLines {
  Json first;
  std::map<std::pair<std::string, std::string>, int> numbers;
};

void add_line(const Json& line, int number, ReadLines& read, TuneTimes& all) {
  if (read.first.is_null()) {
    all.source = source_of(line);
    all.device = device_of(line);
    read.first = line;
  }
  check_source(line, read.first);
  TimedKernel time;
  time.text = line.at("case").get<std::string>();
  time.kernel = line.at("kernel").get<std::string>();
  if (const auto [at, added] = read.numbers.try_emplace({time.text, time.kernel}, number); !added) {
    bad_input(
        fmt::format("kernel {} of case \"{}\" has its time in line {}; accepted: one time of "
                    "a kernel a case",
                    time.kernel, time.text, at->second));
  }
  time.seconds = std::sqrt(positive(line, "seconds_median") * positive(line, "seconds_p10"));
  const AttentionProblem problem = problem_of(time.text);
  const Result<Plan> plan = plan_with({}, problem, all.device, time.kernel);
  if (!plan.ok()) {
    ++all.unknown;
    return;
  }
  time.model_seconds = testkit::predicted_seconds(*plan);
  time.place = plan::ranking_place(problem);
  time.fitted = !has_own_lengths(problem.storage) && problem.sizes.seqlen_q >= kFittedRows;
  all.times.push_back(std::move(time));
}

// Lines of kernels that do not contend in this tree say nothing of those that do.
void fit_contenders_only(TuneTimes& all) {
  std::map<std::string, std::vector<std::string>> fitted;  // kernels of a case
  for (TimedKernel& time : all.times) {
    const auto [at, added] = fitted.try_emplace(time.text);
    if (added) {
      at->second =
          contenders(require(plan_with({}, problem_of(time.text), all.device, "")), all.device);
    }
    time.fitted = time.fitted &&
                  std::find(at->second.begin(), at->second.end(), time.kernel) != at->second.end();
  }
}

// Files that were put together have lines of a case in several places.
void group_by_case(std::vector<TimedKernel>& times) {
  std::map<std::string, size_t> places;
  for (const TimedKernel& time : times) {
    places.try_emplace(time.text, places.size());
  }
  std::stable_sort(times.begin(), times.end(),
                   [&places](const TimedKernel& a, const TimedKernel& b) {
                     return places.at(a.text) < places.at(b.text);
                   });
}

}  // namespace

TuneTimes read_times(const std::string& lines, const std::string& name) {
  TuneTimes all;
  ReadLines read;
  std::istringstream stream(lines);
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    try {
      add_line(Json::parse(line), number, read, all);
    } catch (const Json::exception& error) {
      bad_input(fmt::format("{}:{}: {}", name, number, error.what()));
    } catch (const Failure& failure) {
      bad_input(fmt::format("{}:{}: {}", name, number, failure.what()));
    }
  }
  if (all.times.empty()) {
    bad_input(
        fmt::format("{}: no time of a kernel of this build; accepted: lines of rowmax tune "
                    "--json",
                    name));
  }
  group_by_case(all.times);
  fit_contenders_only(all);
  return all;
}

std::vector<std::string> contenders(const Plan& plan, const DeviceInfo& device) {
  std::vector<std::pair<double, std::string>> kernels;
  for (const std::string& kernel : testkit::contending_kernels(plan)) {
    const Plan forced = require(plan_with({}, plan.problem(), device, kernel));
    kernels.emplace_back(testkit::predicted_seconds(forced), kernel);
  }
  const double least = std::min_element(kernels.begin(), kernels.end())->first;
  std::vector<std::string> names;
  for (const auto& [seconds, kernel] : kernels) {
    if (seconds <= kWithin * least) {
      names.push_back(kernel);
    }
  }
  return names;
}

std::string choice_with(plan::RankingTable table, const std::string& text,
                        const DeviceInfo& device) {
  return require(plan_with(table, problem_of(text), device, "")).kernel();
}

}  // namespace rowmax::app
