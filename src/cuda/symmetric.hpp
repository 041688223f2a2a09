// Memory that has a part on every rank, each reachable from the devices of all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/descriptor.hpp"
#include "cuda/memory.hpp"
#include "cuda/mesh.hpp"
#include "device/process_group.hpp"

namespace mkrt::cuda {

// A reserved range of addresses in which every rank's part lies at a multiple of one stride, so that the distance from
// one rank to another is the same everywhere in it. Each process makes the parts of its own ranks and maps those of all
// into a range of its own, where the distances are the same.
class MappedParts {
 public:
  // Collective where there are several processes. `bytes` for each rank, which may differ between processes: the part
  // has the most that one of them wants. `heaps` are those of the ranks of this process: each part is on the device of
  // its heap's context and charged to the heap, and mapped for the devices of them all, which can map memory and reach
  // those of the other ranks. Throws Failure.
  MappedParts(const Mesh& mesh, std::span<const std::shared_ptr<DeviceHeap>> heaps, uint64_t bytes, const char* what);
  MappedParts(const MappedParts&) = delete;
  MappedParts& operator=(const MappedParts&) = delete;
  ~MappedParts();

  DevicePointer address(uint32_t rank) const noexcept { return range_ + rank * stride_; }

 private:
  struct Part {
    std::shared_ptr<DeviceHeap> heap;  // that was charged; of a rank of this process
    PhysicalMemory memory = 0;
    bool held = false;  // `memory` is to be released
    bool mapped = false;
  };
  // What a process hands to the others of a part: one of the two.
  struct Handle {
    FabricHandle fabric{};
    base::Descriptor descriptor;
  };

  void agree_on_stride(uint64_t bytes);
  void reserve();
  Handle create(Part& part, const std::shared_ptr<DeviceHeap>& heap);
  void create_and_exchange(std::vector<Handle>& out_handles);
  void import(uint32_t rank, Handle& handle);
  void map(uint32_t rank, std::span<const MemoryAccess> access);
  void give_back() noexcept;
  const Driver& driver() const noexcept { return context_->driver(); }

  device::ProcessGroup& group_;
  const int handle_type_;
  std::span<const std::shared_ptr<DeviceHeap>> heaps_;  // while it is being made
  const char* what_;
  std::shared_ptr<const DeviceContext> context_;  // of the first rank of this process
  uint64_t granularity_ = 1;
  uint64_t stride_ = 0;
  uint64_t range_bytes_ = 0;  // 0: nothing is reserved
  DevicePointer range_ = 0;
  std::vector<Part> parts_;  // by rank
};

// A session's memory on every rank; what ranks reach of each other lies at the same place on each.
class SymmetricMemory {
 public:
  // One heap for each rank of this process. Through the driver's virtual memory where the mesh maps memory; otherwise
  // from the heaps themselves, which then are of one device. Collective where there are several processes. Throws
  // Failure.
  SymmetricMemory(const Mesh& mesh, std::span<const std::shared_ptr<DeviceHeap>> heaps, uint64_t bytes,
                  const char* what);

  DevicePointer address(uint32_t rank) const noexcept {
    return mapped_ ? mapped_->address(rank) : allocated_[rank].address();
  }

 private:
  std::unique_ptr<MappedParts> mapped_;
  std::vector<DeviceMemory> allocated_;
};

}  // namespace mkrt::cuda
