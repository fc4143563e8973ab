// Gradient of an additive bias for one instruction set.
#include "backend/cpu/bias_gradient-inl.h"

namespace rowmax::cpu::ROWMAX_ISA {

void bias_gradient_f32(const KernelLaunch& launch, int worker) {
  run_bias_gradient<F32>(launch, worker);
}

#ifdef ROWMAX_ISA_HAS_F64
void bias_gradient_f64(const KernelLaunch& launch, int worker) {
  run_bias_gradient<F64>(launch, worker);
}
#endif

}  // namespace rowmax::cpu::ROWMAX_ISA
