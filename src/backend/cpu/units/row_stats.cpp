// Row statistics before, and sums of partials after, a backward step; for one instruction set and
// compute type.
#include "backend/cpu/row_stats-inl.h"

#include "backend/cpu/kernels.h"
#include "backend/cpu/reduce-inl.h"

namespace rowmax::cpu::ROWMAX_ISA {

void ROWMAX_KERNEL(row_stats)(const KernelLaunch& launch, int /*worker*/) {
  run_row_stats<ROWMAX_VECTORS>(launch);
}
void ROWMAX_KERNEL(reduce)(const KernelLaunch& launch, int /*worker*/) {
  run_reduce<ROWMAX_VECTORS>(launch);
}

}  // namespace rowmax::cpu::ROWMAX_ISA
