// What execute refuses or reports on a GPU, and that nothing of it sticks.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "device_case.h"
#include "kernels.h"

namespace rowmax::test {
namespace {

constexpr const char* kForward = "forward bf16 b2 hq4 hkv2 sq130 sk200 d64 causal";
constexpr const char* kBackward = "backward bf16 b2 hq4 hkv2 sq130 sk200 d64 causal";

using Change = std::function<void(AttentionTensors&)>;

// A view that execute reads, seen as one that can be moved.
template <class View>
void move_by(View& view, int64_t bytes) {
  view.data = const_cast<char*>(static_cast<const char*>(view.data)) + bytes;
}

class Refusals : public DeviceTest {
 protected:
  // Refused with the tensor's name and `text`; the runtime has no error left, and the case runs.
  void expect_refused(DeviceCase& spec, const char* name, const char* text, const Change& change) {
    SCOPED_TRACE(name);
    AttentionTensors tensors = spec.tensors;
    change(tensors);
    spec.load();
    const Status status = try_execute(spec, tensors);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_EQ(status.message().rfind(std::string(name) + ":", 0), 0u) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    expect_usable(spec);
  }

  void expect_usable(DeviceCase& spec) {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    spec.run();
    spec.judge();
  }
};

// The addresses stay inside their guard zones.
TEST_F(Refusals, BC084_AddressesThatAreNoMultiplesOf16Bytes) {
  DeviceCase forward(kForward, device_);
  const char* kRule = "a multiple of 16 bytes";
  for (const int64_t bytes : {2, 8}) {
    expect_refused(forward, "q", kRule, [&](AttentionTensors& t) { move_by(t.q, bytes); });
    expect_refused(forward, "k", kRule, [&](AttentionTensors& t) { move_by(t.k, bytes); });
    expect_refused(forward, "v", kRule, [&](AttentionTensors& t) { move_by(t.v, bytes); });
    expect_refused(forward, "out", kRule, [&](AttentionTensors& t) { move_by(t.out, bytes); });
  }
  DeviceCase backward(kBackward, device_);
  expect_refused(backward, "dout", kRule, [](AttentionTensors& t) { move_by(t.grad.dout, 2); });
  expect_refused(backward, "dq", kRule, [](AttentionTensors& t) { move_by(t.grad.dq, 2); });
  expect_refused(backward, "dk", kRule, [](AttentionTensors& t) { move_by(t.grad.dk, 2); });
  expect_refused(backward, "dv", kRule, [](AttentionTensors& t) { move_by(t.grad.dv, 2); });
}

TEST_F(Refusals, BC084_StridesThatAreNoMultiplesOf16Bytes) {
  DeviceCase forward(kForward, device_);
  expect_refused(forward, "q", "batch stride in bytes",
                 [](AttentionTensors& t) { t.q.strides[0] += 4; });
  expect_refused(forward, "k", "sequence stride in bytes",
                 [](AttentionTensors& t) { t.k.strides[1] += 1; });
  expect_refused(forward, "v", "head stride in bytes",
                 [](AttentionTensors& t) { t.v.strides[2] -= 2; });
  DeviceCase backward(kBackward, device_);
  expect_refused(backward, "dout", "sequence stride in bytes",
                 [](AttentionTensors& t) { t.grad.dout.strides[1] += 1; });
}

// An aligned view that starts inside a tensor is no special case.
TEST_F(Refusals, BC084_ViewsThatStartInsideATensor) {
  DeviceCase spec(kForward, device_);
  const testkit::OutputValues whole = spec.run();
  DeviceBuffer moved(static_cast<size_t>(element_count(spec.tensors.q)) * 2 + 48);
  AttentionTensors tensors = spec.tensors;
  tensors.q.data = moved.data() + 48;
  ASSERT_TRUE(succeeded(cudaMemcpy(moved.data() + 48, spec.tensors.q.data, moved.bytes() - 48,
                                   cudaMemcpyDeviceToDevice),
                        "copy"));
  spec.load();
  const Status status = try_execute(spec, tensors);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(different_outputs(whole, spec.fetch()), "");
}

TEST_F(Refusals, BC125_HostMemory) {
  DeviceCase spec(kBackward, device_);
  const AttentionTensors& host = spec.host();
  expect_refused(spec, "k", "in host memory", [&](AttentionTensors& t) { t.k.data = host.k.data; });
  expect_refused(spec, "lse", "in host memory",
                 [&](AttentionTensors& t) { t.lse.data = host.lse.data; });
  expect_refused(spec, "dv", "in host memory",
                 [&](AttentionTensors& t) { t.grad.dv.data = host.grad.dv.data; });
}

TEST_F(Refusals, BC059_Workspaces) {
  for (const char* text : {kForward, kBackward}) {
    SCOPED_TRACE(text);
    DeviceCase spec(text, device_);
    char* const memory = spec.workspace.data();
    const size_t bytes = spec.workspace.bytes();
    const auto refused = [&](void* workspace, size_t size) {
      const Status status = execute(spec.plan, spec.tensors, workspace, size);
      EXPECT_NE(status.message().find("workspace"), std::string::npos) << status.message();
      expect_usable(spec);
      return status.code();
    };
    EXPECT_EQ(refused(nullptr, bytes), StatusCode::kOutOfMemory);
    EXPECT_EQ(refused(memory, bytes - 1), StatusCode::kOutOfMemory);
    EXPECT_EQ(refused(memory, 0), StatusCode::kOutOfMemory);
    EXPECT_EQ(refused(memory + 8, bytes), StatusCode::kInvalidArgument);
    void* host = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    EXPECT_EQ(refused(host, bytes), StatusCode::kInvalidArgument);
    std::free(host);
  }
}

TEST_F(Refusals, Margins) {
  DeviceCase spec(kForward, device_);
  for (const int margin : {-1, device_.cores, device_.cores + 1}) {
    const Status status = spec.enqueue(nullptr, margin);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().rfind("sm_margin: is " + std::to_string(margin), 0), 0u)
        << status.message();
  }
  expect_usable(spec);
}

// A stream whose capture was broken refuses every launch: the error comes back and does not stay.
TEST_F(Refusals, BC059_AStreamThatTakesNoLaunch) {
  for (const char* text : {kForward, kBackward}) {
    SCOPED_TRACE(text);
    DeviceCase spec(text, device_);
    const Stream stream;
    ASSERT_TRUE(succeeded(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed),
                          "cudaStreamBeginCapture"));
    EXPECT_NE(cudaStreamSynchronize(stream.get()), cudaSuccess);
    (void)cudaGetLastError();
    const Status status = spec.enqueue(stream.get());
    EXPECT_EQ(status.code(), StatusCode::kInternal) << status.message();
    EXPECT_NE(status.message().find("cudaErrorStreamCaptureInvalidated"), std::string::npos)
        << status.message();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_NE(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
    (void)cudaGetLastError();
    const Status again = spec.enqueue(stream.get());
    EXPECT_TRUE(again.ok()) << again.message();
    stream.wait();
    expect_usable(spec);
  }
}

// Prints what execute says when an earlier kernel of the process has failed; 1: it failed itself.
int execute_after_a_fault(const DeviceInfo& device) {
  DeviceCase spec(kForward, device);
  fault(nullptr);
  const cudaError_t error = cudaDeviceSynchronize();
  const Status status = spec.enqueue(nullptr);
  std::fprintf(stderr, "%s; execute: %s", cudaGetErrorName(error), status.message().c_str());
  return error != cudaSuccess && !status.ok() ? 1 : 0;
}

TEST_F(Refusals, BC059_AProcessWhoseKernelFailed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(execute_after_a_fault(device_)), testing::ExitedWithCode(1),
              "execute: .*cudaErrorLaunchFailure");
}

// Tensors of the second GPU while the first is current.
TEST_F(Refusals, BC125_AnotherCurrentDevice) {
  const Result<DeviceInfo> second = find_device("cuda:1");
  if (!second.ok()) {
    GTEST_SKIP() << "needs two GPUs: " << second.status().message();
  }
  for (const char* text : {kForward, kBackward}) {
    SCOPED_TRACE(text);
    DeviceCase spec(text, *second);
    const testkit::OutputValues own = spec.run();
    spec.judge();
    spec.load();
    ASSERT_TRUE(succeeded(cudaSetDevice(0), "cudaSetDevice"));
    const Status status = spec.enqueue(nullptr);
    EXPECT_TRUE(status.ok()) << status.message();
    int current = -1;
    EXPECT_TRUE(succeeded(cudaGetDevice(&current), "cudaGetDevice"));
    EXPECT_EQ(current, 0);
    ASSERT_TRUE(succeeded(cudaSetDevice(1), "cudaSetDevice"));
    EXPECT_EQ(different_outputs(own, spec.fetch()), "");
    ASSERT_TRUE(succeeded(cudaSetDevice(0), "cudaSetDevice"));
    DeviceCase first(text, device_);
    expect_refused(first, "k", "on device 1",
                   [&](AttentionTensors& t) { t.k.data = spec.tensors.k.data; });
  }
}

}  // namespace
}  // namespace rowmax::test
