#include "backend/cuda/launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "backend/cuda/check.h"

namespace rowmax::cuda {
namespace {

// Kernels may use this much without being configured.
constexpr int kFreeSharedBytes = 48 << 10;

// Setting the attribute twice is harmless, so threads need not wait for each other.
Status configure_device(const CompiledKernel& kernel, int device) {
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if (kernel.shared_bytes <= kFreeSharedBytes ||
      (kernel.configured->load(std::memory_order_acquire) & bit) != 0) {
    return {};
  }
  const cudaError_t error = cudaFuncSetAttribute(
      kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
  if (error == cudaSuccess) {
    kernel.configured->fetch_or(bit, std::memory_order_release);
  }
  return cuda_status(error, "cudaFuncSetAttribute", kernel.name);
}

}  // namespace

Status current_device(const char* kernel, int& device) {
  return cuda_status(cudaGetDevice(&device), "cudaGetDevice", kernel);
}

Status usable_multiprocessors(const char* kernel, int device, int margin, int& count) {
  const cudaError_t error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  count = std::max(1, count - margin);
  return cuda_status(error, "cudaDeviceGetAttribute", kernel);
}

Status launch_kernel(const CompiledKernel& kernel, int device, const Grid& grid, void* stream,
                     void** arguments) {
  if (Status status = configure_device(kernel, device); !status.ok()) {
    return status;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.x));
  config.blockDim = dim3(static_cast<unsigned>(grid.threads));
  config.dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  return cuda_status(cudaLaunchKernelExC(&config, kernel.function, arguments),
                     "cudaLaunchKernelExC", kernel.name);
}

}  // namespace rowmax::cuda
