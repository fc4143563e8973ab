#include "backend/cpu/forward-inl.h"

#include "backend/cpu/kernels.h"

namespace rowmax::cpu::ROWMAX_ISA {

void forward_f32(const KernelLaunch& launch, int worker) { run_forward<F32>(launch, worker); }

#ifdef ROWMAX_ISA_HAS_F64
void forward_f64(const KernelLaunch& launch, int worker) { run_forward<F64>(launch, worker); }
#endif

}  // namespace rowmax::cpu::ROWMAX_ISA
