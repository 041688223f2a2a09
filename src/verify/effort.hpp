// A limit on the work that one entry may cost, so that no package makes loading take forever.
#pragma once

#include <cstdint>
#include <string>

#include "base/failure.hpp"

namespace mkrt::verify {

class Effort {
 public:
  // 2^28 elementary steps take a second or two. An 8B model takes some 2^20 on 8 ranks, 2^25 on 64.
  static constexpr uint64_t kLimit = uint64_t{1} << 28;

  explicit Effort(std::string entry) : entry_(std::move(entry)) {}

  void charge(uint64_t steps) {
    used_ += steps < kLimit ? steps : kLimit;
    if (used_ >= kLimit) {
      throw base::Failure(MKRT_ERROR_SCHEDULE,
                          base::text("entry ", entry_, ": the order of its tiles is too intricate ",
                                     "to be checked; use fewer counters, or slices that are less ", "scattered"));
    }
  }

 private:
  std::string entry_;
  uint64_t used_ = 0;
};

}  // namespace mkrt::verify
