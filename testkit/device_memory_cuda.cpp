// GPU memory through the CUDA runtime.
#include <cuda_runtime_api.h>

#include <string>

#include "testkit/device_memory.h"

namespace rowmax::testkit {
namespace {

constexpr size_t kBoundary = 256;

Status checked(cudaError_t error, const char* call) {
  return error == cudaSuccess ? Status()
                              : Status(StatusCode::kInternal,
                                       std::string(call) + ": " + cudaGetErrorString(error));
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
    if (Status status = checked(cudaMemcpy(copy.device, copy.host.data, copy.host.bytes,
                                           cudaMemcpyHostToDevice),
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
    if (Status status = checked(cudaMemcpy(copy.host.data, copy.device, copy.host.bytes,
                                           cudaMemcpyDeviceToHost),
                                "copy from the GPU");
        !status.ok()) {
      return status;
    }
  }
  return {};
}

}  // namespace rowmax::testkit
