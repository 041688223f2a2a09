// What many tests need: a folder that goes away, and checks of failures.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include "base/failure.hpp"

namespace mkrt::test {

// A folder that is there while the object lives.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<uint64_t> serial{0};
    const auto base = std::filesystem::temp_directory_path();
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    do {
      path_ = base / ("mkrt-test-" + std::to_string(now) + "-" + std::to_string(serial++));
    } while (!std::filesystem::create_directory(path_));  // false where it exists
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream out(path_ / name, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    REQUIRE(out.good());
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path_ / name, std::ios::binary);
    REQUIRE(in.good());
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

 private:
  std::filesystem::path path_;
};

// Runs `function`, which must throw base::Failure, and gives that failure.
template <class Function>
base::Failure failure_of(Function function) {
  try {
    function();
  } catch (const base::Failure& failure) {
    return failure;
  }
  return base::Failure(MKRT_OK, "nothing failed");
}

// Checks status and that the sentence has each of `parts`, fits into mkrt_error, and is one line of text.
inline void check_failure(const base::Failure& failure, mkrt_status status,
                          std::initializer_list<std::string_view> parts) {
  INFO(failure.message().substr(0, 1000));
  CHECK(failure.status() == status);
  for (const std::string_view part : parts) {
    INFO("must contain: ", std::string(part));
    CHECK(failure.message().find(part) != std::string::npos);
  }
  CHECK(failure.message().size() < sizeof(mkrt_error::message));
  CHECK(failure.message().find('\n') == std::string::npos);
}

}  // namespace mkrt::test

// CHECK_FAILURE(expression, status, parts...): the expression fails with that status and a sentence with those parts.
#define CHECK_FAILURE(expression, status, ...) \
  ::mkrt::test::check_failure(::mkrt::test::failure_of([&] { (void)(expression); }), status, {__VA_ARGS__})
