// Gradient of an additive bias, for one instruction set and compute type.
#include "backend/cpu/bias_gradient-inl.h"

#include "backend/cpu/kernels.h"

namespace rowmax::cpu::ROWMAX_ISA {

void ROWMAX_KERNEL(bias_gradient)(const KernelLaunch& launch, int worker) {
  run_bias_gradient<ROWMAX_VECTORS>(launch, worker);
}

}  // namespace rowmax::cpu::ROWMAX_ISA
