// A file descriptor that closes itself, and news of another process's end.
#pragma once

#include <cstdint>
#include <utility>

namespace mkrt::base {

class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int get() const noexcept { return number_; }  // -1: none
  // Gives the descriptor up: the caller closes it.
  int release() noexcept { return std::exchange(number_, -1); }
  explicit operator bool() const noexcept { return number_ >= 0; }

 private:
  int number_ = -1;
};

// The system's number of this process.
uint32_t process_id() noexcept;
// A descriptor by which others can tell that this process has ended; none where the system has nothing of the kind.
Descriptor watch_own_process() noexcept;
// Whether the process has ended that gave this descriptor away; false for none.
bool process_ended(const Descriptor& watch) noexcept;

}  // namespace mkrt::base
