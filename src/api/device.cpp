// Devices by name.
#include <fmt/format.h>

#include <charconv>
#include <string>

#include "api/backends.h"
#include "plan/named_device.h"
#include "rowmax/plan.h"

namespace rowmax {
namespace {

// The number of "cuda" (0) and "cuda:N", or -1.
int gpu_ordinal(std::string_view name) {
  constexpr std::string_view kKind = "cuda";
  if (name == kKind) {
    return 0;
  }
  if (name.substr(0, kKind.size()) != kKind || name.size() < kKind.size() + 2 ||
      name[kKind.size()] != ':') {
    return -1;
  }
  int ordinal = -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kKind.size() + 1, end, ordinal);
  return error == std::errc() && stop == end ? ordinal : -1;
}

Result<DeviceInfo> gpu(int ordinal) {
  const Backend* backend = find_backend("cuda");
  if (backend == nullptr || backend->device == nullptr) {
    return Status::unsupported(
        "device cuda: this build has no CUDA kernels (configure with ROWMAX_CUDA=ON)");
  }
  return backend->device(ordinal);
}

}  // namespace

Result<DeviceInfo> find_device(std::string_view name) {
  if (name == "cpu") {
    return host_device();
  }
  if (const int ordinal = gpu_ordinal(name); ordinal >= 0) {
    return gpu(ordinal);
  }
  std::string known = "cpu, cuda, cuda:N";
  for (const DeviceInfo& device : plan::named_devices()) {
    if (device.name == name) {
      return device;
    }
    known += ", " + device.name;
  }
  return Status::invalid(fmt::format("device is '{}'; accepted: {}", name, known));
}

}  // namespace rowmax
