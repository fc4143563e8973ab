// The ranking table: what kernel rows took beside what the cost model says. Measured and written by
// `rowmax tune`; without an entry the cost model alone decides.
#pragma once

#include <array>
#include <span>
#include <string>

#include "kernel_api/kernel.h"
#include "rowmax/problem.h"

namespace rowmax::plan {

// Keys that a query row sees, on average, at which an entry holds factors. Between two of them a
// factor is linear in the logarithm of the keys, beyond the ends constant.
inline constexpr std::array<double, 4> kRankingKeys = {256.0, 1024.0, 4096.0, 16384.0};
using RankingFactors = std::array<double, kRankingKeys.size()>;

// One kernel on full or on banded problems: measured over predicted time at kRankingKeys, both
// without the launch. They are
// apart because the model's error differs by them.
struct RankingEntry {
  std::string kernel;
  MaskClass problems = MaskClass::kFull;
  RankingFactors factors = {};
};

using RankingTable = std::span<const RankingEntry>;

// Where a problem lies among the entries.
struct RankingPlace {
  MaskClass problems = MaskClass::kFull;
  double keys = 0.0;
};
RankingPlace ranking_place(const AttentionProblem& problem);

// Share of each of the kRankingKeys in the factor at `keys`; their sum is 1.
RankingFactors ranking_weights(double keys);

// What the kernel's predicted time beyond the launch is multiplied by: from its entry for such
// problems, else the geometric mean of all entries for them, else 1. Of forward kernels; others: 1.
double ranking_factor(RankingTable table, const RankingPlace& place, const KernelConfig& config);

// The committed table, src/plan/ranking_sm90.def.
RankingTable sm90_ranking();

}  // namespace rowmax::plan
