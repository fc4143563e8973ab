// Backward for one instruction set.
#include "backend/cpu/backward-inl.h"

namespace rowmax::cpu::ROWMAX_ISA {

void backward_f32(const KernelLaunch& launch, int worker) { run_backward<F32>(launch, worker); }

#ifdef ROWMAX_ISA_HAS_F64
void backward_f64(const KernelLaunch& launch, int worker) { run_backward<F64>(launch, worker); }
#endif

}  // namespace rowmax::cpu::ROWMAX_ISA
