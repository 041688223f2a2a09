// ranks [--device cuda|host] [--ranks N]: what exchanges between ranks cost, on any number of devices.
//
// Prints one JSON value for each part as soon as it is measured: flags, copies against the number of SMs, all-reduces,
// decoding, and last all-reduces by NCCL. Ranks are as many as devices (at least 2: on one device they share it), and
// 2, 4, ... below that. Exits with 77 where there is no GPU; --device host measures the host device, whose figures say
// little but that all of this works.
#include <cstdlib>
#include <cstring>
#include <optional>

#include "ranks.hpp"

namespace {

using namespace mkrt::bench;

constexpr int status_no_device = 77;  // what CTest and tests/gpu count as skipped

struct Arguments {
  uint32_t kind = MKRT_DEVICE_CUDA;
  uint32_t ranks = 0;  // 0: as many as devices, at least 2
};

std::optional<Arguments> read_arguments(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i + 1 < count; i += 2) {
    if (std::strcmp(values[i], "--device") == 0 && std::strcmp(values[i + 1], "host") == 0) {
      arguments.kind = MKRT_DEVICE_HOST;
    } else if (std::strcmp(values[i], "--ranks") == 0) {
      arguments.ranks = static_cast<uint32_t>(std::strtoul(values[i + 1], nullptr, 10));
      if (arguments.ranks < 2 || arguments.ranks > MKRT_MAX_RANKS) return std::nullopt;
    } else if (std::strcmp(values[i], "--device") != 0 || std::strcmp(values[i + 1], "cuda") != 0) {
      return std::nullopt;
    }
  }
  return count % 2 == 1 ? std::optional(arguments) : std::nullopt;
}

uint32_t count_devices(uint32_t kind) {
  const mkrt::Runtime runtime;
  uint32_t devices = 0;
  for (uint32_t i = 0; i < runtime.device_count(); ++i) devices += runtime.device_info(i).kind == kind;
  return devices;
}

Machine make_machine(const Arguments& arguments, uint32_t devices) {
  Machine machine{arguments.kind, devices, {}};
  const uint32_t most = arguments.ranks != 0 ? arguments.ranks : std::max(devices, 2u);
  for (uint32_t ranks = 2; ranks < most; ranks *= 2) machine.ranks.push_back(ranks);
  machine.ranks.push_back(most);
  return machine;
}

ordered_json describe_machine(const Machine& machine) {
  const mkrt::Runtime runtime;
  ordered_json devices = ordered_json::array();
  for (uint32_t i = 0; i < runtime.device_count(); ++i) {
    const mkrt::DeviceInfo info = runtime.device_info(i);
    if (info.kind == machine.kind) devices.push_back(describe(info));
  }
  return {{"benchmark", "ranks"}, {"devices", devices}, {"numbers_of_ranks", machine.ranks}};
}

void print(const ordered_json& result) {
  std::printf("%s\n", result.dump(2).c_str());
  std::fflush(stdout);
}

void measure(const Machine& machine) {
  print(describe_machine(machine));
  std::vector<AllReduce> best;  // on the most ranks
  for (const uint32_t ranks : machine.ranks) {
    best.clear();
    print(measure_flags(machine, ranks));
    print(measure_copies(machine, ranks));
    print(measure_all_reduces(machine, ranks, best));
  }
  print(measure_decoding(machine));
  print(measure_nccl(machine, best));
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::optional<Arguments> read = read_arguments(argument_count, arguments);
  if (!read) {
    std::fprintf(stderr, "usage: ranks [--device cuda|host] [--ranks N]\n");
    return 2;
  }
  try {
    const uint32_t devices = count_devices(read->kind);
    if (devices == 0) {
      std::fprintf(stderr, "ranks: this machine has no GPU that can be used; --device host measures the host device\n");
      return status_no_device;
    }
    measure(make_machine(*read, devices));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "ranks: %s\n", failure.what());
    return 1;
  }
  return 0;
}
