// A case's tensors moved to memory of another layout, and the comparison of runs by bits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rowmax/attention.h"

namespace rowmax::test {

// Which axis of a tensor lies far apart in memory.
enum class FarAxis { kNone, kBatch, kRow, kHead };

// Position in a tensor, outermost axis first.
struct TensorIndex {
  int64_t at[kMaxRank] = {};
};

// The bits of one element; unused bytes are zero.
uint64_t element_bits(const ConstTensorView& view, const TensorIndex& index);

// Owns copies of every tensor of another set. A far axis has a stride such that its last element is
// more than 2^32 elements from the first, whatever its size (>= 2): no 32-bit offset reaches it.
// Such memory is reserved, not filled: only the pages of the elements themselves exist.
class TensorCopy {
 public:
  explicit TensorCopy(const AttentionTensors& from, FarAxis far = FarAxis::kNone);
  ~TensorCopy();
  TensorCopy(const TensorCopy&) = delete;
  TensorCopy& operator=(const TensorCopy&) = delete;

  AttentionTensors tensors;  // views of the copies; may be changed

  // Sets every element of `view` whose index satisfies `where`, by its bits.
  static void fill(const ConstTensorView& view, uint64_t bits,
                   const std::function<bool(const TensorIndex&)>& where);

 private:
  struct Mapping {
    void* data;
    size_t bytes;
  };
  void copy(ConstTensorView& view, int far_axis);
  void copy(TensorView& view, int far_axis);
  ConstTensorView copied(const ConstTensorView& view, int far_axis);

  std::vector<Mapping> mappings_;
};

// An output (or gradient) of a run and its name.
struct NamedView {
  const char* name;
  ConstTensorView view;
};
std::vector<NamedView> outputs_of(const AttentionProblem& problem, const AttentionTensors& tensors);

// Empty when every element with where(view, index) has the same bits, else the first that differs.
// `where` may be null: all elements.
std::string first_difference(
    const AttentionProblem& problem, const AttentionTensors& a, const AttentionTensors& b,
    const std::function<bool(const NamedView&, const TensorIndex&)>& where = nullptr);

// Runs on one kernel in a workspace filled with NaN.
Status run_on(const AttentionProblem& problem, const AttentionTensors& tensors,
              const std::string& kernel, int threads = 1);

}  // namespace rowmax::test
