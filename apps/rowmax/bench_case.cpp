#include "bench_case.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>

#include "table.h"
#include "testkit/judge.h"
#include "testkit/naive.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

using Clock = std::chrono::steady_clock;

// A "Vm...: N kB" line of /proc/self/status in bytes; 0 when there is none.
int64_t status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size() + 1, name + ":") == 0) {
      return std::atoll(line.c_str() + name.size() + 1) * 1024;
    }
  }
  return 0;
}

int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 13, "MemAvailable:") == 0) {
      return std::atoll(line.c_str() + 13) * 1024;
    }
  }
  return 0;
}

// Growth of the resident set's peak while `work` runs; 0 when the kernel does not let us reset the
// peak. Large blocks must come from mmap, so that none of them is reused unseen, and in small
// pages, so that only touched memory counts.
int64_t measured_growth(const std::function<void()>& work) {
  constexpr int kMmapThreshold = 64 * 1024;
  ::mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  ::malloc_trim(0);
  bool reset = false;
  {
    std::ofstream file("/proc/self/clear_refs");
    file << "5" << std::flush;
    reset = file.good();
  }
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  const int64_t before = status_bytes("VmRSS");
  work();
  const int64_t peak = status_bytes("VmHWM");
  ::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
  return reset && before > 0 ? std::max<int64_t>(peak - before, 0) : 0;
}

double timed(const std::function<void()>& work, int calls) {
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) {
    work();
  }
  return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
}

int calls_for(double seconds, double round_seconds) {
  constexpr double kMost = 10000.0;
  return static_cast<int>(std::clamp(std::ceil(round_seconds / seconds), 1.0, kMost));
}

// Rows [begin, begin + count) of a (B, Sq, Hq, D) view, or of a (B, Hq, Sq) view of axis 2.
template <class View>
View rows_of(View view, int axis, int64_t begin, int64_t count) {
  const int64_t offset = begin * view.strides[axis] * static_cast<int64_t>(size_of(view.dtype));
  if constexpr (std::is_same_v<View, TensorView>) {
    view.data = static_cast<char*>(view.data) + offset;
  } else {
    view.data = static_cast<const char*>(view.data) + offset;
  }
  view.sizes[axis] = count;
  return view;
}

// Whether a block of query rows is a problem of its own with the same band.
bool can_sample(const AttentionProblem& p) {
  const ScoreOptions& score = p.score;
  return p.op == Op::kForward && p.lse && p.storage.query == Source::kDense &&
         p.storage.key == Source::kDense && !p.storage.seqused_q && !p.storage.seqused_k &&
         p.band.alignment == Alignment::kBottomRight && !score.mask.present &&
         !score.bias.present && !score.alibi && !score.document_ids && score.dropout_p == 0.0;
}

void merge_checks(const std::vector<TensorCheck>& part, std::vector<TensorCheck>* all) {
  if (all->empty()) {
    *all = part;
    return;
  }
  for (size_t i = 0; i < part.size(); ++i) {
    TensorCheck& check = (*all)[i];
    check.max_error = std::max(check.max_error, part[i].max_error);
    if (part[i].ratio > check.ratio) {
      check.ratio = part[i].ratio;
      check.limit = part[i].limit;
    }
    if (check.pass && !part[i].pass) {
      check.pass = false;
      check.detail = part[i].detail;
    }
  }
}

// The reference takes long for long sequences: beyond kSampledWork multiply-adds only blocks of
// rows are checked. With a full band any block is a problem of its own; with another band the last.
void check_result(const testkit::Case& spec, const testkit::CaseInputs& inputs,
                  BenchResult* result) {
  constexpr double kSampledWork = 2.5e8;
  constexpr int64_t kBlockRows = 16;
  const AttentionProblem& problem = spec.problem;
  if (result->flops / 2.0 <= kSampledWork || !can_sample(problem) ||
      problem.sizes.seqlen_q <= 3 * kBlockRows) {
    result->checks = check_against_reference(problem, inputs.tensors());
    return;
  }
  const int64_t last = problem.sizes.seqlen_q - kBlockRows;
  std::vector<int64_t> begins = {last};
  if (problem.band.is_full()) {
    begins = {0, last / 2, last};
  }
  AttentionProblem block = problem;
  block.sizes.seqlen_q = kBlockRows;
  for (const int64_t begin : begins) {
    AttentionTensors tensors = inputs.tensors();
    tensors.q = rows_of(tensors.q, 1, begin, kBlockRows);
    tensors.out = rows_of(tensors.out, 1, begin, kBlockRows);
    tensors.lse = rows_of(tensors.lse, 2, begin, kBlockRows);
    merge_checks(check_against_reference(block, tensors), &result->checks);
    result->checked_rows += kBlockRows;
  }
}

}  // namespace

std::vector<double> BenchResult::ratios() const {
  std::vector<double> out;
  for (size_t i = 0; naive && i < naive->seconds.size(); ++i) {
    out.push_back(naive->seconds[i] / ours.seconds[i]);
  }
  return out;
}

std::string BaselineBudget::reason_to_skip(const AttentionProblem& problem,
                                           const BenchLimits& limits) const {
  const int64_t needed = testkit::naive_bytes(problem, limits.threads);
  const int64_t available = available_bytes();
  if (available > 0 && needed > available / 2) {
    return fmt::format("needs {} of {} available", bytes_text(static_cast<double>(needed)),
                       bytes_text(static_cast<double>(available)));
  }
  const double seconds = count_work(problem).flops / rate_;
  if (seconds > limits.baseline_seconds) {
    return fmt::format("would take about {}", time_text(seconds));
  }
  return "";
}

// A call without visible pairs says nothing of the rate, a short one only what a call costs.
void BaselineBudget::record(double flops, double seconds) {
  constexpr double kMeasurableFlops = 1e7;  // 5 ms at the first guess
  if (flops >= kMeasurableFlops && seconds > 0.0) {
    rate_ = flops / seconds;
  }
}

double case_flops(const testkit::Case& spec, const testkit::CaseInputs& inputs) {
  AttentionProblem one = spec.problem;
  one.sizes.batch = 1;
  one.storage = {};
  double flops = 0.0;
  for (int64_t b = 0; b < spec.problem.sizes.batch; ++b) {
    const SequenceExtent extent = sequence_extent(inputs.args(), b);
    one.sizes.seqlen_q = extent.q_len;
    one.sizes.seqlen_k = extent.k_len;
    flops += count_work(one).flops;
  }
  return flops;
}

BenchResult bench_case(const testkit::Case& spec, const BenchLimits& limits, BaselineBudget* budget,
                       Progress& progress) {
  BenchResult result;
  result.spec = spec;
  progress.show("preparing " + testkit::to_string(spec));
  const std::unique_ptr<testkit::CaseInputs> inputs =
      require(testkit::CaseInputs::create(spec), testkit::to_string(spec));
  result.flops = case_flops(spec, *inputs);

  // The first calls warm up, measure memory and say how many calls fill a round.
  std::unique_ptr<Runner> runner;
  progress.show("warm-up " + testkit::to_string(spec));
  result.ours.measured_bytes = measured_growth([&] {
    runner = std::make_unique<Runner>(spec.problem, "", limits.threads);
    runner->run(inputs->tensors());
  });
  result.kernel = runner->plan().kernel();
  result.ours.planned_bytes = static_cast<int64_t>(runner->workspace_bytes());
  if (limits.check) {
    progress.show("checking " + testkit::to_string(spec));
    check_result(spec, *inputs, &result);
  }
  const auto ours = [&] { runner->run(inputs->tensors()); };
  const auto naive = [&] { testkit::run_naive(spec.problem, inputs->args(), limits.threads); };
  const double our_seconds = timed(ours, 1);
  const int our_calls = calls_for(our_seconds, limits.round_seconds);
  int naive_calls = 0;
  double naive_seconds = 0.0;
  if (budget != nullptr) {
    result.naive_skipped = budget->reason_to_skip(spec.problem, limits);
  }
  if (budget != nullptr && result.naive_skipped.empty()) {
    progress.show("naive warm-up " + testkit::to_string(spec));
    result.naive.emplace();
    result.naive->planned_bytes = testkit::naive_bytes(spec.problem, limits.threads);
    result.naive->measured_bytes = measured_growth([&] { naive_seconds = timed(naive, 1); });
    budget->record(result.flops, naive_seconds);
    naive_calls = calls_for(naive_seconds, limits.round_seconds);
  }
  const double round_seconds = our_seconds * our_calls + naive_seconds * naive_calls;
  const int rounds = static_cast<int>(
      std::clamp(limits.case_seconds / round_seconds, 1.0, static_cast<double>(limits.rounds)));
  for (int round = 0; round < rounds; ++round) {
    progress.show(fmt::format("round {} of {} {}", round + 1, rounds, testkit::to_string(spec)));
    result.ours.seconds.push_back(timed(ours, our_calls));
    if (result.naive) {
      result.naive->seconds.push_back(timed(naive, naive_calls));
    }
  }
  return result;
}

}  // namespace rowmax::app
