// Bringing weights to a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/mapped_file.hpp"
#include "cuda/memory.hpp"

namespace mkrt::cuda {

// What a part of the device memory is to hold.
struct Transfer {
  uint64_t offset = 0;  // of the part
  std::span<const std::byte> from;
  const base::MappedFile* file = nullptr;  // whose bytes() `from` is a part of; nullptr: ordinary memory
};

// How an upload is cut. The copy engine takes a block at a time; threads read a slice of a block at a time.
struct UploadShape {
  // The engine pauses for 3 us between two copies, and a block is copied only when its last slice is there: three
  // blocks of 16 MB kept the engine as busy as the copies alone would, three of 8 MB took 14 % longer, four 6 to 12
  // (one H200, driver 580.159.04, 2026-12-01; tests/bench/results).
  size_t block_bytes = size_t{16} << 20;
  // What 16 threads read at a time is half a block, so that blocks become full one after the other. A multiple of the
  // page, and a divisor of the block.
  size_t slice_bytes = size_t{512} << 10;
  // One block on its way, one that is full, one being filled. No more: memory is pinned and given back for 0.05 ms a MB
  // in which little else goes on.
  size_t place_count = 3;
};

// Seconds from an upload's begin to when this was so.
struct UploadTimes {
  double allocated = 0;   // the device memory is there
  double first_copy = 0;  // the first block's copy is enqueued
  double all_places = 0;  // a copy from every place is enqueued: nothing has to be pinned any more
  double last_copy = 0;   // the last block's copy is enqueued: everything is read
  double end = 0;         // everything is on the device, and the pinned memory given back
  double reading = 0;     // that threads spent with reading, their sum
};

struct Uploaded {
  DeviceMemory memory;
  UploadTimes times;
};

// Allocates `bytes` of device memory, fills them, and returns when they are there. `transfers` ascend and do not
// overlap; what lies between them is zero. `thread_count` threads read (the calling one among them, which first
// allocates; the others end before the call does), fewer where there is less to do. The context of the heap must be
// current. Throws Failure: DRIVER, OUT_OF_MEMORY, and FILE where a file has become shorter or cannot be read.
Uploaded upload(const std::shared_ptr<DeviceHeap>& heap, uint64_t bytes, std::span<const Transfer> transfers,
                uint32_t thread_count, const UploadShape& shape = {});

}  // namespace mkrt::cuda
