// Memory that processes share: each has a part, and all parts lie in one range of addresses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/descriptor.hpp"

namespace mkrt::host {

// Parts begin and end at multiples of this: the largest page that systems use for ordinary memory.
inline constexpr uint64_t part_alignment = 65536;

// `bytes` zeros that other processes can map, present already: later nobody can run out of memory on a first touch.
// Neither side can make it smaller, which would be a SIGBUS for the others. Throws Failure (OUT_OF_MEMORY,
// UNSUPPORTED).
base::Descriptor create_shared_memory(uint64_t bytes, const char* what);

// A range of addresses into which parts are mapped.
class SharedRange {
 public:
  // Throws Failure(OUT_OF_MEMORY).
  explicit SharedRange(uint64_t bytes);
  SharedRange(const SharedRange&) = delete;
  SharedRange& operator=(const SharedRange&) = delete;
  ~SharedRange();

  // Maps what create_shared_memory gave, here or in another process. Throws Failure(PEER) where it is something else.
  void map(const base::Descriptor& memory, uint64_t offset, uint64_t bytes);
  std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_;
};

}  // namespace mkrt::host
