// Copies of host buffers in GPU memory, for cases that run on a GPU. Builds without ROWMAX_CUDA
// have none: create() says so.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "rowmax/attention.h"
#include "rowmax/status.h"

namespace rowmax::testkit {

// Host memory that a mirror copies; nothing of it may move while the mirror lives.
struct HostBlock {
  unsigned char* data = nullptr;
  size_t bytes = 0;
};

class DeviceMirror {
 public:
  // GPU memory for every block, at the same offset from a 256-byte boundary as the block.
  static Result<std::unique_ptr<DeviceMirror>> create(const std::vector<HostBlock>& blocks,
                                                      int ordinal);
  ~DeviceMirror();
  DeviceMirror(const DeviceMirror&) = delete;
  DeviceMirror& operator=(const DeviceMirror&) = delete;

  // Host to GPU, and back. Both wait for the GPU; download reports what a kernel did wrong.
  Status upload();
  Status download();

  // The tensors with pointers into host blocks replaced by those into their copies.
  AttentionTensors map(const AttentionTensors& tensors) const;
  void* map(const void* host) const;

 private:
  struct Copy {
    HostBlock host;
    unsigned char* allocation = nullptr;
    unsigned char* device = nullptr;
  };
  explicit DeviceMirror(int ordinal) : ordinal_(ordinal) {}

  int ordinal_;
  std::vector<Copy> copies_;
};

// Seconds of one call by the GPU's own clock: `calls` of them in a CUDA graph that is replayed once
// to warm up and once to measure. `call` enqueues on the stream it is given.
Result<double> timed_on_gpu(int ordinal, int calls, const std::function<Status(void*)>& call);

}  // namespace rowmax::testkit
