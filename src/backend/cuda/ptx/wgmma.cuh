// wgmma m64nNk16, 16-bit operands, fp32 accumulators, and its shared-memory descriptors.
//
// A tile is stored in panels of 64 columns: a panel holds one row of 128 bytes per tile row, with
// the copy engine's 128-byte swizzle. Descriptors:
//   K-major operand (Q, K): SBO = 1024 bytes (8 rows), LBO unused. The next 16 of k are 32 bytes
//     further in a panel, or in the next panel.
//   MN-major operand (V): LBO = bytes of a panel (the next 64 of n), SBO = 1024 (the next 8 of k).
//     The next 16 of k are 2048 bytes further. A, too, may be stored so.
#pragma once

#include "backend/cuda/ptx/types.cuh"

namespace rowmax::cuda::ptx {

enum class Mma : int { kBF16 = 0, kF16 };

// Which index of an operand in shared memory is contiguous.
enum class Major : int { kK = 0, kMN };

// Low words of descriptors, linear in the address: 16 more bytes add 1. `base` is the shared
// address of the CTA's memory, below 2^18; `offset` and `panel_bytes` are constants.
ROWMAX_DEVICE uint32_t descriptor_k_major(uint32_t base, uint32_t offset) {
  return (base >> 4) + (offset >> 4) + (1u << 16);
}
ROWMAX_DEVICE uint32_t descriptor_mn_major(uint32_t base, uint32_t offset, uint32_t panel_bytes) {
  return (base >> 4) + (offset >> 4) + ((panel_bytes >> 4) << 16);
}

// The high word is the same for both: 128-byte swizzle, SBO = 1024 bytes.
ROWMAX_DEVICE uint64_t descriptor(uint32_t low) {
  constexpr uint64_t kHigh = (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32);
  return kHigh | low;
}

ROWMAX_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

ROWMAX_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kGroups>
ROWMAX_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Keeps everything that feeds x ahead of what follows in the SASS. ptxas is free to sink arithmetic
// below a wgmma wait (it sank all exponentials below it, so that nothing overlapped), but keeps the
// order of shared-memory stores and waits. The store happens for one value of x only, into a word
// that nobody reads.
ROWMAX_DEVICE void order_after(float x, uint32_t scratch) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.eq.f32 p, %0, 0f7F7FFFFF;\n"
      "@p st.shared.f32 [%1], %0;\n"
      "}\n" ::"f"(x),
      "r"(scratch)
      : "memory");
}

// Pins a register array at this point of the program: put it after wgmma_wait, since the compiler
// believes that a wgmma's results exist as soon as it was issued.
template <int kCount>
ROWMAX_DEVICE void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(registers[i])::"memory");
  }
}

// Ends the life of values that the next wgmma overwrites: its operands are read as far as the
// compiler knows, and keeping them apart from what was made of them takes registers.
template <int kCount>
ROWMAX_DEVICE void discard(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "=f"(registers[i]));
  }
}

template <int kCount>
ROWMAX_DEVICE void pin(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+r"(registers[i])::"memory");
  }
}

// ss: A and B in shared memory, of one major each, K-major by default. rs: A in 4 registers, B
// MN-major in shared memory. accumulate = 0 overwrites D, 1 adds to it.
template <int kN>
struct Wgmma;

// Constraints of 8, 16, 32, 64 accumulators from index i.
#define ROWMAX_ACC8(d, i)                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define ROWMAX_ACC16(d, i) ROWMAX_ACC8(d, i), ROWMAX_ACC8(d, i + 8)
#define ROWMAX_ACC32(d, i) ROWMAX_ACC16(d, i), ROWMAX_ACC16(d, i + 16)
#define ROWMAX_ACC64(d, i) ROWMAX_ACC32(d, i), ROWMAX_ACC32(d, i + 32)

// Names of the accumulator operands.
#define ROWMAX_REGS32                                                      \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ROWMAX_REGS40 ROWMAX_REGS32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define ROWMAX_REGS48 ROWMAX_REGS40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define ROWMAX_REGS56 ROWMAX_REGS48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define ROWMAX_REGS64 ROWMAX_REGS56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define ROWMAX_REGS72 ROWMAX_REGS64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define ROWMAX_REGS80 ROWMAX_REGS72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define ROWMAX_REGS88 ROWMAX_REGS80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ROWMAX_REGS96 ROWMAX_REGS88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define ROWMAX_REGS112                           \
  ROWMAX_REGS96                                  \
  ", %96, %97, %98, %99, %100, %101, %102, %103" \
  ", %104, %105, %106, %107, %108, %109, %110, %111"
#define ROWMAX_REGS128                               \
  ROWMAX_REGS112                                     \
  ", %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"

// P0 ... P5: numbers of the operands that follow the accumulators.
#define ROWMAX_WGMMA_SS(TYPE, N, NAMES, ACC, P0, P1, P2, P3, P4)                          \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P2                                   \
               ", 0;\n"                                                                   \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES \
               "}, %" #P0 ", %" #P1 ", p, 1, 1, %" #P3 ", %" #P4 ";\n}\n"                 \
               : ACC                                                                      \
               : "l"(a), "l"(b), "r"(accumulate), "n"(static_cast<int>(kMajor)),          \
                 "n"(static_cast<int>(kMajor)))
#define ROWMAX_WGMMA_RS(TYPE, N, NAMES, ACC, P0, P1, P2, P3, P4, P5)                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P5                                   \
               ", 0;\n"                                                                   \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES \
               "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4 ", p, 1, 1, 1;\n}\n"  \
               : ACC                                                                      \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulate))
#define ROWMAX_WGMMA(N, REGISTERS, NAMES, ACC, P0, P1, P2, P3, P4, P5)                            \
  template <>                                                                                     \
  struct Wgmma<N> {                                                                               \
    template <Mma kMma, Major kMajor = Major::kK>                                                 \
    static ROWMAX_DEVICE void ss(float (&d)[REGISTERS], uint64_t a, uint64_t b, int accumulate) { \
      if constexpr (kMma == Mma::kBF16) {                                                         \
        ROWMAX_WGMMA_SS("bf16", N, NAMES, ROWMAX_LIST(ACC), P0, P1, P2, P3, P4);                  \
      } else {                                                                                    \
        ROWMAX_WGMMA_SS("f16", N, NAMES, ROWMAX_LIST(ACC), P0, P1, P2, P3, P4);                   \
      }                                                                                           \
    }                                                                                             \
    template <Mma kMma>                                                                           \
    static ROWMAX_DEVICE void rs(float (&d)[REGISTERS], uint32_t a0, uint32_t a1, uint32_t a2,    \
                                 uint32_t a3, uint64_t b, int accumulate) {                       \
      if constexpr (kMma == Mma::kBF16) {                                                         \
        ROWMAX_WGMMA_RS("bf16", N, NAMES, ROWMAX_LIST(ACC), P0, P1, P2, P3, P4, P5);              \
      } else {                                                                                    \
        ROWMAX_WGMMA_RS("f16", N, NAMES, ROWMAX_LIST(ACC), P0, P1, P2, P3, P4, P5);               \
      }                                                                                           \
    }                                                                                             \
  };
#define ROWMAX_LIST(...) __VA_ARGS__

#define ROWMAX_ACC_N64 ROWMAX_ACC32(d, 0)
ROWMAX_WGMMA(64, 32, ROWMAX_REGS32, ROWMAX_LIST(ROWMAX_ACC_N64), 32, 33, 34, 35, 36, 37)
#define ROWMAX_ACC_N80 ROWMAX_ACC32(d, 0), ROWMAX_ACC8(d, 32)
ROWMAX_WGMMA(80, 40, ROWMAX_REGS40, ROWMAX_LIST(ROWMAX_ACC_N80), 40, 41, 42, 43, 44, 45)
#define ROWMAX_ACC_N96 ROWMAX_ACC32(d, 0), ROWMAX_ACC16(d, 32)
ROWMAX_WGMMA(96, 48, ROWMAX_REGS48, ROWMAX_LIST(ROWMAX_ACC_N96), 48, 49, 50, 51, 52, 53)
#define ROWMAX_ACC_N112 ROWMAX_ACC32(d, 0), ROWMAX_ACC16(d, 32), ROWMAX_ACC8(d, 48)
ROWMAX_WGMMA(112, 56, ROWMAX_REGS56, ROWMAX_LIST(ROWMAX_ACC_N112), 56, 57, 58, 59, 60, 61)
#define ROWMAX_ACC_N128 ROWMAX_ACC64(d, 0)
ROWMAX_WGMMA(128, 64, ROWMAX_REGS64, ROWMAX_LIST(ROWMAX_ACC_N128), 64, 65, 66, 67, 68, 69)
#define ROWMAX_ACC_N144 ROWMAX_ACC64(d, 0), ROWMAX_ACC8(d, 64)
ROWMAX_WGMMA(144, 72, ROWMAX_REGS72, ROWMAX_LIST(ROWMAX_ACC_N144), 72, 73, 74, 75, 76, 77)
#define ROWMAX_ACC_N160 ROWMAX_ACC64(d, 0), ROWMAX_ACC16(d, 64)
ROWMAX_WGMMA(160, 80, ROWMAX_REGS80, ROWMAX_LIST(ROWMAX_ACC_N160), 80, 81, 82, 83, 84, 85)
#define ROWMAX_ACC_N176 ROWMAX_ACC64(d, 0), ROWMAX_ACC16(d, 64), ROWMAX_ACC8(d, 80)
ROWMAX_WGMMA(176, 88, ROWMAX_REGS88, ROWMAX_LIST(ROWMAX_ACC_N176), 88, 89, 90, 91, 92, 93)
#define ROWMAX_ACC_N192 ROWMAX_ACC64(d, 0), ROWMAX_ACC32(d, 64)
ROWMAX_WGMMA(192, 96, ROWMAX_REGS96, ROWMAX_LIST(ROWMAX_ACC_N192), 96, 97, 98, 99, 100, 101)
#define ROWMAX_ACC_N224 ROWMAX_ACC64(d, 0), ROWMAX_ACC32(d, 64), ROWMAX_ACC16(d, 96)
ROWMAX_WGMMA(224, 112, ROWMAX_REGS112, ROWMAX_LIST(ROWMAX_ACC_N224), 112, 113, 114, 115, 116, 117)
#define ROWMAX_ACC_N256 ROWMAX_ACC64(d, 0), ROWMAX_ACC64(d, 64)
ROWMAX_WGMMA(256, 128, ROWMAX_REGS128, ROWMAX_LIST(ROWMAX_ACC_N256), 128, 129, 130, 131, 132, 133)

}  // namespace rowmax::cuda::ptx
