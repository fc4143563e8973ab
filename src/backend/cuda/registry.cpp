#include "backend/cuda/registry.h"

#include <vector>

#include "backend/cuda/runtime.h"
#include "backend/cuda/sm90/backward/config.h"
#include "backend/cuda/sm90/backward/supports.h"
#include "backend/cuda/sm90/forward/config.h"
#include "backend/cuda/sm90/forward/supports.h"

namespace rowmax::cuda {
namespace sm90 {
namespace {

// Steps of backward/helpers.def.
namespace helper_step {
constexpr StepKind row_stats = StepKind::kRowStats;
constexpr StepKind reduce = StepKind::kReduce;
}  // namespace helper_step

constexpr KernelEntry new_entry(const char* name, StepKind step, Element element) {
  KernelEntry entry;
  entry.config.name = name;
  entry.config.step = step;
  entry.config.isa = Isa::kSm90;
  entry.config.compute = Compute::kF32;
  entry.config.dtype = element == Element::kBF16 ? DType::kBF16 : DType::kF16;
  return entry;
}

constexpr KernelEntry forward_entry(const char* name, const ForwardConfig& row) {
  KernelEntry entry = new_entry(name, StepKind::kForward, row.element);
  KernelConfig& config = entry.config;
  config.tile_q = row.tile_q;
  config.tile_k = row.tile_k;
  config.head_dim = row.head_dim;
  config.head_dim_v = row.head_dim_v;
  config.stages = row.stages;
  config.warpgroups = row.warpgroups;
  config.q_load_rows = q_load_rows(row);
  config.mask = row.mask;
  config.options = row.options;
  entry.supports = supports;
  return entry;
}

constexpr KernelEntry backward_entry(const char* name, const BackwardConfig& row) {
  KernelEntry entry = new_entry(name, StepKind::kBackward, row.element);
  KernelConfig& config = entry.config;
  config.tile_q = row.tile_q;
  config.tile_k = row.tile_k;
  config.head_dim = row.head_dim;
  config.head_dim_v = row.head_dim;
  config.stages = row.stages;
  config.warpgroups = kKeyWarpgroups;
  config.mask = row.mask;
  config.options = OptionClass::kNone;
  config.first_stores = true;
  entry.supports = supports_backward;
  return entry;
}

constexpr KernelEntry helper_entry(const char* name, StepKind step, Element element) {
  KernelEntry entry = new_entry(name, step, element);
  entry.supports = supports_helper;
  return entry;
}

constexpr KernelEntry kKernels[] = {
#define ROWMAX_INSTANCE(name, ...) forward_entry(#name, ForwardConfig{__VA_ARGS__}),
#include "backend/cuda/sm90/forward/instances.def"
#undef ROWMAX_INSTANCE
#define ROWMAX_INSTANCE(name, ...) backward_entry(#name, BackwardConfig{__VA_ARGS__}),
#include "backend/cuda/sm90/backward/instances.def"
#undef ROWMAX_INSTANCE
#define ROWMAX_HELPER(name, step, element) \
  helper_entry("sm90_" #name, helper_step::step, Element::element),
#include "backend/cuda/sm90/backward/helpers.def"
#undef ROWMAX_HELPER
};

}  // namespace
}  // namespace sm90

const Backend& backend() {
  static const std::vector<KernelEntry> kKernels = [] {
    std::vector<KernelEntry> kernels(std::begin(sm90::kKernels), std::end(sm90::kKernels));
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
