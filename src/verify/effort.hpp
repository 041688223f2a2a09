// A limit on the work that one program may cost, so that no package makes loading take forever.
#pragma once

#include <cstdint>
#include <string>

#include "base/failure.hpp"

namespace mkrt::verify {

class Effort {
 public:
  // Steps of all entries together. A step takes 2 to 10 ns; README.md says what real schedules take.
  static constexpr uint64_t kLimit = uint64_t{1} << 28;
  // To find something in a map or a set, or to sort it into a list, in such steps.
  static constexpr uint64_t kLookup = 16;

  // `entry` is where the limit is passed, if it is.
  void begin_entry(std::string entry) { entry_ = std::move(entry); }

  void charge(uint64_t steps) {
    used_ += steps < kLimit ? steps : kLimit;
    if (used_ >= kLimit) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw base::Failure(MKRT_ERROR_SCHEDULE,
                        base::text("entry ", entry_, ": the order of its tiles is too intricate ",
                                   "to be checked; use fewer counters, or slices that are less ", "scattered"));
  }

  std::string entry_;
  uint64_t used_ = 0;
};

}  // namespace mkrt::verify
