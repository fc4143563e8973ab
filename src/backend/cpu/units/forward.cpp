// Forward, for one instruction set and compute type.
#include "backend/cpu/forward-inl.h"

#include "backend/cpu/kernels.h"

namespace rowmax::cpu::ROWMAX_ISA {

void ROWMAX_KERNEL(forward)(const KernelLaunch& launch, int worker) {
  run_forward<ROWMAX_VECTORS>(launch, worker);
}

}  // namespace rowmax::cpu::ROWMAX_ISA
