// Entry points of the kernel units, one set for each instruction set and compute type. A unit of
// instruction set <isa> defines them in rowmax::cpu::<isa>; the rows of instances.def name them.
#pragma once

#include "kernel_api/kernel.h"

#define ROWMAX_DECLARE_KERNEL(name) void name(const KernelLaunch& launch, int worker);

#define ROWMAX_DECLARE_F32_KERNELS         \
  ROWMAX_DECLARE_KERNEL(forward_f32)       \
  ROWMAX_DECLARE_KERNEL(decode_f32)        \
  ROWMAX_DECLARE_KERNEL(combine_f32)       \
  ROWMAX_DECLARE_KERNEL(row_stats_f32)     \
  ROWMAX_DECLARE_KERNEL(backward_f32)      \
  ROWMAX_DECLARE_KERNEL(bias_gradient_f32) \
  ROWMAX_DECLARE_KERNEL(reduce_f32)

#define ROWMAX_DECLARE_F64_KERNELS         \
  ROWMAX_DECLARE_KERNEL(forward_f64)       \
  ROWMAX_DECLARE_KERNEL(decode_f64)        \
  ROWMAX_DECLARE_KERNEL(combine_f64)       \
  ROWMAX_DECLARE_KERNEL(row_stats_f64)     \
  ROWMAX_DECLARE_KERNEL(backward_f64)      \
  ROWMAX_DECLARE_KERNEL(bias_gradient_f64) \
  ROWMAX_DECLARE_KERNEL(reduce_f64)

// In a unit: the kernel's name with the unit's compute type, ROWMAX_COMPUTE (f32 or f64); its
// vectors are ROWMAX_VECTORS (F32 or F64).
#define ROWMAX_JOIN_KERNEL(name, compute) name##_##compute
#define ROWMAX_EXPAND_KERNEL(name, compute) ROWMAX_JOIN_KERNEL(name, compute)
#define ROWMAX_KERNEL(name) ROWMAX_EXPAND_KERNEL(name, ROWMAX_COMPUTE)

namespace rowmax::cpu {

namespace portable {
ROWMAX_DECLARE_F32_KERNELS
ROWMAX_DECLARE_F64_KERNELS
}  // namespace portable

namespace avx2 {
ROWMAX_DECLARE_F32_KERNELS
}  // namespace avx2

}  // namespace rowmax::cpu
