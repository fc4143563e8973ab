// A case of the test kit on the GPU: its tensors, plan and workspace, and its outputs judged by the
// oracle.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device_memory.h"
#include "rowmax/attention.h"
#include "testkit/device_memory.h"
#include "testkit/inputs.h"
#include "testkit/outputs.h"

namespace rowmax::test {

// Contiguous host tensors of a case; ends the program when its text is wrong.
std::unique_ptr<testkit::CaseInputs> make_inputs(const std::string& text);

class DeviceCase {
 public:
  // The planner's choice of kernel when `kernel` is empty.
  DeviceCase(const std::string& text, const DeviceInfo& device, const std::string& kernel = "");

  const AttentionProblem& problem() const { return plan.problem(); }
  // The tensors in host memory: what load() uploads and fetch() fills.
  const AttentionTensors& host() const { return inputs_->tensors(); }

  // The contents of another set of the same problem and types; null: the present ones. Outputs are
  // poisoned.
  void load(const testkit::CaseInputs* from = nullptr);

  // Enqueues on the stream, in the case's own workspace.
  Status enqueue(cudaStream_t stream, int sm_margin = 0);

  // Copies everything back; the outputs' values.
  testkit::OutputValues fetch();

  // load(), enqueue() on the default stream, fetch().
  testkit::OutputValues run();

  // Whether the outputs that were fetched last are right.
  void judge() const;

  Plan plan;
  AttentionTensors tensors;  // in GPU memory
  DeviceBuffer workspace;

 private:
  std::unique_ptr<testkit::CaseInputs> inputs_;
  std::unique_ptr<testkit::DeviceMirror> mirror_;
};

// The status of execute on the case's workspace and the default stream.
Status try_execute(const DeviceCase& spec, const AttentionTensors& tensors);

// Names of the outputs whose bits differ; empty when none does.
std::string different_outputs(const testkit::OutputValues& a, const testkit::OutputValues& b);

// Every tensor of two sets, side by side. Outputs of the problem are marked.
struct TensorPair {
  ConstTensorView a;
  ConstTensorView b;
  bool written = false;
};
std::vector<TensorPair> tensor_pairs(const AttentionProblem& problem, const AttentionTensors& a,
                                     const AttentionTensors& b);

}  // namespace rowmax::test
