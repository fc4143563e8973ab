// Enqueues one row's kernel. Included by the generated unit of each row of instances.def.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "backend/cuda/check.h"
#include "backend/cuda/sm90/forward/kernel.cuh"
#include "backend/cuda/sm90/forward/prepare.h"

namespace rowmax::cuda::sm90 {

// Bit d: device d's copy of the kernel may use all the shared memory it needs. Setting it twice is
// harmless, so threads need not wait for each other. Internal linkage: two libraries in one process
// must not share it.
template <class Row>
static std::atomic<uint64_t> g_configured_devices{0};

template <class Row>
Status configure_device(int device) {
  constexpr int kBytes = shared_layout(Row::kConfig).bytes;
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((g_configured_devices<Row>.load(std::memory_order_acquire) & bit) != 0) {
    return {};
  }
  const cudaError_t error = cudaFuncSetAttribute(
      forward_kernel<Row>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error == cudaSuccess) {
    g_configured_devices<Row>.fetch_or(bit, std::memory_order_release);
  }
  return cuda_status(error, "cudaFuncSetAttribute", Row::kName);
}

template <class Row>
Status enqueue_forward(const KernelLaunch& launch) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return cuda_status(error, "cudaGetDevice", Row::kName);
  }
  ForwardParams params;
  int grid = 0;
  if (Status status = prepare_forward(launch, Row::kConfig, Row::kName, device, params, grid);
      !status.ok() || grid == 0) {
    return status;
  }
  if (Status status = configure_device<Row>(device); !status.ok()) {
    return status;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(threads(Row::kConfig));
  config.dynamicSmemBytes = shared_layout(Row::kConfig).bytes;
  config.stream = static_cast<cudaStream_t>(launch.stream);
  return cuda_status(cudaLaunchKernelEx(&config, forward_kernel<Row>, params), "cudaLaunchKernelEx",
                     Row::kName);
}

}  // namespace rowmax::cuda::sm90
