// The machine this process runs on.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "rowmax/plan.h"

namespace rowmax {
namespace {

// Where neither sysconf nor sysfs tells: sizes that every core of the last decade has.
constexpr int64_t kL1Bytes = int64_t{32} << 10;
constexpr int64_t kL2Bytes = int64_t{512} << 10;
constexpr int64_t kL3Bytes = int64_t{8} << 20;

// A data or unified cache of core 0 as sysfs lists it ("48K", "2048K"), or 0.
int64_t sysfs_cache_bytes(int level) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    int found = 0;
    std::string type;
    std::string size;
    std::ifstream(folder + "level") >> found;
    std::ifstream(folder + "type") >> type;
    std::ifstream(folder + "size") >> size;
    if (found != level || type == "Instruction" || size.empty()) {
      continue;
    }
    const int64_t count = std::strtoll(size.c_str(), nullptr, 10);
    const int shift = size.back() == 'K' ? 10 : size.back() == 'M' ? 20 : 0;
    return count << shift;
  }
  return 0;
}

int64_t cache_bytes(int level, int64_t fallback) {
  int64_t bytes = 0;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
  bytes = sysconf(names[level - 1]);
#endif
  if (bytes <= 0) {
    bytes = sysfs_cache_bytes(level);
  }
  return bytes > 0 ? bytes : fallback;
}

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::string native_isa() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return "avx2";
  }
#endif
  return "portable";
}

// ROWMAX_MAX_ISA lowers the instruction set and never raises it. A name that is not known is passed
// on, so that make_plan refuses it instead of ignoring the user's wish.
std::string offered_isa() {
  const std::string native = native_isa();
  const char* limit = std::getenv("ROWMAX_MAX_ISA");
  if (limit == nullptr || *limit == '\0' || std::string(limit) == "avx2") {
    return native;
  }
  return limit;
}

}  // namespace

DeviceInfo host_device() {
  DeviceInfo device;
  device.kind = "cpu";
  device.name = model_name();
  device.isa = offered_isa();
  device.l1_bytes = cache_bytes(1, kL1Bytes);
  device.l2_bytes = cache_bytes(2, kL2Bytes);
  device.l3_bytes = cache_bytes(3, kL3Bytes);
  device.cores = static_cast<int>(std::max<long>(sysconf(_SC_NPROCESSORS_ONLN), 1));
  return device;
}

}  // namespace rowmax
