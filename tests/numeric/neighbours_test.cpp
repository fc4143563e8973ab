// Results of one sequence do not depend on what its neighbours hold, nor on where pages lie.
#include <gtest/gtest.h>

#include "runs.h"
#include "tensor_copy.h"
#include "testkit/inputs.h"

namespace rowmax::test {
namespace {

uint64_t nan_bits(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x7ff8000000000001u;
    case DType::kF32:
      return 0x7fc00001u;
    case DType::kBF16:
      return 0x7fc1u;
    default:
      return 0x7e01u;
  }
}

std::vector<std::string> neighbour_cases() {
  const std::string ragged =
      " sq60 sk150 d24 ragged_q=150 ragged_k=420 qlens=50,60,40 klens=140,150,130";
  const std::string few = " sq2 sk150 d24 ragged_q=6 ragged_k=420 qlens=2,2,2 klens=140,150,130";
  const std::string dense = " sq60 sk150 d24";
  return {"forward f32 b3 hq4 hkv2" + ragged,
          "forward f32 b3 hq4 hkv2 causal softcap=9" + ragged,
          "forward bf16 b3 h2" + ragged,
          "forward f16 b3 h2 causal" + dense,
          "forward f32 b3 h2 dropout=0.2" + dense,
          "forward f64 b3 h2" + dense,
          "forward f32 b3 hq4 hkv2" + few,
          "forward bf16 b3 hq4 hkv2 causal" + few,
          "forward f64 b3 hq4 hkv2" + few,
          "forward f32 b3 h2 sq1 sk200 d24",
          "backward f32 b3 hq4 hkv2 dlse" + ragged,
          "backward f32 b3 hq4 hkv2 causal softcap=9" + ragged,
          "backward bf16 b3 h2 window=30,9" + ragged,
          "backward f16 b3 h2" + dense,
          "backward f64 b3 h2" + ragged};
}

class Neighbours : public testing::TestWithParam<const KernelEntry*> {};

// Sequence 1 of three has NaN in every operand and in every forward result.
TEST_P(Neighbours, ASequenceOfNaNSpoilsNoOther) {
  const KernelEntry& entry = *GetParam();
  int count = 0;
  for (const std::string& text : neighbour_cases()) {
    const testkit::Case spec = testkit::parse_case(text).value();
    if (!entry.supports(spec.problem, entry.config).ok()) {
      continue;
    }
    ++count;
    SCOPED_TRACE(text);
    const Result<std::unique_ptr<testkit::CaseInputs>> inputs = testkit::CaseInputs::create(spec);
    ASSERT_TRUE(inputs.ok());
    const bool is_ragged = spec.problem.storage.query == Source::kRagged;
    // Whether an element belongs to sequence 1; the axis of rows or batch elements is `axis`.
    const auto of_sequence = [&](const TensorIndex& index, int axis, bool of_keys) {
      if (!is_ragged) {
        return index.at[0] == 1;
      }
      const std::vector<int64_t>& lengths = of_keys ? spec.key_lengths : spec.query_lengths;
      const int64_t row = index.at[axis] - lengths[0];
      return row >= 0 && row < lengths[1];
    };
    const TensorCopy clean((*inputs)->tensors());
    const TensorCopy spoiled((*inputs)->tensors());
    const AttentionTensors& t = spoiled.tensors;
    const auto spoil = [&](const ConstTensorView& view, int axis, bool of_keys) {
      if (view.present()) {
        TensorCopy::fill(view, nan_bits(view.dtype), [&](const TensorIndex& index) {
          return of_sequence(index, axis, of_keys);
        });
      }
    };
    spoil(t.q, 0, false);
    spoil(t.k, 0, true);
    spoil(t.v, 0, true);
    spoil(t.grad.dout, 0, false);
    spoil(t.grad.dlse, 1, false);
    spoil(t.out, 0, false);
    spoil(t.lse, 1, false);
    ASSERT_TRUE(run_on(spec.problem, clean.tensors, entry.config.name, 2).ok());
    ASSERT_TRUE(run_on(spec.problem, spoiled.tensors, entry.config.name, 2).ok());
    EXPECT_EQ(first_difference(spec.problem, clean.tensors, spoiled.tensors,
                               [&](const NamedView& output, const TensorIndex& index) {
                                 const std::string name = output.name;
                                 return !of_sequence(index, name == "lse" ? 1 : 0,
                                                     name == "dk" || name == "dv");
                               }),
              "");
  }
  EXPECT_GT(count, 0);
}

// BC-121: the same pages at other places of the pool.
TEST_P(Neighbours, BC121_PhysicalPlacementDoesNotChangeBits) {
  const KernelEntry& entry = *GetParam();
  int count = 0;
  for (const char* text : {"forward f32 b2 hq4 hkv2 sq30 sk100 d24 paged=16,20,7 used_k causal",
                           "forward bf16 b2 hq4 hkv2 sq2 sk300 d24 paged=48,18,7 used_k",
                           "forward f32 b2 hq4 hkv2 sq2 sk100 d24 paged=7,40,15 used_k",
                           "forward f16 b2 h1 sq150 sk300 d24 paged=256,8,2 used_k mask=bhrc",
                           "forward f64 b2 h2 sq30 sk60 d16 paged=16,12,4 used_k",
                           "forward f64 b2 h2 sq2 sk60 d16 paged=16,12,4 used_k"}) {
    const testkit::Case spec = testkit::parse_case(text).value();
    if (!entry.supports(spec.problem, entry.config).ok()) {
      continue;
    }
    ++count;
    SCOPED_TRACE(text);
    const Result<std::unique_ptr<testkit::CaseInputs>> inputs = testkit::CaseInputs::create(spec);
    ASSERT_TRUE(inputs.ok());
    const TensorCopy first((*inputs)->tensors());
    const TensorCopy second((*inputs)->tensors());
    // Page p moves to the other end of the pool.
    const int64_t pages = spec.problem.storage.num_pages;
    for (const ConstTensorView* view : {&second.tensors.k, &second.tensors.v}) {
      const ConstTensorView& from = view == &second.tensors.k ? first.tensors.k : first.tensors.v;
      for (int64_t page = 0; page < pages; ++page) {
        const size_t bytes = static_cast<size_t>(from.strides[0]) * size_of(from.dtype);
        __builtin_memcpy(static_cast<char*>(const_cast<void*>(view->data)) +
                             static_cast<size_t>(pages - 1 - page) * bytes,
                         static_cast<const char*>(from.data) + static_cast<size_t>(page) * bytes,
                         bytes);
      }
    }
    int32_t* table =
        static_cast<int32_t*>(const_cast<void*>(second.tensors.lengths.block_table.data));
    const int64_t entries = spec.problem.sizes.batch * spec.problem.storage.max_pages;
    for (int64_t x = 0; x < entries; ++x) {  // entries past a length are garbage and stay so
      table[x] = static_cast<int32_t>(pages - 1 - table[x]);
    }
    ASSERT_TRUE(run_on(spec.problem, first.tensors, entry.config.name, 2).ok());
    ASSERT_TRUE(run_on(spec.problem, second.tensors, entry.config.name, 2).ok());
    EXPECT_EQ(first_difference(spec.problem, first.tensors, second.tensors), "");
  }
  EXPECT_TRUE(count > 0 || entry.config.step == StepKind::kBackward);
}

INSTANTIATE_TEST_SUITE_P(Registry, Neighbours, testing::ValuesIn(main_kernels()),
                         [](const testing::TestParamInfo<const KernelEntry*>& row) {
                           return std::string(row.param->config.name);
                         });

}  // namespace
}  // namespace rowmax::test
