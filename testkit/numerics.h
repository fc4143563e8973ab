// The pass rule of docs/numerics.md and every constant in it. No test holds a tolerance of its own.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "rowmax/dtype.h"
#include "testkit/outputs.h"

namespace rowmax::testkit {

// A result passes where  error <= max(kNaiveFactor * naive error, kBoundFactor * bound + rounding).
inline constexpr double kNaiveFactor = 2.0;
// Deviations of the probabilistic model of rounding (docs/numerics.md): at 4 the chance that one
// sum of independent roundings leaves its bound is below 7e-4, and the bounds are themselves sums
// of absolute values.
inline constexpr double kBoundFactor = 4.0;

// Roundings that are not part of a sum, in units of the compute type's unit roundoff.
inline constexpr double kProductRoundings = 2.0;  // scale applied to q, then to the product
inline constexpr double kExpRoundings = 4.0;      // own exp2 (2), normalisation, rescale
inline constexpr double kLogRoundings = 4.0;      // own log2 (2), conversion, sum with the maximum
inline constexpr double kTanhRoundings = 4.0;     // own tanh (2), division and product by the cap

// Probabilities (of a row's sum, 1) that a kernel may flush to zero or clamp to this value:
// in fp32 2^-76 of one rounding error of the row's sum, in fp64 the smallest normal number.
inline constexpr double kProbabilityFloorF32 = 0x1p-100;
inline constexpr double kProbabilityFloorF64 = 0x1p-1022;

// fp32 kernels hold scores in base 2, where the largest fp32 number is this natural one. Scores
// beyond it, which only a bias makes, saturate.
inline constexpr double kLargestScoreF32 = 0x1.fffffep127 * 0.6931471805599453;

// Central differences of an fp64 loss: the step that balances truncation (step^2) and rounding
// (eps64 / step) for an fp64 parameter; a power of two that fp32 parameters hold for theirs.
template <class T>
constexpr double finite_difference_step() {
  return sizeof(T) == sizeof(double) ? 0x1p-17 : 0x1p-10;
}

// Truncation with third derivatives of order kThirdDerivative, rounding of the two losses, and the
// rounding of the stored gradient, which is of order one.
inline constexpr double kThirdDerivative = 16.0;
template <class T>
double finite_difference_limit(double loss) {
  const double step = finite_difference_step<T>();
  const double magnitude = 1.0 + (loss < 0.0 ? -loss : loss);
  const double stored = sizeof(T) == sizeof(double) ? 0.0 : epsilon_of(DType::kF32);
  return kThirdDerivative * step * step +
         kBoundFactor * epsilon_of(DType::kF64) * magnitude / step + kBoundFactor * stored;
}

// Distance of states merged from `parts` pieces, fp32, from the state of the whole, for values of
// order one: a rounding per part, and exponentials whose arguments are differences of statistics
// (m and LSE, of magnitude up to `largest`), each rounded when it was stored.
inline double merge_limit(int64_t parts, double largest) {
  return kBoundFactor * epsilon_of(DType::kF32) / 2.0 *
         (kExpRoundings + 1.0 + std::sqrt(static_cast<double>(parts)) + 2.0 * largest);
}

// Error bounds of one output, element by element in dense order, before kBoundFactor; and the
// storage rounding that comes on top. Zero means that the result is exact.
struct OutputBound {
  std::vector<double> bound;
  std::vector<double> rounding;
};

struct OutputReport {
  Output output = Output::kOut;
  int64_t elements = 0;
  int64_t value_mismatches = 0;      // finite, but beyond the limit
  int64_t nonfinite_mismatches = 0;  // NaN, +inf, -inf or finite where the oracle has another class
  double ratio = 0.0;                // worst error / limit of the finite elements
  double limit = 0.0;                // at the element of `ratio`
  double max_error = 0.0;
  double naive_max_error = 0.0;
  std::string worst;  // "b0 h3 i17 d5: got 0.1, expected 0.2, error 0.1, limit 1e-6"

  bool passed() const { return value_mismatches == 0 && nonfinite_mismatches == 0; }
};

// `got` and `naive` hold values as stored in the output's type, `oracle` unrounded ones. The naive
// error that counts for an element is the largest of its row (the innermost axis).
OutputReport compare_output(const std::vector<OutputRow>& rows, Output output,
                            const std::vector<double>& got, const std::vector<double>& oracle,
                            const std::vector<double>& naive, const OutputBound& bound);

}  // namespace rowmax::testkit
