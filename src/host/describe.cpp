// The processor and the memory of this machine.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "host/host.hpp"
#include "host/isa.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/utsname.h>
#include <unistd.h>
#endif

namespace mkrt::host {

namespace {

// What follows "key :" in a file of lines such as /proc/cpuinfo; empty where there is none.
std::string value_in(const char* file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t start = line.find_first_not_of(" \t:", key.size());
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

// Arm's cpuinfo has no name: the architecture must do.
std::string processor_name() {
  std::string name = value_in("/proc/cpuinfo", "model name");
#if defined(__unix__) || defined(__APPLE__)
  utsname system{};
  if (name.empty() && uname(&system) == 0) name = std::string(system.machine) + " processor";
#endif
  return name.empty() ? "host processor" : name;
}

void describe_memory(mkrt_device_info& info) {
#if defined(_SC_PHYS_PAGES)
  const uint64_t page = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
  info.memory_bytes = page * static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
#endif
  // What can be had without swapping; caches count as free here.
  uint64_t kilobytes = 0;
  if (std::sscanf(value_in("/proc/meminfo", "MemAvailable").c_str(), "%" SCNu64, &kilobytes) == 1) {
    info.memory_free = kilobytes * 1024;
  }
}

template <size_t size>
void copy_text(char (&out)[size], const char* text) noexcept {
  const size_t length = std::min(std::strlen(text), size - 1);
  std::memcpy(out, text, length);
  out[length] = '\0';
}

}  // namespace

void describe_host(uint32_t worker_count, mkrt_device_info* out_info) noexcept {
  mkrt_device_info info{};
  info.struct_size = out_info->struct_size;
  info.kind = MKRT_DEVICE_HOST;
  info.worker_count = worker_count != 0 ? worker_count : std::max(1u, std::thread::hardware_concurrency());
  copy_text(info.target, builtin_target());
  try {
    copy_text(info.name, processor_name().c_str());
    describe_memory(info);
  } catch (...) {
    // No memory for a string: what is missing stays empty.
  }
  *out_info = info;
}

}  // namespace mkrt::host
