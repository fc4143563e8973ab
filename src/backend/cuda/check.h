// CUDA errors as Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "rowmax/status.h"

namespace rowmax::cuda {

// OK, or the error with the call that returned it, the current device and the kernel at work (may
// be empty). Running out of device memory is kOutOfMemory, everything else kInternal. Clears the
// runtime's last error, which would otherwise surface in a later call of somebody else.
inline Status cuda_status(cudaError_t error, const char* call, const char* kernel = "") {
  if (error == cudaSuccess) {
    return {};
  }
  (void)cudaGetLastError();
  int device = -1;
  (void)cudaGetDevice(&device);
  const std::string kernel_text = *kernel != '\0' ? std::string(", kernel ") + kernel : "";
  return {error == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kInternal,
          std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) +
              "), device " + std::to_string(device) + kernel_text};
}

}  // namespace rowmax::cuda
