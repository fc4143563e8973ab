// Row statistics before, and sums of partials after, a backward step; for one instruction set.
#include "backend/cpu/row_stats-inl.h"

#include "backend/cpu/reduce-inl.h"

namespace rowmax::cpu::ROWMAX_ISA {

void row_stats_f32(const KernelLaunch& launch, int /*worker*/) { run_row_stats<F32>(launch); }
void reduce_f32(const KernelLaunch& launch, int /*worker*/) { run_reduce<F32>(launch); }

#ifdef ROWMAX_ISA_HAS_F64
void row_stats_f64(const KernelLaunch& launch, int /*worker*/) { run_row_stats<F64>(launch); }
void reduce_f64(const KernelLaunch& launch, int /*worker*/) { run_reduce<F64>(launch); }
#endif

}  // namespace rowmax::cpu::ROWMAX_ISA
