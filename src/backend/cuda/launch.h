// Launches of compiled kernels.
#pragma once

#include <atomic>
#include <cstdint>

#include "rowmax/status.h"

namespace rowmax::cuda {

// A kernel of this library. Threads may launch it at once.
struct CompiledKernel {
  const char* name;
  const void* function;
  int shared_bytes;  // dynamic
  // Bit d: device d's copy of the kernel may use all the shared memory it needs.
  std::atomic<uint64_t>* configured;
};

struct Grid {
  int x = 1;
  int threads = 1;
};

// On the current device, which is `device`.
Status launch_kernel(const CompiledKernel& kernel, int device, const Grid& grid, void* stream,
                     void** arguments);

Status current_device(const char* kernel, int& device);

// Multiprocessors of a device without those to leave to others, at least one.
Status usable_multiprocessors(const char* kernel, int device, int margin, int& count);

}  // namespace rowmax::cuda
