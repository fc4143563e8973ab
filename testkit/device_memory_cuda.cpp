// GPU memory through the CUDA runtime.
#include <cuda_runtime_api.h>

#include <string>

#include "testkit/device_memory.h"

namespace rowmax::testkit {
namespace {

constexpr size_t kBoundary = 256;

Status checked(cudaError_t error, const char* call) {
  return error == cudaSuccess
             ? Status()
             : Status(StatusCode::kInternal, std::string(call) + ": " + cudaGetErrorString(error));
}

}  // namespace

Result<std::unique_ptr<DeviceMirror>> DeviceMirror::create(const std::vector<HostBlock>& blocks,
                                                           int ordinal) {
  std::unique_ptr<DeviceMirror> mirror(new DeviceMirror(ordinal));
  if (Status status = checked(cudaSetDevice(ordinal), "cudaSetDevice"); !status.ok()) {
    return status;
  }
  for (const HostBlock& block : blocks) {
    Copy copy{block, nullptr, nullptr};
    void* allocation = nullptr;
    if (Status status = checked(cudaMalloc(&allocation, block.bytes + kBoundary), "cudaMalloc");
        !status.ok()) {
      return status;
    }
    copy.allocation = static_cast<unsigned char*>(allocation);
    copy.device = copy.allocation + reinterpret_cast<uintptr_t>(block.data) % kBoundary;
    mirror->copies_.push_back(copy);
  }
  return mirror;
}

DeviceMirror::~DeviceMirror() {
  for (const Copy& copy : copies_) {
    (void)cudaFree(copy.allocation);
  }
}

Status DeviceMirror::upload() {
  for (const Copy& copy : copies_) {
    if (Status status = checked(
            cudaMemcpy(copy.device, copy.host.data, copy.host.bytes, cudaMemcpyHostToDevice),
            "copy to the GPU");
        !status.ok()) {
      return status;
    }
  }
  return {};
}

Status DeviceMirror::download() {
  if (Status status = checked(cudaDeviceSynchronize(), "kernel"); !status.ok()) {
    return status;
  }
  for (const Copy& copy : copies_) {
    if (Status status = checked(
            cudaMemcpy(copy.host.data, copy.device, copy.host.bytes, cudaMemcpyDeviceToHost),
            "copy from the GPU");
        !status.ok()) {
      return status;
    }
  }
  return {};
}

// Owns what a measurement needs; whatever was created goes with it.
struct GraphTimer {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;

  ~GraphTimer() {
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    (void)cudaStreamDestroy(stream);
  }

  Status create() {
    Status status = checked(cudaStreamCreate(&stream), "cudaStreamCreate");
    status = status.ok() ? checked(cudaEventCreate(&begin), "cudaEventCreate") : status;
    return status.ok() ? checked(cudaEventCreate(&end), "cudaEventCreate") : status;
  }

  Status capture(int calls, const std::function<Status(void*)>& call) {
    Status status = checked(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
                            "cudaStreamBeginCapture");
    for (int n = 0; n < calls && status.ok(); ++n) {
      status = call(stream);
    }
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    status = status.ok() ? checked(ended, "cudaStreamEndCapture") : status;
    return status.ok()
               ? checked(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate")
               : status;
  }

  Status replay() {
    (void)cudaEventRecord(begin, stream);
    const Status status = checked(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    (void)cudaEventRecord(end, stream);
    return status.ok() ? checked(cudaStreamSynchronize(stream), "graph") : status;
  }
};

Result<double> timed_on_gpu(int ordinal, int calls, const std::function<Status(void*)>& call) {
  if (Status status = checked(cudaSetDevice(ordinal), "cudaSetDevice"); !status.ok()) {
    return status;
  }
  GraphTimer timer;
  Status status = timer.create();
  status = status.ok() ? timer.capture(calls, call) : status;
  status = status.ok() ? timer.replay() : status;
  status = status.ok() ? timer.replay() : status;
  float milliseconds = 0.0f;
  status = status.ok() ? checked(cudaEventElapsedTime(&milliseconds, timer.begin, timer.end),
                                 "cudaEventElapsedTime")
                       : status;
  return status.ok() ? Result<double>(milliseconds * 1e-3 / calls) : Result<double>(status);
}

}  // namespace rowmax::testkit
