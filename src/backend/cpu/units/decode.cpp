// Decode, for one instruction set and compute type.
#include "backend/cpu/decode-inl.h"

#include "backend/cpu/kernels.h"

namespace rowmax::cpu::ROWMAX_ISA {

void ROWMAX_KERNEL(decode)(const KernelLaunch& launch, int worker) {
  decode_worker<ROWMAX_VECTORS>(launch, worker);
}

}  // namespace rowmax::cpu::ROWMAX_ISA
