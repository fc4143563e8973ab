// Tensors that fit a problem, for tests of the public interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rowmax/attention.h"
#include "rowmax/problem.h"

namespace rowmax::testing {

// A problem from its text form; aborts the test program when the text is wrong.
AttentionProblem problem_of(const char* text);

// Owns zeroed, 64-byte aligned memory for everything that the problem needs: tensors are
// contiguous, sequences share the ragged storage evenly, seqused is the whole length, pages are in
// order. Tests then break one thing.
class TensorSet {
 public:
  explicit TensorSet(const AttentionProblem& problem);

  const AttentionProblem problem;
  AttentionTensors tensors;

  // Zeroed memory that lives as long as the set.
  void* allocate(size_t bytes);
  TensorView view(DType dtype, std::initializer_list<int64_t> sizes);

 private:
  void make_operands();
  void make_lengths();
  void make_score();
  void make_gradients();
  TensorView broadcast(const BroadcastShape& shape);
  TensorView query_side(DType dtype, int64_t dim);
  TensorView key_side(DType dtype, int64_t dim);
  TensorView statistics();
  TensorView offsets(int64_t total, int64_t bound);

  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

// Workspace of a plan at a thread count.
class Workspace {
 public:
  Workspace(const Plan& plan, int threads);
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Values in [-1, 1] that depend on the index only.
void fill(const TensorView& view, int seed);

}  // namespace rowmax::testing
