// Memory that has a part on every rank, each reachable from the devices of all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/memory.hpp"

namespace mkrt::cuda {

// A reserved range of addresses in which every rank's part lies at a multiple of one stride, so that the distance from
// one rank to another is the same everywhere in it. Another process that maps the same parts gets the same distances,
// wherever its own range begins.
class MappedParts {
 public:
  // `bytes` on the device of each heap's context, charged to the heap, mapped for all of these devices. The devices can
  // map memory and reach each other. Throws Failure.
  MappedParts(std::span<const std::shared_ptr<DeviceHeap>> heaps, uint64_t bytes, const char* what);
  MappedParts(const MappedParts&) = delete;
  MappedParts& operator=(const MappedParts&) = delete;
  ~MappedParts();

  DevicePointer address(uint32_t rank) const noexcept { return range_ + rank * stride_; }

 private:
  struct Part {
    std::shared_ptr<DeviceHeap> heap;  // that was charged
    PhysicalMemory memory = 0;
    bool created = false;
    bool mapped = false;
  };

  void map(Part& part, DevicePointer address, const char* what);
  void give_back() noexcept;
  const Driver& driver() const noexcept { return context_->driver(); }

  std::shared_ptr<const DeviceContext> context_;  // of the first rank
  uint64_t stride_ = 0;
  uint64_t range_bytes_ = 0;
  DevicePointer range_ = 0;
  std::vector<Part> parts_;
};

// A session's memory on every rank, the same layout on each.
class SymmetricMemory {
 public:
  // One heap a rank. `mapped`: through the driver's virtual memory; otherwise from the heaps themselves, which then are
  // of one device. Throws Failure.
  SymmetricMemory(std::span<const std::shared_ptr<DeviceHeap>> heaps, bool mapped, uint64_t bytes, const char* what);

  DevicePointer address(uint32_t rank) const noexcept {
    return mapped_ ? mapped_->address(rank) : allocated_[rank].address();
  }

 private:
  std::unique_ptr<MappedParts> mapped_;
  std::vector<DeviceMemory> allocated_;
};

}  // namespace mkrt::cuda
