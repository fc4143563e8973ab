// tanh of small arguments, host and device.
#pragma once

#include "problem/band.h"

namespace rowmax::cuda::tile {

// tanh(x) = x * (kTanh0 + kTanh1 x^2 + kTanh2 x^4 + kTanh3 x^6) for |x| <= kSmallTanh, relative
// error 2^-20.8 in exact arithmetic, 2^-20.5 in fp32.
inline constexpr float kSmallTanh = 0.5f;
inline constexpr float kTanh0 = 0.999999464f;
inline constexpr float kTanh1 = -0.333263189f;
inline constexpr float kTanh2 = 0.131902948f;
inline constexpr float kTanh3 = -0.0444021709f;

// The same in s for x = factor * s: the coefficients hold the powers of the factor.
struct Softcap {
  float factor = 0;  // 0: no softcap
  float limit = 0;   // scores up to it are small
  float powers[4] = {};
};

// x * polynomial(x^2).
ROWMAX_FORCE_INLINE float odd_polynomial(float x, float c0, float c1, float c2, float c3) {
  const float square = x * x;
  float sum = __builtin_fmaf(c3, square, c2);
  sum = __builtin_fmaf(sum, square, c1);
  return x * __builtin_fmaf(sum, square, c0);
}

// Factors whose seventh power stays well inside fp32, as must those of the scores they go with.
inline constexpr double kLargestFactor = 1e5;

inline bool has_powers(double factor) {
  const double size = factor < 0 ? -factor : factor;
  return size > 1 / kLargestFactor && size < kLargestFactor;
}

// factor: has_powers().
inline Softcap make_softcap(double factor) {
  Softcap params;
  params.factor = static_cast<float>(factor);
  params.limit = static_cast<float>(kSmallTanh / (factor < 0 ? -factor : factor));
  const double coefficients[4] = {kTanh0, kTanh1, kTanh2, kTanh3};
  double power = factor;
  for (int i = 0; i < 4; ++i) {
    params.powers[i] = static_cast<float>(coefficients[i] * power);
    power *= factor * factor;
  }
  return params;
}

}  // namespace rowmax::cuda::tile
