// Offsets that no 32-bit integer holds: every tensor of a case with one axis spread over more than
// 2^32 elements gives the bits of the packed tensors. The memory is sparse; nothing is large.
#include <gtest/gtest.h>

#include "runs.h"
#include "tensor_copy.h"
#include "testkit/inputs.h"

namespace rowmax::test {
namespace {

class FarStrides : public testing::TestWithParam<const KernelEntry*> {
 protected:
  // Runs every case that the kernel serves with each axis far apart; returns how many.
  int run(const std::vector<const char*>& cases, const std::vector<FarAxis>& axes) {
    const KernelEntry& entry = *GetParam();
    int count = 0;
    for (const char* text : cases) {
      const testkit::Case spec = testkit::parse_case(text).value();
      if (!entry.supports(spec.problem, entry.config).ok()) {
        continue;
      }
      SCOPED_TRACE(text);
      const Result<std::unique_ptr<testkit::CaseInputs>> inputs = testkit::CaseInputs::create(spec);
      EXPECT_TRUE(inputs.ok());
      const TensorCopy packed((*inputs)->tensors());
      const Status status = run_on(spec.problem, packed.tensors, entry.config.name, 2);
      EXPECT_TRUE(status.ok()) << status.message();
      for (const FarAxis axis : axes) {
        const TensorCopy far((*inputs)->tensors(), axis);
        const Status far_status = run_on(spec.problem, far.tensors, entry.config.name, 2);
        EXPECT_TRUE(far_status.ok()) << far_status.message();
        EXPECT_EQ(first_difference(spec.problem, packed.tensors, far.tensors), "")
            << "far axis " << static_cast<int>(axis);
        ++count;
      }
    }
    return count;
  }
};

// BC-053, BC-054, BC-064: batch elements, rows or heads of dense operands and gradients.
TEST_P(FarStrides, BC064_DenseOperands) {
  const int count = run({"forward f32 b2 hq4 hkv2 s150 d24 causal",
                         "forward f32 b2 h2 sq3 sk300 d32", "forward bf16 b2 h2 sq140 sk150 d24",
                         "forward f16 b2 h2 sq2 sk300 d32", "forward f64 b2 h2 s60 d16",
                         "forward f64 b2 h2 sq2 sk60 d16", "backward f32 b2 hq4 hkv2 s150 d24 dlse",
                         "backward bf16 b2 h2 s140 d24", "backward f64 b2 h2 s60 d16 causal"},
                        {FarAxis::kBatch, FarAxis::kRow, FarAxis::kHead});
  EXPECT_GT(count, 0);
}

// BC-061, BC-062: rows of ragged operands; O and dO of the delta step among them.
TEST_P(FarStrides, BC061_RaggedOperands) {
  const int count = run({"forward f32 b3 h2 sq90 sk90 d24 ragged_q=200 ragged_k=210 causal",
                         "forward f16 b3 h2 sq2 sk300 d24 ragged_q=6 ragged_k=500",
                         "forward f64 b3 h2 sq2 sk60 d16 ragged_q=5 ragged_k=120",
                         "forward f64 b3 h2 sq40 sk60 d16 ragged_q=100 ragged_k=120",
                         "backward f32 b3 h2 sq90 sk90 d24 ragged_q=200 ragged_k=210 dlse",
                         "backward f16 b2 h1 s150 d16 ragged_q=300 ragged_k=300 window=20,0",
                         "backward f64 b3 h2 sq40 sk60 d16 ragged_q=100 ragged_k=120"},
                        {FarAxis::kRow, FarAxis::kHead});
  EXPECT_GT(count, 0);
}

// BC-065: page stride times page number.
TEST_P(FarStrides, BC065_Pages) {
  const int count = run({"forward f32 b2 h2 sq30 sk100 d24 paged=16,20,7 used_k causal",
                         "forward bf16 b2 hq4 hkv2 sq2 sk100 d24 paged=16,20,7 used_k",
                         "forward f32 b2 hq4 hkv2 sq2 sk100 d24 paged=7,40,15 used_k",
                         "forward f64 b2 h2 sq30 sk60 d16 paged=16,12,4 used_k",
                         "forward f64 b2 h2 sq2 sk60 d16 paged=16,12,4 used_k"},
                        {FarAxis::kRow, FarAxis::kBatch, FarAxis::kHead});
  EXPECT_TRUE(count > 0 || GetParam()->config.step == StepKind::kBackward);
}

// BC-063: masks and biases, and the gradient of a bias.
TEST_P(FarStrides, BC063_MasksAndBiases) {
  const int count = run(
      {"forward f32 b2 h2 sq70 sk90 d16 mask=bhrc", "forward f32 b2 h2 sq3 sk90 d16 mask=bhrc",
       "forward f32 b2 h2 sq70 sk90 d16 bias=f32:bhrc causal",
       "forward f16 b2 h2 sq3 sk90 d16 bias=f16:bhrc", "forward f64 b2 h2 sq30 sk40 d16 mask=bhrc",
       "forward f64 b2 h2 sq3 sk40 d16 bias=f64:bhrc", "backward f32 b2 h2 sq70 sk90 d16 mask=bhrc",
       "backward f32 b2 h2 sq70 sk90 d16 bias=bf16:bhrc grads=dq,dk,dv,dbias",
       "backward f64 b2 h2 sq30 sk40 d16 bias=f64:bhrc mask=bhrc grads=dq,dk,dv,dbias"},
      {FarAxis::kBatch, FarAxis::kRow, FarAxis::kHead});
  EXPECT_GT(count, 0);
}

INSTANTIATE_TEST_SUITE_P(Registry, FarStrides, testing::ValuesIn(main_kernels()),
                         [](const testing::TestParamInfo<const KernelEntry*>& row) {
                           return std::string(row.param->config.name);
                         });

}  // namespace
}  // namespace rowmax::test
