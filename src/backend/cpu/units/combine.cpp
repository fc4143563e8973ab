// Combine, for one instruction set and compute type.
#include "backend/cpu/combine-inl.h"

#include "backend/cpu/kernels.h"

namespace rowmax::cpu::ROWMAX_ISA {

void ROWMAX_KERNEL(combine)(const KernelLaunch& launch, int worker) {
  run_combine<ROWMAX_VECTORS>(launch, worker);
}

}  // namespace rowmax::cpu::ROWMAX_ISA
