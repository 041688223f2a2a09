#include "cli/device_read_limit.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/path.hpp"
#include "cli/read_package.hpp"

namespace mkrt::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Eight times the largest L2 cache that there is (126 MB): one pass after the other finds nothing of it there.
constexpr uint64_t kBytes = uint64_t{1} << 30;
constexpr uint64_t kLeastBytes = uint64_t{1} << 28;
// Steps of an execute: 7 ms on an H200, of which launch and wait are 10 us.
constexpr uint32_t kPasses = 32;
constexpr int kExecutes = 3;
// A folder of its own that goes when it is not needed any more.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::random_device random;
    const fs::path parent = fs::temp_directory_path();
    do path_ = parent / ("mkrt-read-" + std::to_string(random()));
    while (!fs::create_directory(path_));
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

DeviceReadLimit::DeviceReadLimit(const std::vector<RankOptions>& ranks, std::vector<compile::ImageFile> images)
    : images_(std::move(images)), mesh_(runtime_, ranks) {
  for (uint64_t bytes = kBytes;; bytes /= 2) {
    try {
      prepare(bytes);
      return;
    } catch (const mkrt::Error& error) {
      if (error.status() != MKRT_ERROR_OUT_OF_MEMORY || bytes == kLeastBytes) throw;
    }
  }
}

void DeviceReadLimit::prepare(uint64_t bytes) {
  const TemporaryFolder folder;
  write_read_package(folder.path(), bytes, mesh_.rank_count(), images_);
  program_ = Program(runtime_, base::utf8_path(folder.path()));
  executable_ = Executable(program_, mesh_);
  session_ = Session(executable_);
  bytes_ = bytes;
  fill();
}

// With noise, as weights are.
void DeviceReadLimit::fill() {
  std::vector<uint32_t> noise(kLeastBytes / 4 / sizeof(uint32_t));
  std::mt19937 random(1);
  for (uint32_t& word : noise) word = static_cast<uint32_t>(random());
  for (uint32_t rank = 0; rank < mesh_.rank_count(); ++rank) {
    for (uint64_t at = 0; at < bytes_ / sizeof(uint32_t); at += noise.size()) {
      session_.write<uint32_t>(0, noise, at, rank);
    }
  }
}

double DeviceReadLimit::measure() {
  ExecuteOptions options;
  options.step_count = kPasses;
  options.queue_mode = MKRT_QUEUE_STATIC;
  double least = 0;
  for (int i = 0; i < kExecutes; ++i) {
    const Clock::time_point begin = Clock::now();
    const uint64_t value = session_.execute(options);
    // Watched closely: a wait of some milliseconds may end 50 us late.
    while (session_.query() < value) {
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    least = i == 0 ? seconds : std::min(least, seconds);
  }
  return static_cast<double>(bytes_) * mesh_.rank_count() * kPasses / least;
}

}  // namespace mkrt::cli
