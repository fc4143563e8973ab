// Enqueues the rows' kernels. Host code: the units of the kernels hold nothing but device code, and
// compile in a third of the time.
#include <cuda_runtime_api.h>

#include <atomic>

#include "backend/cuda/check.h"
#include "backend/cuda/sm90/forward/prepare.h"

namespace rowmax::cuda::sm90 {
namespace {

struct Row {
  const char* name;
  ForwardConfig config;
  const void* kernel;
  // Bit d: device d's copy of the kernel may use all the shared memory it needs.
  std::atomic<uint64_t>* configured;
};

// Setting the attribute twice is harmless, so threads need not wait for each other.
Status configure_device(const Row& row, int device) {
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((row.configured->load(std::memory_order_acquire) & bit) != 0) {
    return {};
  }
  const cudaError_t error = cudaFuncSetAttribute(
      row.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_layout(row.config).bytes);
  if (error == cudaSuccess) {
    row.configured->fetch_or(bit, std::memory_order_release);
  }
  return cuda_status(error, "cudaFuncSetAttribute", row.name);
}

Status enqueue(const KernelLaunch& launch, const Row& row) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return cuda_status(error, "cudaGetDevice", row.name);
  }
  ForwardParams params;
  int grid = 0;
  if (Status status = prepare_forward(launch, row.config, row.name, device, params, grid);
      !status.ok() || grid == 0) {
    return status;
  }
  if (Status status = configure_device(row, device); !status.ok()) {
    return status;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads(row.config)));
  config.dynamicSmemBytes = static_cast<size_t>(shared_layout(row.config).bytes);
  config.stream = static_cast<cudaStream_t>(launch.stream);
  void* arguments[] = {&params};
  return cuda_status(cudaLaunchKernelExC(&config, row.kernel, arguments), "cudaLaunchKernelExC",
                     row.name);
}

}  // namespace

#define ROWMAX_INSTANCE(name, ...)                                                             \
  const void* kernel_##name();                                                                 \
  Status enqueue_##name(const KernelLaunch& launch) {                                          \
    static std::atomic<uint64_t> configured{0};                                                \
    return enqueue(launch, {#name, ForwardConfig{__VA_ARGS__}, kernel_##name(), &configured}); \
  }
#include "backend/cuda/sm90/forward/instances.def"
#undef ROWMAX_INSTANCE

}  // namespace rowmax::cuda::sm90
