// Messages between processes of one machine: a header, some bytes, some descriptors, a time limit.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/descriptor.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::exchange {

class Deadline {
 public:
  explicit Deadline(uint64_t timeout_ns) noexcept;
  bool passed() const noexcept { return left_ns() == 0; }
  uint64_t left_ns() const noexcept;

 private:
  std::chrono::steady_clock::time_point end_;
};

enum class Kind : uint32_t { hello = 1, welcome, gather, answer, refusal };

struct Header {
  uint64_t magic = own_magic;
  Kind kind = Kind::hello;
  uint32_t process = 0;  // who sends
  uint32_t process_count = 0;
  uint32_t sequence = 0;  // of the all-gather
  mkrt_status status = MKRT_OK;
  uint32_t size = 0;            // bytes behind the header
  uint64_t has_descriptor = 0;  // answer: bit p where process p passed one

  static constexpr uint64_t own_magic = 0x6d6b727465786368;
};
static_assert(sizeof(Header) == 40);

constexpr size_t most_bytes = size_t{MKRT_MAX_RANKS} * MKRT_MAX_EXCHANGE_BYTES;

struct Frame {
  Header header;
  std::vector<std::byte> bytes;
  std::vector<base::Descriptor> descriptors;
};

enum class Received : uint8_t { nothing_yet, frame, closed, garbage };

// Takes the next message from a socket, without waiting. Garbage is whatever is no frame of at most `most` bytes and
// `most_descriptors`; its descriptors are closed.
Received receive(const base::Descriptor& socket, size_t most, size_t most_descriptors, Frame& out_frame);

// Sends a message. False where the other side is gone or does not read until the deadline.
bool send(const base::Descriptor& socket, Header header, std::span<const std::byte> bytes,
          std::span<const int> descriptors, const Deadline& deadline);

// Waits until one of the sockets can be read, or has ended: true for each that can. All false: the deadline passed.
std::vector<bool> wait_readable(std::span<const int> sockets, const Deadline& deadline);

}  // namespace mkrt::exchange
