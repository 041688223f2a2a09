#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/format.hpp"
#include "cli/output.hpp"

namespace mkrt::cli {
namespace {

nlohmann::ordered_json to_json(const DeviceInfo& device) {
  nlohmann::ordered_json out;
  out["device"] = device_option(device);
  out["kind"] = device_kind_name(device.kind);
  out["ordinal"] = device.ordinal;
  out["name"] = device.name;
  out["target"] = device.target;
  out["workers"] = device.worker_count;
  out["memory_bytes"] = device.memory_bytes;
  out["memory_free_bytes"] = device.memory_free;
  return out;
}

}  // namespace

int devices(const DevicesOptions& options) {
  const Runtime runtime;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> table = {{"device", "workers", "memory", "free", "target", "name"}};
  for (uint32_t i = 0; i < runtime.device_count(); ++i) {
    const DeviceInfo device = runtime.device_info(i);
    list.push_back(to_json(device));
    // 0: nobody asked the device, which is no word of how full it is.
    const std::string free = device.memory_free == 0 ? "-" : format_bytes(device.memory_free);
    table.push_back({device_option(device), std::to_string(device.worker_count), format_bytes(device.memory_bytes),
                     free, device.target, device.name});
  }
  print(options.json ? list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"
                     : format_table(table));
  return 0;
}

}  // namespace mkrt::cli
