// Exponentials of the CPU kernels for any reference, in the portable instruction set. Whole
// problems cannot show a reference beyond the fast range taken for one inside: where it matters, a
// rounding of the scores is as large as the error.
#include <gtest/gtest.h>

#include <cmath>

#include "testkit/numerics.h"

#define ROWMAX_ISA portable
#define ROWMAX_ISA_HEADER "backend/cpu/simd/portable.h"
#include "backend/cpu/softmax-inl.h"

namespace rowmax::test {
namespace {

using V = cpu::portable::Vec<float, int32_t, uint32_t>;

// 2^(score - reference) as a run of scores with any reference gets it.
float weight(float score, float reference) {
  float p[V::W];
  V::store(p, V::set1(score));
  V::R sum = V::zero();
  cpu::portable::exponentiate<V, 1, cpu::portable::Exponent::kChecked>(p, V::W, V::set1(reference),
                                                                       sum);
  float sums[V::W];
  V::store(sums, sum);
  EXPECT_TRUE(sums[0] == p[0] || std::isnan(p[0])) << sums[0];
  return p[0];
}

TEST(CpuSoftmax, ExponentialsOfAnyReference) {
  for (const float size : {0.0f, 1.0f, 1000.0f, 2097151.0f, 2097152.0f, 4194304.0f, 5000000.0f,
                           8388608.0f, 12582912.0f, 16777215.0f}) {
    for (const float reference : {size, -size}) {
      for (const float below : {0.0f, 0.5f, 1.0f, 1.5f, 3.0f, 17.0f, 100.0f}) {
        const float score = reference - below;  // may round: the exact difference counts
        const double expected = std::exp2(static_cast<double>(score) - reference);
        EXPECT_NEAR(weight(score, reference), expected, testkit::kExpRoundings * 0x1p-24 * expected)
            << score << " " << reference;
      }
    }
  }
  for (const float reference : {1e9f, 1e30f, 3e38f, -1e9f, -1e30f}) {
    EXPECT_EQ(weight(reference, reference), 1.0f) << reference;
    EXPECT_EQ(weight(reference - std::fabs(reference) / 2, reference), 0.0f) << reference;
  }
}

TEST(CpuSoftmax, HiddenAndNaNScores) {
  for (const float reference : {0.0f, -3.0f, 1e7f, -1e30f}) {
    EXPECT_EQ(weight(-INFINITY, reference), 0.0f) << reference;
    EXPECT_TRUE(std::isnan(weight(NAN, reference))) << reference;
  }
}

}  // namespace
}  // namespace rowmax::test
