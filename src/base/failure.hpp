// How code that loads, checks and builds reports failure: one exception type, caught where the C ABI begins.
//
// Code on the execute path throws nothing; it returns statuses.
#pragma once

#include <cstdint>
#include <exception>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "mkrt/mkrt.h"

namespace mkrt::base {

// A status with its sentence, and where in the schedule it belongs if anywhere.
class Failure : public std::exception {
 public:
  Failure(mkrt_status status, std::string message) : status_(status), message_(std::move(message)) {}

  Failure& at_record(int32_t record) noexcept {
    record_ = record;
    return *this;
  }
  Failure& at_tile(uint64_t tile) noexcept {
    tile_ = tile;
    return *this;
  }
  Failure& at_rank(int32_t rank) noexcept {
    rank_ = rank;
    return *this;
  }
  Failure& with_driver_code(int32_t code) noexcept {
    driver_code_ = code;
    return *this;
  }

  mkrt_status status() const noexcept { return status_; }
  const std::string& message() const noexcept { return message_; }
  int32_t record() const noexcept { return record_; }
  uint64_t tile() const noexcept { return tile_; }
  int32_t rank() const noexcept { return rank_; }
  int32_t driver_code() const noexcept { return driver_code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  mkrt_status status_;
  std::string message_;
  int32_t record_ = -1;
  uint64_t tile_ = 0;
  int32_t rank_ = -1;
  int32_t driver_code_ = -1;
};

// The arguments, written one after the other.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());
  (stream << ... << parts);
  return std::move(stream).str();
}

// `name` as a sentence shows it: in quotes, control characters as "\x0a", cut after 64 bytes (never inside a UTF-8
// sequence), so that a message with several names fits into mkrt_error whatever a file calls its things. Call it with
// its namespace: for a std::string, std::quoted would be found as well and win.
std::string quoted(std::string_view name);

// `path` as a sentence shows it: its last 160 bytes where it is longer.
std::string shown_path(std::string_view path);

}  // namespace mkrt::base
