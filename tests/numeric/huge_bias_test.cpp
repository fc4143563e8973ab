// BC-006 and its kind: a huge finite bias on a whole row is a value. O and LSE stay finite, and in
// backward P <= 1 whatever the rounding of an fp32 LSE of that size, so that dV is bounded by dO.
#include <gtest/gtest.h>

#include <cmath>

#include "runs.h"

namespace rowmax::test {
namespace {

class HugeBias : public testing::TestWithParam<const KernelEntry*> {};

bool all_finite(const std::vector<float>& values) {
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return false;
    }
  }
  return true;
}

TEST_P(HugeBias, BC006_OfAWholeRowStaysFinite) {
  const KernelEntry& entry = *GetParam();
  for (const char* rows : {"sq40", "sq3"}) {
    for (const float value : {-7e7f, -1.22329114e9f, -2.79057261e18f, -9.99e18f, -1e30f, -2.5e38f,
                              -3.4028235e38f, 7e7f, 1e30f, 3e38f, 3.4028235e38f}) {
      const std::string text = std::string(" f32 b1 h1 ") + rows + " sk150 d24 bias=f32:r";
      DenseRun forward("forward" + text);
      DenseRun backward("backward" + text);
      const AttentionProblem& problem =
          entry.config.step == StepKind::kBackward ? backward.problem : forward.problem;
      if (!entry.supports(problem, entry.config).ok()) {
        continue;
      }
      SCOPED_TRACE(text + " " + std::to_string(value));
      const int64_t count = forward.problem.sizes.seqlen_q;
      std::vector<float> bias(static_cast<size_t>(count), 0.0f);
      bias[0] = value;
      const ConstTensorView view =
          contiguous(static_cast<const void*>(bias.data()), DType::kF32, {1, 1, count, 1});
      forward.tensors.score.bias = view;
      backward.tensors.score.bias = view;
      const bool is_forward = entry.config.step != StepKind::kBackward;
      ASSERT_TRUE(forward.run(is_forward ? entry.config.name : "").ok());
      EXPECT_TRUE(all_finite(forward.out));
      EXPECT_TRUE(all_finite(forward.lse));
      if (is_forward) {
        continue;
      }
      backward.out = forward.out;
      backward.lse = forward.lse;
      backward.dout.assign(backward.dout.size(), 1.0f);
      ASSERT_TRUE(backward.run(entry.config.name).ok());
      EXPECT_TRUE(all_finite(backward.dq));
      EXPECT_TRUE(all_finite(backward.dk));
      EXPECT_TRUE(all_finite(backward.dv));
      // Every P is at most 1, so with dO = 1 no dV exceeds the number of rows.
      for (const float dv : backward.dv) {
        ASSERT_LE(std::abs(dv), static_cast<float>(count + 1));
      }
    }
  }
}

std::string kernel_name(const testing::TestParamInfo<const KernelEntry*>& info) {
  return info.param->config.name;
}

INSTANTIATE_TEST_SUITE_P(Registry, HugeBias, testing::ValuesIn(main_kernels()), kernel_name);

}  // namespace
}  // namespace rowmax::test
