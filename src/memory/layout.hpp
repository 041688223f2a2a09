// Where a session's tensors and counters lie in its heap: the same offsets on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "package/program.hpp"

namespace mkrt::memory {

// Alignment of tensors, counters and the heap itself: the largest that a device asks for (CUDA's own allocations have
// it), and a multiple of every cache line and vector.
inline constexpr uint64_t heap_alignment = 256;

struct Layout {
  // Heap offset of each tensor, in bytes; no_offset for weights.
  std::vector<uint64_t> tensor_offsets;
  // Heap offset of each entry's first counter; those that follow are MKRT_COUNTER_STRIDE bytes apart.
  std::vector<uint64_t> counter_offsets;
  uint64_t session_bytes = 0;  // the heap's size on one rank
  uint64_t weight_bytes = 0;   // all weight tensors on one rank

  static constexpr uint64_t no_offset = UINT64_MAX;
};

// Throws Failure(OUT_OF_MEMORY) where a rank's bytes do not fit in 63 bits.
Layout plan_layout(const package::Program& program);

}  // namespace mkrt::memory
