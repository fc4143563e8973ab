#include "device_case.h"

#include <cstring>

#include "testkit/case.h"
#include "testkit/judge.h"

namespace rowmax::test {
namespace {

size_t bytes_of(const ConstTensorView& view) {
  return static_cast<size_t>(element_count(view)) * size_of(view.dtype);
}

}  // namespace

std::vector<TensorPair> tensor_pairs(const AttentionProblem& problem, const AttentionTensors& a,
                                     const AttentionTensors& b) {
  const bool forward = problem.op == Op::kForward;
  const TensorPair all[] = {
      {a.q, b.q},
      {a.k, b.k},
      {a.v, b.v},
      {a.out, b.out, forward},
      {a.lse, b.lse, forward},
      {a.lengths.cu_seqlens_q, b.lengths.cu_seqlens_q},
      {a.lengths.cu_seqlens_k, b.lengths.cu_seqlens_k},
      {a.lengths.seqused_q, b.lengths.seqused_q},
      {a.lengths.seqused_k, b.lengths.seqused_k},
      {a.grad.dout, b.grad.dout},
      {a.grad.dlse, b.grad.dlse},
      {a.grad.dq, b.grad.dq, true},
      {a.grad.dk, b.grad.dk, true},
      {a.grad.dv, b.grad.dv, true},
  };
  std::vector<TensorPair> pairs;
  for (const TensorPair& pair : all) {
    if (pair.a.present()) {
      pairs.push_back(pair);
    }
  }
  return pairs;
}

std::unique_ptr<testkit::CaseInputs> make_inputs(const std::string& text) {
  const Result<testkit::Case> spec = testkit::parse_case(text);
  return std::move(testkit::CaseInputs::create(spec.value()).value());
}

DeviceCase::DeviceCase(const std::string& text, const DeviceInfo& device, const std::string& kernel)
    : inputs_(make_inputs(text)) {
  PlanOptions options;
  options.force_kernel = kernel;
  plan = make_plan(testkit::parse_case(text)->problem, device, options).value();
  mirror_ = testkit::DeviceMirror::create(inputs_->blocks(), device.ordinal).value();
  tensors = mirror_->map(inputs_->tensors());
  workspace.allocate(plan.workspace_bytes());
  load();
}

void DeviceCase::load(const testkit::CaseInputs* from) {
  const AttentionTensors& source = from != nullptr ? from->tensors() : host();
  for (const TensorPair& pair : tensor_pairs(problem(), host(), source)) {
    void* own = const_cast<void*>(pair.a.data);
    if (pair.written) {
      std::memset(own, 0xFF, bytes_of(pair.a));
    } else if (own != pair.b.data) {
      std::memcpy(own, pair.b.data, bytes_of(pair.a));
    }
  }
  const Status status = mirror_->upload();
  EXPECT_TRUE(status.ok()) << status.message();
  // A copy from pageable memory may still be on its way when it returns.
  succeeded(cudaDeviceSynchronize(), "upload");
}

Status DeviceCase::enqueue(cudaStream_t stream, int sm_margin) {
  ExecuteOptions options;
  options.stream = stream;
  options.sm_margin = sm_margin;
  return execute(plan, tensors, workspace.data(), workspace.bytes(), options);
}

testkit::OutputValues DeviceCase::fetch() {
  const Status status = mirror_->download();
  EXPECT_TRUE(status.ok()) << status.message();
  return testkit::gather(problem(), inputs_->args());
}

testkit::OutputValues DeviceCase::run() {
  load();
  const Status status = enqueue(nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  return fetch();
}

void DeviceCase::judge() const {
  const auto reports = testkit::judge_tensors(problem(), host());
  ASSERT_TRUE(reports.ok()) << reports.status().message();
  for (const testkit::OutputReport& report : *reports) {
    EXPECT_TRUE(report.passed()) << testkit::to_string(report.output) << ": " << report.worst;
  }
}

Status try_execute(const DeviceCase& spec, const AttentionTensors& tensors) {
  return execute(spec.plan, tensors, spec.workspace.data(), spec.workspace.bytes());
}

std::string different_outputs(const testkit::OutputValues& a, const testkit::OutputValues& b) {
  std::string names;
  for (int n = 0; n < testkit::kOutputCount; ++n) {
    const auto index = static_cast<size_t>(n);
    const bool same =
        a[index].size() == b[index].size() &&
        std::memcmp(a[index].data(), b[index].data(), a[index].size() * sizeof(double)) == 0;
    if (!same) {
      names += std::string(names.empty() ? "" : ", ") +
               testkit::to_string(static_cast<testkit::Output>(n));
    }
  }
  return names;
}

}  // namespace rowmax::test
