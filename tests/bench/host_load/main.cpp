// How fast a cached weight file becomes usable in place, against reading it: `mkrt_bench_host_load model.safetensors`.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "base/mapped_file.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double gigabytes_per_second(uint64_t bytes, Clock::time_point start) {
  return static_cast<double>(bytes) / std::chrono::duration<double>(Clock::now() - start).count() * 1e-9;
}

// `read` into a buffer that stays in the cache: the least that any copy of the file can cost.
double read_all(const std::string& path, uint64_t size) {
  std::vector<char> buffer(1 << 20);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto start = Clock::now();
  uint64_t bytes = 0;
  while (bytes < size) {
    const ssize_t got = ::read(file, buffer.data(), buffer.size());
    if (got <= 0) break;
    bytes += static_cast<uint64_t>(got);
  }
  const double speed = gigabytes_per_second(bytes, start);
  ::close(file);
  return speed;
}

// Maps the file, prefetches if asked to, and touches every page, so that both ways end with a file that is usable
// without another page fault. The sum keeps the loads alive.
double map_all(const std::string& path, bool prefetch, uint64_t& sum) {
  const auto start = Clock::now();
  const mkrt::base::MappedFile file(path);
  if (prefetch) file.prefetch(file.bytes());
  constexpr size_t page = 4096;
  for (size_t i = 0; i < file.bytes().size(); i += page) sum += static_cast<uint64_t>(file.bytes()[i]);
  return gigabytes_per_second(file.bytes().size(), start);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures how fast a cached file becomes usable");
  std::string path;
  app.add_option("file", path, "A file of some gigabytes, such as a model's safetensors")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    const uint64_t size = mkrt::base::MappedFile(path).bytes().size();
    uint64_t sum = 0;
    read_all(path, size);  // brings it into the cache
    std::printf("%10s %14s %14s   GB/s, %.2f GB\n", "read", "map, prefetch", "map, touch",
                static_cast<double>(size) * 1e-9);
    for (int i = 0; i < 3; ++i) {
      const double read = read_all(path, size);
      const double prefetched = map_all(path, true, sum);
      const double touched = map_all(path, false, sum);
      std::printf("%10.2f %14.2f %14.2f\n", read, prefetched, touched);
    }
    return sum == 0 ? 2 : 0;
  } catch (const mkrt::base::Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.message().c_str());
    return 1;
  }
}
