// A folder of the test's own, removed at its end.
#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace mkrt::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<unsigned> number{0};
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() /
            ("mkrt-" + std::to_string(random()) + "-" + std::to_string(number.fetch_add(1)));
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace mkrt::test
