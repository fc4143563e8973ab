#include "backend/cuda/registry.h"

#include <vector>

#include "backend/cuda/runtime.h"
#include "backend/cuda/sm90/forward/config.h"
#include "backend/cuda/sm90/forward/supports.h"

namespace rowmax::cuda {
namespace sm90 {
namespace {

constexpr KernelEntry forward_entry(const char* name, const ForwardConfig& row) {
  KernelEntry entry;
  KernelConfig& config = entry.config;
  config.name = name;
  config.step = StepKind::kForward;
  config.isa = Isa::kSm90;
  config.compute = Compute::kF32;
  config.tile_q = row.tile_q;
  config.tile_k = row.tile_k;
  config.dtype = row.element == Element::kBF16 ? DType::kBF16 : DType::kF16;
  config.head_dim = row.head_dim;
  config.head_dim_v = row.head_dim_v;
  config.stages = row.stages;
  config.warpgroups = row.warpgroups;
  config.mask = row.mask;
  config.options = row.options;
  entry.supports = supports;
  return entry;
}

#define ROWMAX_INSTANCE(name, ...) forward_entry(#name, ForwardConfig{__VA_ARGS__}),
constexpr KernelEntry kForwardKernels[] = {
#include "backend/cuda/sm90/forward/instances.def"
};
#undef ROWMAX_INSTANCE

}  // namespace
}  // namespace sm90

const Backend& backend() {
  static const std::vector<KernelEntry> kKernels = [] {
    std::vector<KernelEntry> kernels(std::begin(sm90::kForwardKernels),
                                     std::end(sm90::kForwardKernels));
    for (KernelEntry& entry : kernels) {
      entry.enqueue = runtime().kernel(entry.config.name);
    }
    return kernels;
  }();
  static const Backend kBackend = {.name = "cuda",
                                   .kernels = kKernels,
                                   .device_kind = "cuda",
                                   .device = runtime().device,
                                   .enqueue = runtime().enqueue};
  return kBackend;
}

}  // namespace rowmax::cuda
