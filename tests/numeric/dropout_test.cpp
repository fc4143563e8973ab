// Dropout: which weights survive, read off the results, and where seed and offset may come from.
#include <gtest/gtest.h>

#include "problem/philox.h"
#include "runs.h"
#include "tensor_copy.h"
#include "testkit/inputs.h"

namespace rowmax::test {
namespace {

constexpr uint64_t kSeed = 0x9876543210abcdefu;
constexpr uint64_t kOffset = 0x100000007u;

class Dropout : public testing::TestWithParam<const KernelEntry*> {
 protected:
  // Every case that the kernel serves, with copies of its tensors.
  template <class Body>
  void for_each_case(const std::vector<const char*>& cases, Body body) {
    const KernelEntry& entry = *GetParam();
    int count = 0;
    for (const char* text : cases) {
      const testkit::Case spec = testkit::parse_case(text).value();
      if (!entry.supports(spec.problem, entry.config).ok()) {
        continue;
      }
      ++count;
      SCOPED_TRACE(text);
      const Result<std::unique_ptr<testkit::CaseInputs>> inputs = testkit::CaseInputs::create(spec);
      ASSERT_TRUE(inputs.ok());
      body(spec.problem, **inputs);
    }
    EXPECT_GT(count, 0);
  }
};

TEST_P(Dropout, StateInMemoryEqualsStateByValue) {
  for_each_case(
      {"forward f32 b2 h2 sq50 sk140 d32 dropout=0.5",
       "forward f32 b2 h2 sq3 sk140 d32 dropout=0.5",
       "forward bf16 b2 hq4 hkv2 s60 d32 dropout=0.1 causal",
       "forward f64 b2 h2 s40 d16 dropout=0.3", "forward f64 b2 h2 sq2 sk40 d16 dropout=0.3",
       "backward f32 b2 h2 sq50 sk140 d32 dropout=0.5",
       "backward f16 b2 hq4 hkv2 s60 d32 dropout=0.1", "backward f64 b2 h2 s40 d16 dropout=0.3"},
      [](const AttentionProblem& problem, const testkit::CaseInputs& inputs) {
        const char* kernel = GetParam()->config.name;
        TensorCopy by_value(inputs.tensors());
        TensorCopy in_memory(inputs.tensors());
        TensorCopy other(inputs.tensors());
        by_value.tensors.dropout = {kSeed, kOffset, nullptr, 5, 11};
        const uint64_t state[2] = {kSeed, kOffset};
        in_memory.tensors.dropout = {1, 2, state, 5, 11};
        other.tensors.dropout = {1, 2, nullptr, 5, 11};
        for (const TensorCopy* run : {&by_value, &in_memory, &other}) {
          ASSERT_TRUE(run_on(problem, run->tensors, kernel).ok());
        }
        EXPECT_EQ(first_difference(problem, by_value.tensors, in_memory.tensors), "");
        EXPECT_NE(first_difference(problem, by_value.tensors, other.tensors), "");
      });
}

// V is the identity (forward), or dO is (backward): O[i][j] and dV[j][i] are then the weight of
// key j in row i, which is 0 exactly where dropout takes it. Every kernel drops the same ones.
TEST_P(Dropout, WeightsThatSurviveAreThoseOfTheGenerator) {
  for_each_case(
      {"forward f32 b2 h2 s64 d16 dv64 dropout=0.4",
       "forward f32 b2 h2 sq3 sk64 d16 dv64 dropout=0.4",
       "forward f64 b2 h2 s64 d16 dv64 dropout=0.4",
       "forward f64 b2 h2 sq3 sk64 d16 dv64 dropout=0.4",
       "backward f32 b2 h2 s64 d16 dv64 dropout=0.4",
       "backward f64 b2 h2 s64 d16 dv64 dropout=0.4"},
      [](const AttentionProblem& problem, const testkit::CaseInputs& inputs) {
        TensorCopy run(inputs.tensors());
        run.tensors.dropout = {kSeed, kOffset, nullptr, 0, 0};
        const bool forward = problem.op == Op::kForward;
        const ConstTensorView identity = forward ? run.tensors.v : run.tensors.grad.dout;
        const uint64_t one = identity.dtype == DType::kF64 ? 0x3ff0000000000000u : 0x3f800000u;
        const auto all = [](const TensorIndex&) { return true; };
        TensorCopy::fill(identity, 0, all);
        TensorCopy::fill(identity, one,
                         [](const TensorIndex& index) { return index.at[1] == index.at[3]; });
        ASSERT_TRUE(run_on(problem, run.tensors, GetParam()->config.name).ok());
        DropoutArgs generator;
        generator.seed = kSeed;
        generator.offset = kOffset;
        generator.threshold = static_cast<uint64_t>(problem.score.dropout_p * 0x1p32 + 0.5);
        const ConstTensorView weights =
            forward ? ConstTensorView(run.tensors.out) : ConstTensorView(run.tensors.grad.dv);
        int64_t wrong = 0;
        for (int64_t bh = 0; bh < 4; ++bh) {
          for (int64_t i = 0; i < problem.sizes.seqlen_q; ++i) {
            for (int64_t j = 0; j < problem.sizes.seqlen_k; ++j) {
              const TensorIndex index = {{bh / 2, forward ? i : j, bh % 2, forward ? j : i}};
              wrong += (element_bits(weights, index) != 0) != dropout_keeps(generator, bh, i, j);
            }
          }
        }
        EXPECT_EQ(wrong, 0);
      });
}

INSTANTIATE_TEST_SUITE_P(Registry, Dropout, testing::ValuesIn(main_kernels()),
                         [](const testing::TestParamInfo<const KernelEntry*>& row) {
                           return std::string(row.param->config.name);
                         });

}  // namespace
}  // namespace rowmax::test
