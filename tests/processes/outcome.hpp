// How calls of the public interface end, for one process to tell another.
#pragma once

#include <functional>
#include <string>

#include "mkrt/mkrt.hpp"

namespace mkrt::test {

// How a call ended.
struct Outcome {
  mkrt_error error;
  std::string message() const { return error.message; }
  bool has(const std::string& words) const { return message().find(words) != std::string::npos; }
};
inline Outcome outcome_of(const std::function<void()>& call) {
  Outcome outcome{};
  try {
    call();
  } catch (const mkrt::Error& error) {
    outcome.error = error.error();
  }
  return outcome;
}

}  // namespace mkrt::test
