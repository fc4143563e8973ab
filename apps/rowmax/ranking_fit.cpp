#include "ranking_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "plan/cost_cuda.h"

namespace rowmax::app {
namespace {

constexpr size_t kPoints = plan::kRankingKeys.size();

// Least squares by normal equations.
class Fit {
 public:
  // A measured logarithm, as a sum of the points' with these weights.
  void add(const plan::RankingFactors& weights, double logarithm) {
    for (size_t i = 0; i < kPoints; ++i) {
      for (size_t j = 0; j < kPoints; ++j) {
        matrix_[i][j] += weights[i] * weights[j];
      }
      right_[i] += weights[i] * logarithm;
    }
  }

  // Logarithms at the points.
  plan::RankingFactors solve() {
    constexpr double kPull = 1.0 / 64.0;  // of neighbours, beside 1 of a measurement at a point
    plan::RankingFactors difference = {};
    for (size_t i = 0; i + 1 < kPoints; ++i) {
      difference = {};
      difference[i] = -std::sqrt(kPull);
      difference[i + 1] = std::sqrt(kPull);
      add(difference, 0.0);
    }
    // Elimination; the matrix is positive definite once anything was added.
    for (size_t i = 0; i < kPoints; ++i) {
      for (size_t row = i + 1; row < kPoints; ++row) {
        const double factor = matrix_[row][i] / matrix_[i][i];
        for (size_t j = i; j < kPoints; ++j) {
          matrix_[row][j] -= factor * matrix_[i][j];
        }
        right_[row] -= factor * right_[i];
      }
    }
    for (size_t i = kPoints; i-- > 0;) {
      for (size_t j = i + 1; j < kPoints; ++j) {
        right_[i] -= matrix_[i][j] * right_[j];
      }
      right_[i] /= matrix_[i][i];
    }
    return right_;
  }

 private:
  double matrix_[kPoints][kPoints] = {};
  plan::RankingFactors right_ = {};
};

// What the ranking factor multiplies, of a time in seconds.
double beyond_launch(double seconds) {
  constexpr double kLeastShare = 0.1;
  return std::max(seconds - plan::kLaunchUs * 1e-6, kLeastShare * seconds);
}

// Of measured over predicted time.
double logarithm(const TimedKernel& time) {
  return std::log(beyond_launch(time.seconds) / beyond_launch(time.model_seconds));
}

const char* to_text(MaskClass problems) {
  return problems == MaskClass::kFull ? "kFull" : "kBanded";
}

}  // namespace

std::vector<plan::RankingEntry> fit_ranking(std::span<const TimedKernel> times) {
  // Of all kernels on a class of problems; then of each what it differs from that by, so that a
  // kernel without times of some lengths follows the others there.
  std::map<MaskClass, Fit> class_fits;
  for (const TimedKernel& time : times) {
    if (time.fitted) {
      class_fits[time.place.problems].add(plan::ranking_weights(time.place.keys), logarithm(time));
    }
  }
  std::map<MaskClass, plan::RankingFactors> curves;
  for (auto& [problems, fit] : class_fits) {
    curves[problems] = fit.solve();
  }
  std::map<std::pair<std::string, MaskClass>, Fit> fits;
  for (const TimedKernel& time : times) {
    if (time.fitted) {
      const plan::RankingFactors weights = plan::ranking_weights(time.place.keys);
      const plan::RankingFactors& curve = curves[time.place.problems];
      fits[{time.kernel, time.place.problems}].add(
          weights,
          logarithm(time) - std::inner_product(weights.begin(), weights.end(), curve.begin(), 0.0));
    }
  }
  std::vector<plan::RankingEntry> entries;
  for (auto& [name, fit] : fits) {
    plan::RankingFactors factors = fit.solve();
    for (size_t i = 0; i < kPoints; ++i) {
      factors[i] = std::round(std::exp(factors[i] + curves[name.second][i]) * 1000.0) / 1000.0;
    }
    entries.push_back({name.first, name.second, factors});
  }
  return entries;
}

std::string ranking_text(plan::RankingTable table, const std::string& source) {
  std::string text = fmt::format(
      "// Ranking table of the sm90 rows: ROWMAX_RANKING(kernel, class of the problems' bands, "
      "measured\n// over predicted time where a query row sees {:g} keys).\n// Written by `rowmax "
      "tune` (docs/add_a_kernel.md); without rows the cost model alone decides.\n// {}\n",
      fmt::join(plan::kRankingKeys, ", "), source);
  for (const plan::RankingEntry& entry : table) {
    text += fmt::format("ROWMAX_RANKING({}, {}, {:.3f})\n", entry.kernel, to_text(entry.problems),
                        fmt::join(entry.factors, ", "));
  }
  return text;
}

const TimedKernel& best_of(std::span<const TimedKernel> times) {
  return *std::min_element(times.begin(), times.end(),
                           [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
}

std::optional<double> loss_of(std::span<const TimedKernel> times, const std::string& kernel) {
  const auto found = std::find_if(times.begin(), times.end(),
                                  [&](const TimedKernel& time) { return time.kernel == kernel; });
  if (found == times.end()) {
    return std::nullopt;
  }
  return found->seconds / best_of(times).seconds - 1.0;
}

}  // namespace rowmax::app
