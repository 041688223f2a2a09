// Bringing weights to a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/memory.hpp"

namespace mkrt::cuda {

// One piece of memory on its way: mapped file to device.
struct Transfer {
  std::span<const std::byte> from;
  DevicePointer to = 0;
};

// Copies everything and returns when it is there. Each of `thread_count` threads (the calling one among them, the
// others end before the call does) reads pieces of the files into pinned buffers of its own while the copy engine
// empties the ones before: one thread reads cached files at about 10 GB/s, the copy engine takes 55. A context must be
// current. Throws Failure.
void upload(const std::shared_ptr<const DeviceContext>& context, std::span<const Transfer> transfers,
            uint32_t thread_count);

}  // namespace mkrt::cuda
