// Decode for one instruction set.
#include "backend/cpu/decode-inl.h"

namespace rowmax::cpu::ROWMAX_ISA {

void decode_f32(const KernelLaunch& launch, int worker) { decode_worker<F32>(launch, worker); }

#ifdef ROWMAX_ISA_HAS_F64
void decode_f64(const KernelLaunch& launch, int worker) { decode_worker<F64>(launch, worker); }
#endif

}  // namespace rowmax::cpu::ROWMAX_ISA
