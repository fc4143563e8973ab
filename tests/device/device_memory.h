// GPU memory and streams that go with their scope, and the fixture that skips without a GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include "rowmax/plan.h"
#include "rowmax/tensor.h"

namespace rowmax::test {

// Fails the test with the runtime's message; false then.
bool succeeded(cudaError_t error, const char* call);

// All bytes are 0xFF: NaN of every floating type.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t bytes) { allocate(bytes); }
  ~DeviceBuffer() { (void)cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void allocate(size_t bytes);
  void poison();
  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Stream {
 public:
  Stream();
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// What a stream captured between begin() and end(), ready to replay.
class Graph {
 public:
  explicit Graph(const Stream& stream) : stream_(stream.get()) {}
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void begin();
  void end();
  void replay();  // and waits
  size_t nodes() const;

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// 16-byte words in which two arrays of GPU memory differ.
unsigned long long differences(const void* a, const void* b, int64_t bytes);

// 16-byte words of GPU memory that are not poison.
unsigned long long written_words(const void* data, int64_t bytes);

// The elements of one tensor in GPU memory to another of the same sizes; poison without a source.
void copy_view(const TensorView& to, const ConstTensorView& from);
void poison_view(const TensorView& view);

// Tests of the first GPU; skipped where that is no Hopper GPU.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override;

  DeviceInfo device_;
};

}  // namespace rowmax::test
