// What the compiler must not know.
#pragma once

#include "backend/cuda/ptx/types.cuh"

namespace rowmax::cuda::ptx {

// The same object, whose fields are loaded where they are used instead of kept across a loop.
template <class T>
ROWMAX_DEVICE const T& opaque_fields(const T& object) {
  const T* pointer = &object;
  asm volatile("" : "+l"(pointer));
  return *pointer;
}

}  // namespace rowmax::cuda::ptx
