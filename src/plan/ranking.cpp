#include "plan/ranking.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace rowmax::plan {

RankingPlace ranking_place(const AttentionProblem& problem) {
  const Sizes& s = problem.sizes;
  const double rows = static_cast<double>(s.batch) * static_cast<double>(s.heads_q) *
                      static_cast<double>(s.seqlen_q);
  const double pairs = static_cast<double>(count_work(problem).visible_pairs);
  return {problem.band.is_full() ? MaskClass::kFull : MaskClass::kBanded,
          rows > 0.0 ? pairs / rows : 0.0};
}

RankingFactors ranking_weights(double keys) {
  RankingFactors weights = {};
  const double within = std::clamp(keys, kRankingKeys.front(), kRankingKeys.back());
  size_t above = 1;
  while (kRankingKeys[above] < within) {
    ++above;
  }
  const double below = kRankingKeys[above - 1];
  weights[above] = std::log(within / below) / std::log(kRankingKeys[above] / below);
  weights[above - 1] = 1.0 - weights[above];
  return weights;
}

double ranking_factor(RankingTable table, const RankingPlace& place, const KernelConfig& config) {
  if (config.step != StepKind::kForward) {  // the one pass that is tuned so far
    return 1.0;
  }
  const RankingFactors weights = ranking_weights(place.keys);
  double sum = 0.0;  // of the class's entries, in logarithms
  int count = 0;
  for (const RankingEntry& entry : table) {
    if (entry.problems != place.problems) {
      continue;
    }
    double logarithm = 0.0;
    for (size_t point = 0; point < weights.size(); ++point) {
      logarithm += weights[point] * std::log(entry.factors[point]);
    }
    if (entry.kernel == config.name) {
      return std::exp(logarithm);
    }
    sum += logarithm;
    ++count;
  }
  return count > 0 ? std::exp(sum / count) : 1.0;
}

RankingTable sm90_ranking() {
#define ROWMAX_RANKING(kernel, problems, ...) {#kernel, MaskClass::problems, {__VA_ARGS__}},
  static const std::vector<RankingEntry> kTable = {
#include "plan/ranking_sm90.def"
  };
#undef ROWMAX_RANKING
  return kTable;
}

}  // namespace rowmax::plan
