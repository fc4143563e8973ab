#include "backend/cpu/combine-inl.h"

#include "backend/cpu/kernels.h"

namespace rowmax::cpu::ROWMAX_ISA {

void combine_f32(const KernelLaunch& launch, int worker) { run_combine<F32>(launch, worker); }

#ifdef ROWMAX_ISA_HAS_F64
void combine_f64(const KernelLaunch& launch, int worker) { run_combine<F64>(launch, worker); }
#endif

}  // namespace rowmax::cpu::ROWMAX_ISA
