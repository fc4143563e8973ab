#include "backend/cpu/registry.h"

#include "backend/cpu/kernels.h"
#include "backend/cpu/limits.h"
#include "backend/cpu/supports.h"

namespace rowmax::cpu {
namespace {

using ThreadBytes = decltype(KernelEntry::thread_bytes);

constexpr ThreadBytes thread_bytes_of(StepKind step) {
  switch (step) {
    case StepKind::kForward:
      return forward_thread_bytes;
    case StepKind::kDecode:
      return decode_thread_bytes;
    case StepKind::kBackward:
    case StepKind::kBiasGradient:
      return backward_thread_bytes;
    default:
      return no_thread_bytes;
  }
}

#define ROWMAX_ENTRY(isa_name, isa_value, function, kind, ...) \
  {KernelConfig{.name = #function "_" #isa_name,               \
                .step = StepKind::kind,                        \
                .isa = Isa::isa_value,                         \
                __VA_ARGS__},                                  \
   supports, thread_bytes_of(StepKind::kind), isa_name::function},

// An instruction set that this build has no units for contributes no rows.
#define ROWMAX_ROW_portable(...) ROWMAX_ENTRY(portable, kPortable, __VA_ARGS__)
#ifdef ROWMAX_CPU_HAS_avx2
#define ROWMAX_ROW_avx2(...) ROWMAX_ENTRY(avx2, kAvx2, __VA_ARGS__)
#else
#define ROWMAX_ROW_avx2(...)
#endif

#define ROWMAX_INSTANCE(isa, ...) ROWMAX_ROW_##isa(__VA_ARGS__)
const KernelEntry kKernels[] = {
#include "backend/cpu/instances.def"
};
#undef ROWMAX_INSTANCE

}  // namespace

const Backend& backend() {
  static const Backend kBackend = {"cpu", false, kKernels};
  return kBackend;
}

}  // namespace rowmax::cpu
