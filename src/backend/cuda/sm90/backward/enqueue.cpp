// Enqueues the three kernels of a backward pass.
#include <algorithm>

#include "backend/cuda/launch.h"
#include "backend/cuda/sm90/backward/helper_kernels.h"
#include "backend/cuda/sm90/backward/prepare.h"

namespace rowmax::cuda::sm90 {
namespace {

Status enqueue(const KernelLaunch& launch, const BackwardConfig& config,
               const CompiledKernel& kernel) {
  int device = 0;
  if (Status status = current_device(kernel.name, device); !status.ok()) {
    return status;
  }
  BackwardParams params;
  if (Status status = prepare_backward(launch, config, kernel.name, params); !status.ok()) {
    return status;
  }
  if (params.tiles == 0) {
    return {};
  }
  Grid grid;
  grid.threads = kBackwardThreads;
  if (Status status = usable_multiprocessors(kernel.name, device, launch.sm_margin, grid.x);
      !status.ok()) {
    return status;
  }
  grid.x = std::min(grid.x, params.tiles);
  void* arguments[] = {&params};
  return launch_kernel(kernel, device, grid, launch.stream, arguments);
}

template <class Params>
Status enqueue_helper(const KernelLaunch& launch, const CompiledKernel& kernel, Params params) {
  int device = 0;
  if (params.ctas == 0) {
    return {};
  }
  if (Status status = current_device(kernel.name, device); !status.ok()) {
    return status;
  }
  Grid grid;
  grid.x = params.ctas;
  grid.threads = kHelperThreads;
  void* arguments[] = {&params};
  return launch_kernel(kernel, device, grid, launch.stream, arguments);
}

}  // namespace

#define ROWMAX_INSTANCE(name, ...)                                                         \
  const void* kernel_##name();                                                             \
  Status enqueue_##name(const KernelLaunch& launch) {                                      \
    static std::atomic<uint64_t> configured{0};                                            \
    constexpr BackwardConfig kConfig{__VA_ARGS__};                                         \
    return enqueue(launch, kConfig,                                                        \
                   {#name, kernel_##name(), backward_layout(kConfig).bytes, &configured}); \
  }
#include "backend/cuda/sm90/backward/instances.def"
#undef ROWMAX_INSTANCE

#define ROWMAX_HELPER(name, step, element)                                                      \
  Status enqueue_sm90_##name(const KernelLaunch& launch) {                                      \
    if (Status status = check_operand_maps(launch, "sm90_" #name); !status.ok()) {              \
      return status;                                                                            \
    }                                                                                           \
    return enqueue_helper(launch, {"sm90_" #name, kernel_##step(Element::element), 0, nullptr}, \
                          prepare_##step(launch));                                              \
  }
#include "backend/cuda/sm90/backward/helpers.def"
#undef ROWMAX_HELPER

}  // namespace rowmax::cuda::sm90
