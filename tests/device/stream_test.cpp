// Streams, workspaces and the rest of the machine: results never depend on them, and execute
// neither waits nor allocates.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device_case.h"
#include "kernels.h"

namespace rowmax::test {
namespace {

const char* const kCases[] = {
    "forward bf16 b2 hq8 hkv2 sq700 sk900 d128 causal",
    "forward f16 b3 h4 s515 d64",
    "forward bf16 b5 hq6 hkv2 sq300 sk500 d64 ragged_q=900 ragged_k=1300 window=70,9",
    "forward bf16 b4 hq16 hkv4 sq1 sk3000 d128 used_k",
    "forward bf16 b1 h2 s400 d256 causal",
    "forward bf16 b1 h2 sq100 sk3000 d128",  // fewer tiles than multiprocessors
    "backward bf16 b2 hq8 hkv2 sq400 sk520 d128 causal",
    "backward bf16 b6 h4 s515 d64",
    "backward bf16 b5 hq6 hkv2 sq300 sk500 d64 ragged_q=900 ragged_k=1300 used_q used_k",
};

// A host function holds a stream until this is released, or for ten seconds.
class Gate {
 public:
  void hold(cudaStream_t stream) {
    succeeded(cudaLaunchHostFunc(stream, wait, this), "cudaLaunchHostFunc");
  }
  void release() { open_ = true; }
  bool timed_out() const { return timed_out_; }

 private:
  static void wait(void* gate) {
    auto& self = *static_cast<Gate*>(gate);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!self.open_) {
      if (std::chrono::steady_clock::now() > limit) {
        self.timed_out_ = true;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::atomic<bool> open_{false};
  std::atomic<bool> timed_out_{false};
};

class Streams : public DeviceTest {};

TEST_F(Streams, ExecuteNeitherWaitsNorAllocates) {
  for (const char* text : kCases) {
    SCOPED_TRACE(text);
    DeviceCase spec(text, device_);
    const testkit::OutputValues expected = spec.run();  // also loads the kernels
    spec.load();
    const Stream stream;
    Gate gate;
    size_t free_before = 0;
    size_t free_after = 0;
    size_t total = 0;
    gate.hold(stream.get());
    (void)cudaMemGetInfo(&free_before, &total);
    const Status status = spec.enqueue(stream.get());
    (void)cudaMemGetInfo(&free_after, &total);
    EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
    EXPECT_FALSE(gate.timed_out());
    gate.release();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(free_before, free_after);
    stream.wait();
    EXPECT_EQ(different_outputs(expected, spec.fetch()), "");
  }
}

TEST_F(Streams, TwoStreamsWithTheirOwnWorkspaces) {
  for (const char* text : kCases) {
    SCOPED_TRACE(text);
    DeviceCase first(std::string(text) + " seed1", device_);
    DeviceCase second(std::string(text) + " seed2", device_);
    const testkit::OutputValues expected[2] = {first.run(), second.run()};
    first.judge();
    const Stream streams[2];
    for (int round = 0; round < 10; ++round) {
      first.load();
      second.load();
      first.workspace.poison();
      second.workspace.poison();
      for (int call = 0; call < 5; ++call) {
        EXPECT_TRUE(first.enqueue(streams[0].get(), 66).ok());
        EXPECT_TRUE(second.enqueue(streams[1].get(), 66).ok());
      }
      streams[0].wait();
      streams[1].wait();
      EXPECT_EQ(different_outputs(expected[0], first.fetch()), "") << "round " << round;
      EXPECT_EQ(different_outputs(expected[1], second.fetch()), "") << "round " << round;
    }
  }
}

// One stream, one workspace, all plans in turn.
TEST_F(Streams, OneWorkspaceForManyPlans) {
  std::vector<std::unique_ptr<DeviceCase>> specs;
  std::vector<testkit::OutputValues> expected;
  size_t bytes = 0;
  for (const char* text : kCases) {
    specs.push_back(std::make_unique<DeviceCase>(text, device_));
    expected.push_back(specs.back()->run());
    specs.back()->judge();
    bytes = std::max(bytes, specs.back()->workspace.bytes());
  }
  DeviceBuffer workspace(bytes);
  const Stream stream;
  ExecuteOptions options;
  options.stream = stream.get();
  for (int round = 0; round < 5; ++round) {
    for (const auto& spec : specs) {
      spec->load();
      const Status status = execute(spec->plan, spec->tensors, workspace.data(), bytes, options);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    stream.wait();
    for (size_t n = 0; n < specs.size(); ++n) {
      EXPECT_EQ(different_outputs(expected[n], specs[n]->fetch()), "") << kCases[n];
    }
  }
}

TEST_F(Streams, WorkspacesMayHoldAnything) {
  for (const char* text : kCases) {
    SCOPED_TRACE(text);
    DeviceCase spec(text, device_);
    const testkit::OutputValues expected = spec.run();
    for (const int byte : {0xFF, 0x00, 0x7F, 0xA7, 0x01}) {
      spec.load();
      ASSERT_TRUE(
          succeeded(cudaMemset(spec.workspace.data(), byte, spec.workspace.bytes()), "cudaMemset"));
      EXPECT_TRUE(spec.enqueue(nullptr).ok());
      EXPECT_EQ(different_outputs(expected, spec.fetch()), "") << byte;
    }
  }
}

TEST_F(Streams, MultiprocessorsLeftToOthers) {
  for (const char* text : kCases) {
    SCOPED_TRACE(text);
    DeviceCase spec(text, device_);
    const testkit::OutputValues expected = spec.run();
    for (const int margin : {1, 2, device_.cores / 2, device_.cores - 2, device_.cores - 1}) {
      spec.load();
      const Status status = spec.enqueue(nullptr, margin);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(different_outputs(expected, spec.fetch()), "") << "margin " << margin;
    }
  }
}

// A kernel that is still writing dO when backward is enqueued on its stream.
TEST_F(Streams, BC107_OperandsThatAreWrittenJustBefore) {
  DeviceCase spec("backward bf16 b2 hq8 hkv2 sq400 sk520 d128 causal", device_);
  const testkit::OutputValues expected = spec.run();
  const auto bytes = static_cast<size_t>(element_count(spec.tensors.grad.dout)) * 2;
  DeviceBuffer dout(bytes);
  (void)cudaMemcpy(dout.data(), spec.tensors.grad.dout.data, bytes, cudaMemcpyDeviceToDevice);
  void* target = const_cast<void*>(spec.tensors.grad.dout.data);
  const Stream stream;
  for (int round = 0; round < 10; ++round) {
    spec.load();
    (void)cudaMemsetAsync(target, 0xFF, bytes, stream.get());
    spin(device_.cores, 2000000, stream.get());
    (void)cudaMemcpyAsync(target, dout.data(), bytes, cudaMemcpyDeviceToDevice, stream.get());
    EXPECT_TRUE(spec.enqueue(stream.get()).ok());
    stream.wait();
    EXPECT_EQ(different_outputs(expected, spec.fetch()), "") << "round " << round;
  }
}

// BC-105, BC-106: the same bits every time, also when other kernels hold part of the GPU.
TEST_F(Streams, BC106_RunsUnderOtherLoad) {
  for (const char* text :
       {"backward bf16 b8 h1 sq2048 sk128 d128", "backward bf16 b2 h12 s512 d64",
        "backward bf16 b1 hq16 hkv2 s512 d128 causal", "forward bf16 b2 h12 s512 d64 causal"}) {
    SCOPED_TRACE(text);
    DeviceCase spec(text, device_);
    const testkit::OutputValues expected = spec.run();
    spec.judge();
    const Stream stream;
    const Stream other;
    for (int round = 0; round < 20; ++round) {
      spec.load();
      for (int call = 0; call < 10; ++call) {
        spin(1 + 13 * (round % 7), 20000 * (1 + call), other.get());
        EXPECT_TRUE(spec.enqueue(stream.get()).ok());
      }
      stream.wait();
      other.wait();
      EXPECT_EQ(different_outputs(expected, spec.fetch()), "") << "round " << round;
    }
  }
}

}  // namespace
}  // namespace rowmax::test
