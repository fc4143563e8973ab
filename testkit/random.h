// A small deterministic generator: the same values on every platform and library.
#pragma once

#include <cmath>
#include <cstdint>

namespace rowmax::testkit {

// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  // In [lo, hi], both ends included.
  int64_t integer(int64_t lo, int64_t hi) {
    return lo + static_cast<int64_t>(bits() % static_cast<uint64_t>(hi - lo + 1));
  }

  bool chance(double p) { return uniform() < p; }

  // Standard normal (Box-Muller; 1 - uniform() is never 0).
  double normal() {
    constexpr double kTwoPi = 6.283185307179586;
    return std::sqrt(-2.0 * std::log(1.0 - uniform())) * std::cos(kTwoPi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace rowmax::testkit
