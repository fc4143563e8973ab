// What runs plans on a GPU: devices of this process, and the steps of a plan on a stream. Builds
// without ROWMAX_CUDA have none of it.
#pragma once

#include <string_view>

#include "kernel_api/kernel.h"
#include "kernel_api/plan_data.h"
#include "rowmax/plan.h"

namespace rowmax::cuda {

using Enqueue = Status (*)(const KernelLaunch& launch);

struct Runtime {
  // The GPU of this number. kUnsupported when there is none (no driver, no such device).
  Result<DeviceInfo> (*device)(int ordinal) = nullptr;
  // Enqueues the plan's steps on launch.stream, on the device that holds O; the current device is
  // the same afterwards. Refuses host memory, another architecture than the plan's, and operands
  // that the bulk copy engine cannot move (multiples of 16 bytes).
  Status (*enqueue)(const detail::PlanData& plan, const KernelLaunch& launch) = nullptr;
  // The kernel of a row by its name, or null.
  Enqueue (*kernel)(std::string_view name) = nullptr;
};

// All null but `kernel` in a build without kernels.
const Runtime& runtime();

}  // namespace rowmax::cuda
