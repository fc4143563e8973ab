// From measured times to the ranking table: arithmetic and text alone.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/ranking.h"

namespace rowmax::app {

// One kernel on one case.
struct TimedKernel {
  std::string text;  // the case
  std::string kernel;
  double seconds = 0.0;        // measured
  double model_seconds = 0.0;  // of the cost model alone
  plan::RankingPlace place;
  bool fitted = true;  // false: counts as a result of the planner's choice, not for the table
                       // (docs/add_a_kernel.md says which)
};

// An entry for every kernel and class of problems among the fitted times, sorted by both: the
// factors that come nearest to measured / model in the least-squares sense of their logarithms, in
// thousandths. Where little was measured a kernel's factors follow those of all kernels on the
// class.
std::vector<plan::RankingEntry> fit_ranking(std::span<const TimedKernel> times);

// The text of src/plan/ranking_sm90.def; `source` says what it was made of.
std::string ranking_text(plan::RankingTable table, const std::string& source);

// The measured kernel that took least; the times are of one case and not empty.
const TimedKernel& best_of(std::span<const TimedKernel> times);

// How much longer than the best one a kernel took: 0.02 is 2 %. None when it was not measured.
std::optional<double> loss_of(std::span<const TimedKernel> times, const std::string& kernel);

}  // namespace rowmax::app
