// rowmax devices: what this machine offers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "rowmax/plan.h"
#include "rowmax/version.h"
#include "table.h"
#include "verbs.h"

namespace rowmax::app {
namespace {

std::string cache_text(int64_t bytes) {
  return bytes > 0 ? bytes_text(static_cast<double>(bytes)) : "unknown";
}

int run(bool json) {
  const DeviceInfo device = host_device();
  // An unknown name is passed on by host_device for make_plan to refuse.
  if (device.isa != "portable" && device.isa != "avx2") {
    bad_input(fmt::format("ROWMAX_MAX_ISA is '{}'; accepted: portable, avx2", device.isa));
  }
  if (json) {
    const nlohmann::ordered_json object = {{"version", ROWMAX_VERSION_STRING},
                                           {"kind", device.kind},
                                           {"name", device.name},
                                           {"isa", device.isa},
                                           {"cores", device.cores},
                                           {"l1_bytes", device.l1_bytes},
                                           {"l2_bytes", device.l2_bytes},
                                           {"l3_bytes", device.l3_bytes}};
    fmt::print("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return kExitOk;
  }
  fmt::print("device   {}\n", device.kind);
  fmt::print("name     {}\n", device.name.empty() ? "unknown" : device.name);
  fmt::print("isa      {}\n", device.isa);
  fmt::print("cores    {}\n", device.cores);
  fmt::print("L1 data  {} a core\n", cache_text(device.l1_bytes));
  fmt::print("L2       {} a core\n", cache_text(device.l2_bytes));
  fmt::print("L3       {} shared\n", cache_text(device.l3_bytes));
  return kExitOk;
}

}  // namespace

Verb add_devices(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "one JSON object instead of text");
  return [json] { return run(*json); };
}

}  // namespace rowmax::app
