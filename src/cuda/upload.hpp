// Bringing weights to a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mapped_file.hpp"
#include "cuda/memory.hpp"

namespace mkrt::cuda {

// Memory on its way to the device.
struct Transfer {
  std::span<const std::byte> from;
  DevicePointer to = 0;
  const base::MappedFile* file = nullptr;  // whose bytes() `from` is a part of; nullptr: ordinary memory
};

// Copies everything and returns when it is there. Each of `thread_count` threads (the calling one among them, the
// others end before the call does) reads pieces of the files, of at most 4 MB, into two places in pinned memory of its
// own, one while the copy engine empties the other. Fewer threads where there is less to do. A context must be current.
// Throws Failure: DRIVER, OUT_OF_MEMORY, and FILE where a file has become shorter or cannot be read.
void upload(const std::shared_ptr<const DeviceContext>& context, std::span<const Transfer> transfers,
            uint32_t thread_count);

}  // namespace mkrt::cuda
