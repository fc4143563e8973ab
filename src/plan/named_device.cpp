#include "plan/named_device.h"

namespace rowmax::plan {
namespace {

// Data sheets: multiprocessors, largest clock, memory rate; shared memory that one block can use.
DeviceInfo hopper(const char* name, double memory_gbps) {
  DeviceInfo device;
  device.kind = "cuda";
  device.name = name;
  device.isa = "sm90";
  device.l1_bytes = int64_t{227} << 10;
  device.l2_bytes = int64_t{50} << 20;
  device.cores = 132;
  device.clock_ghz = 1.98;
  device.memory_gbps = memory_gbps;
  return device;
}

}  // namespace

std::span<const DeviceInfo> named_devices() {
  static const DeviceInfo kDevices[] = {hopper("h100", 3350.0), hopper("h200", 4800.0)};
  return kDevices;
}

}  // namespace rowmax::plan
