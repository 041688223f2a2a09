// How soon a package can be used on the host, against reading its cached weight files: `mkrt_bench_host_load PACKAGE`.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "mkrt/mkrt.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

constexpr int rounds = 7;  // of everything; medians of fewer moved by several percent on a machine that others use

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct WeightFiles {
  std::vector<std::string> paths;
  uint64_t bytes = 0;
};

WeightFiles find_weight_files(const std::string& package) {
  WeightFiles found;
  for (const auto& entry : std::filesystem::directory_iterator(package)) {
    if (entry.path().extension() != ".safetensors") continue;
    found.paths.push_back(std::filesystem::canonical(entry.path()).string());
    found.bytes += entry.file_size();
  }
  if (found.bytes == 0) throw std::runtime_error(package + " has no weights");
  return found;
}

// `read` into a buffer that stays in the cache: the least that any copy of the files can cost.
double read_all(const WeightFiles& files) {
  std::vector<char> buffer(1 << 20);
  uint64_t bytes = 0;
  const auto begin = Clock::now();
  for (const std::string& path : files.paths) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ssize_t got = 0;
    while (file >= 0 && (got = ::read(file, buffer.data(), buffer.size())) > 0) bytes += static_cast<uint64_t>(got);
    ::close(file);
  }
  const double seconds = seconds_since(begin);
  if (bytes != files.bytes) throw std::runtime_error("the weight files cannot be read");
  return seconds;
}

struct Range {
  const char* begin;
  uint64_t size;
};

// Where this process has the weight files mapped. The C interface gives no addresses of weights, the system does.
std::vector<Range> find_mappings(const WeightFiles& files) {
  std::vector<Range> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t name = line.find('/');
    if (name == std::string::npos) continue;
    if (std::find(files.paths.begin(), files.paths.end(), line.substr(name)) == files.paths.end()) continue;
    std::istringstream text(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    text >> std::hex >> begin >> dash >> end;
    found.push_back({reinterpret_cast<const char*>(begin), end - begin});
  }
  return found;
}

// One load from every page; the sum keeps the loads alive.
uint64_t touch(const std::vector<Range>& ranges, uint64_t page) {
  uint64_t sum = 0;
  for (const Range& range : ranges) {
    for (uint64_t i = 0; i < range.size; i += page) sum += static_cast<unsigned char>(range.begin[i]);
  }
  return sum;
}

int64_t page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

// One way from a package to weights in use, in seconds.
struct Round {
  double load;    // mkrt_program_load
  double usable;  // mkrt_executable_create, and a load from every page of the weight files
  double read;
  int64_t faults;  // in those loads
};

Round measure(const mkrt::Runtime& runtime, const mkrt::Mesh& mesh, const std::string& package,
              const WeightFiles& files) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  Round round{};
  round.read = read_all(files);
  auto begin = Clock::now();
  const mkrt::Program program(runtime, package);
  round.load = seconds_since(begin);

  const std::vector<Range> mapped = find_mappings(files);
  uint64_t mapped_bytes = 0;
  for (const Range& range : mapped) mapped_bytes += range.size;
  if (mapped_bytes < files.bytes) throw std::runtime_error("the weight files are not mapped as a whole");

  begin = Clock::now();
  const mkrt::Executable executable(program, mesh);
  const int64_t faults = page_faults();
  if (touch(mapped, page) == 0) throw std::runtime_error("all weights are zero");
  round.faults = page_faults() - faults;
  round.usable = seconds_since(begin);
  return round;
}

template <class Get>
double median(const std::vector<Round>& all, Get get) {
  std::vector<double> values;
  for (const Round& round : all) values.push_back(get(round));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

ordered_json report(const std::string& package) {
  const mkrt::Runtime runtime;
  mkrt::RankOptions rank;
  rank.kind = MKRT_DEVICE_HOST;
  const WeightFiles files = find_weight_files(package);
  uint32_t rank_count = 0;
  size_t records = 0;
  {
    const mkrt::Program program(runtime, package);
    const mkrt::ProgramInfo info = program.info();
    rank_count = info.rank_count;
    for (uint32_t entry = 0; entry < info.entry_count; ++entry) records += program.entry_info(entry).record_count;
  }
  const std::vector<mkrt::RankOptions> ranks(rank_count, rank);
  const mkrt::Mesh mesh(runtime, mkrt::Span<const mkrt::RankOptions>(ranks.data(), ranks.size()));
  const mkrt::DeviceInfo device = mesh.device_info();

  measure(runtime, mesh, package, files);  // brings the files into the cache
  std::vector<Round> all;
  for (int i = 0; i < rounds; ++i) all.push_back(measure(runtime, mesh, package, files));

  const double bytes = static_cast<double>(files.bytes);
  ordered_json by_round = ordered_json::array();
  for (const Round& round : all) {
    by_round.push_back({{"load_ms", round.load * 1e3},
                        {"usable_gb_per_s", bytes / round.usable * 1e-9},
                        {"read_gb_per_s", bytes / round.read * 1e-9},
                        {"ratio", round.read / round.usable},
                        {"page_faults_after_create", round.faults}});
  }
  return {{"benchmark", "host_load"},
          {"device", {{"name", device.name}, {"target", device.target}, {"workers", device.worker_count}}},
          {"ranks", rank_count},
          {"records", records},
          {"weight_file_bytes", files.bytes},
          {"load_ms", median(all, [](const Round& round) { return round.load * 1e3; })},
          {"target_load_ms", 50},
          {"usable_gb_per_s", median(all, [&](const Round& round) { return bytes / round.usable * 1e-9; })},
          {"read_gb_per_s", median(all, [&](const Round& round) { return bytes / round.read * 1e-9; })},
          {"ratio", median(all, [](const Round& round) { return round.read / round.usable; })},
          {"ratio_with_load", median(all, [](const Round& round) { return round.read / (round.load + round.usable); })},
          {"target_ratio", 0.8},
          {"rounds", by_round}};
}

void print(const ordered_json& result) {
  std::printf("%.2f GB of weights, %zu records\n", result["weight_file_bytes"].get<double>() * 1e-9,
              result["records"].get<size_t>());
  std::printf("mkrt_program_load                       %8.2f ms    at most %d\n", result["load_ms"].get<double>(),
              result["target_load_ms"].get<int>());
  std::printf("mkrt_executable_create and every page   %8.2f GB/s\n", result["usable_gb_per_s"].get<double>());
  std::printf("read of the same files                  %8.2f GB/s\n", result["read_gb_per_s"].get<double>());
  std::printf("ratio                                   %8.2f       at least %.1f (%.2f with the load)\n",
              result["ratio"].get<double>(), result["target_ratio"].get<double>(),
              result["ratio_with_load"].get<double>());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures how soon a package can be used on the host");
  std::string package, json;
  app.add_option("package", package, "A package's folder, with some gigabytes of weights")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--json", json, "File to write the figures to");
  CLI11_PARSE(app, argc, argv);
  try {
    const ordered_json result = report(package);
    print(result);
    if (json.empty()) return 0;
    std::ofstream file(json);
    file << result.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + json);
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
