// Enqueues the rows' kernels. Host code: the units of the kernels hold nothing but device code, and
// compile in a third of the time.
#include "backend/cuda/launch.h"
#include "backend/cuda/sm90/forward/prepare.h"

namespace rowmax::cuda::sm90 {
namespace {

Status enqueue(const KernelLaunch& launch, const ForwardConfig& config,
               const CompiledKernel& kernel) {
  int device = 0;
  if (Status status = current_device(kernel.name, device); !status.ok()) {
    return status;
  }
  ForwardParams params;
  Grid grid;
  grid.threads = threads(config);
  if (Status status = prepare_forward(launch, config, kernel.name, device, params, grid.x);
      !status.ok() || grid.x == 0) {
    return status;
  }
  void* arguments[] = {&params};
  return launch_kernel(kernel, device, grid, launch.stream, arguments);
}

}  // namespace

#define ROWMAX_INSTANCE(name, ...)                                                       \
  const void* kernel_##name();                                                           \
  Status enqueue_##name(const KernelLaunch& launch) {                                    \
    static std::atomic<uint64_t> configured{0};                                          \
    constexpr ForwardConfig kConfig{__VA_ARGS__};                                        \
    return enqueue(launch, kConfig,                                                      \
                   {#name, kernel_##name(), shared_layout(kConfig).bytes, &configured}); \
  }
#include "backend/cuda/sm90/forward/instances.def"
#undef ROWMAX_INSTANCE

}  // namespace rowmax::cuda::sm90
