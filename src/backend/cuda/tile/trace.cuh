// Timelines of the roles of a CTA, in builds with ROWMAX_CUDA_TRACE; nothing in others. A role is
// in one state at a time: a mark ends the state before it.
#pragma once

#include "backend/cuda/ptx/types.cuh"
#include "backend/cuda/trace_record.h"

namespace rowmax::cuda::tile {

#if defined(ROWMAX_CUDA_TRACE)

class Trace {
 public:
  // Written by one thread of the role, without a branch: it would change the code around it.
  ROWMAX_DEVICE Trace(TraceRecord* records, int role, bool writes)
      : at_(records + (blockIdx.x * kTraceRoles + role) * kTraceRecords),
        end_(writes && records != nullptr && blockIdx.x < kTraceCtas ? at_ + kTraceRecords : at_) {}
  ROWMAX_DEVICE void mark(TraceState state, int block) {
    asm volatile(
        "{\n"
        ".reg .pred open;\n"
        ".reg .b64 now;\n"
        "setp.lt.u64 open, %0, %1;\n"
        "mov.u64 now, %%clock64;\n"
        "@open st.global.b64 [%0], now;\n"
        "@open st.global.v2.b32 [%0+8], {%2, %3};\n"
        "}\n" ::"l"(at_),
        "l"(end_), "r"(static_cast<int>(state)), "r"(block)
        : "memory");
    at_ = at_ < end_ ? at_ + 1 : at_;
  }

 private:
  TraceRecord* at_;
  TraceRecord* end_;
};

#else

class Trace {
 public:
  ROWMAX_DEVICE Trace(TraceRecord*, int, bool) {}
  ROWMAX_DEVICE void mark(TraceState, int) {}
};

#endif

}  // namespace rowmax::cuda::tile
