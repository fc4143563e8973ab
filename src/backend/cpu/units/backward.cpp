// Backward, for one instruction set and compute type.
#include "backend/cpu/backward-inl.h"

#include "backend/cpu/kernels.h"

namespace rowmax::cpu::ROWMAX_ISA {

void ROWMAX_KERNEL(backward)(const KernelLaunch& launch, int worker) {
  run_backward<ROWMAX_VECTORS>(launch, worker);
}

}  // namespace rowmax::cpu::ROWMAX_ISA
