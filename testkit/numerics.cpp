#include "testkit/numerics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/reference/scores.h"

namespace rowmax::testkit {
namespace {

enum class ValueClass : int { kFinite = 0, kNan, kPlusInfinity, kMinusInfinity };

ValueClass class_of(double value) {
  if (std::isnan(value)) {
    return ValueClass::kNan;
  }
  if (std::isinf(value)) {
    return value > 0 ? ValueClass::kPlusInfinity : ValueClass::kMinusInfinity;
  }
  return ValueClass::kFinite;
}

double rounded(double value, DType dtype) {
  double bits = 0.0;  // large enough for every type
  reference::store(&bits, dtype, 0, value);
  return reference::load(&bits, dtype, 0);
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

std::string coordinate(const OutputRow& row, Output output, int64_t element) {
  const char* position = output == Output::kDk || output == Output::kDv ? " j" : " i";
  const char* inner = output == Output::kDbias ? " j" : " d";
  return "b" + std::to_string(row.b) + " h" + std::to_string(row.head) + position +
         std::to_string(row.position) + inner + std::to_string(element);
}

double naive_row_error(const OutputRow& row, const std::vector<double>& oracle,
                       const std::vector<double>& naive) {
  double worst = 0.0;
  for (int64_t n = 0; n < row.count; ++n) {
    const auto at = static_cast<size_t>(row.flat + n);
    const double error = std::fabs(naive[at] - oracle[at]);
    if (std::isfinite(error)) {
      worst = std::max(worst, error);
    }
  }
  return worst;
}

}  // namespace

OutputReport compare_output(const std::vector<OutputRow>& rows, Output output,
                            const std::vector<double>& got, const std::vector<double>& oracle,
                            const std::vector<double>& naive, const OutputBound& bound) {
  OutputReport report;
  report.output = output;
  bool worst_is_class = false;
  for (const OutputRow& row : rows) {
    const double naive_error = naive_row_error(row, oracle, naive);
    report.naive_max_error = std::max(report.naive_max_error, naive_error);
    for (int64_t n = 0; n < row.count; ++n) {
      const auto at = static_cast<size_t>(row.flat + n);
      ++report.elements;
      const double error = std::fabs(got[at] - oracle[at]);
      const double limit =
          std::max(kNaiveFactor * naive_error, kBoundFactor * bound.bound[at] + bound.rounding[at]);
      const auto describe = [&] {
        return coordinate(row, output, n) + ": got " + number(got[at]) + ", expected " +
               number(oracle[at]) + ", error " + number(error) + ", limit " + number(limit);
      };
      const ValueClass expected = class_of(rounded(oracle[at], row.dtype));
      if (class_of(got[at]) != expected) {
        if (report.nonfinite_mismatches++ == 0) {
          report.worst = describe();
          worst_is_class = true;
        }
        continue;
      }
      if (expected != ValueClass::kFinite) {
        continue;
      }
      report.max_error = std::max(report.max_error, error);
      const double ratio =
          error == 0.0 ? 0.0
                       : (limit > 0.0 ? error / limit : std::numeric_limits<double>::infinity());
      // Written so that a NaN limit fails.
      if (!(ratio <= 1.0)) {
        ++report.value_mismatches;
      }
      if (!(ratio <= report.ratio)) {
        report.ratio = ratio;
        report.limit = limit;
        report.worst = worst_is_class ? report.worst : describe();
      }
    }
  }
  return report;
}

}  // namespace rowmax::testkit
