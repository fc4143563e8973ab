// A build without CUDA kernels.
#include "testkit/device_memory.h"

namespace rowmax::testkit {

Result<std::unique_ptr<DeviceMirror>> DeviceMirror::create(const std::vector<HostBlock>& /*blocks*/,
                                                           int /*ordinal*/) {
  return Status::unsupported("this build has no CUDA kernels (configure with ROWMAX_CUDA=ON)");
}

DeviceMirror::~DeviceMirror() = default;
Status DeviceMirror::upload() { return {}; }
Status DeviceMirror::download() { return {}; }

Result<double> timed_on_gpu(int /*ordinal*/, int /*calls*/,
                            const std::function<Status(void*)>& /*call*/) {
  return Status::unsupported("this build has no CUDA kernels (configure with ROWMAX_CUDA=ON)");
}

}  // namespace rowmax::testkit
