// Tensors of a case, poisoned: NaN in everything that must not reach a result (rows past a length,
// unused page slots and pages, ragged tails, keys hidden from every row by a key-padding mask, gaps
// of strides, guard zones), garbage in block table tails, and a NaN pattern in every output.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernel_api/args.h"
#include "rowmax/attention.h"
#include "rowmax/status.h"
#include "testkit/arena.h"
#include "testkit/case.h"
#include "testkit/outputs.h"
#include "testkit/random.h"

namespace rowmax::testkit {

// Owns the memory; deterministic from the case. For backward, `out` and `lse` are inputs that hold
// the fp64 oracle's forward results rounded to the problem's types.
class CaseInputs {
 public:
  static Result<std::unique_ptr<CaseInputs>> create(const Case& spec);

  const AttentionTensors& tensors() const { return tensors_; }
  // The same tensors as kernels see them.
  const AttentionArgs& args() const { return args_; }

  // The memory of all tensors.
  std::vector<HostBlock> blocks() { return arena_.blocks(); }

  // The tensors as they were before the first run, outputs poisoned.
  void restore() { arena_.restore(); }

  // What a run changed that it must not change; empty when all is well.
  std::vector<std::string> violations() const { return arena_.violations(); }

 private:
  explicit CaseInputs(const Case& spec);

  void allocate_operands();
  void allocate_fused();
  void allocate_gradients();
  void allocate_score();
  void allocate_lengths();
  void fill_block_table();
  void fill_mask();
  void fill_bias();
  void fill_documents();
  void fill_per_head();
  void fill_queries();
  void fill_keys();
  void fill_forward_results();

  TensorView allocate(const char* name, DType dtype, std::vector<int64_t> sizes,
                      StrideKind strides);
  std::vector<int64_t> sequence_lengths(const std::vector<int64_t>& given, int64_t bound,
                                        int64_t total);
  int64_t draw_length(int64_t bound);
  bool hidden_by_padding(int64_t b, int64_t head_kv, int64_t j) const;

  Case spec_;
  Random random_;
  Arena arena_;
  AttentionTensors tensors_;
  AttentionArgs args_;
};

}  // namespace rowmax::testkit
