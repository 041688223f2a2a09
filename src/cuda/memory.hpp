// Device memory, pinned host memory and streams that give themselves back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/context.hpp"
#include "cuda/pages.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::cuda {

// The application's device memory, for one rank; without functions: the driver's.
struct DeviceAllocator {
  mkrt_device_allocate_function allocate = nullptr;
  mkrt_device_release_function release = nullptr;
  void* user_data = nullptr;
  uint32_t rank = 0;
};

// Where a rank's device memory comes from: the driver or the application, within a budget.
class DeviceHeap {
 public:
  // `budget` in bytes; 0: none.
  DeviceHeap(std::shared_ptr<const DeviceContext> context, uint64_t budget, const DeviceAllocator& allocator) noexcept
      : context_(std::move(context)), budget_(budget), allocator_(allocator) {}

  // The context must be current. Throws Failure(OUT_OF_MEMORY) with what was asked for, used, and allowed or free, and
  // Failure(ARGUMENT) where the application's function gives an address that is not aligned.
  DevicePointer allocate(uint64_t bytes, const char* what);
  void release(DevicePointer address, uint64_t bytes) noexcept;

  // Counts memory that is taken from elsewhere. Throws Failure(OUT_OF_MEMORY) beyond the budget.
  void charge(uint64_t bytes, const char* what);
  void discharge(uint64_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  // Throws the failure of a driver's call that was to give `bytes`.
  [[noreturn]] void refuse(Result result, uint64_t bytes, const char* what) const;

  const std::shared_ptr<const DeviceContext>& context() const noexcept { return context_; }

 private:
  DevicePointer take(uint64_t bytes, const char* what);
  DevicePointer take_from_application(uint64_t bytes, const char* what);

  std::shared_ptr<const DeviceContext> context_;
  uint64_t budget_;
  DeviceAllocator allocator_;
  std::atomic<uint64_t> used_{0};
};

// A piece of a heap. Filled with nothing in particular.
class DeviceMemory {
 public:
  DeviceMemory() noexcept = default;
  DeviceMemory(std::shared_ptr<DeviceHeap> heap, uint64_t bytes, const char* what);
  DeviceMemory(DeviceMemory&& other) noexcept { swap(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceMemory();

  DevicePointer address() const noexcept { return address_; }
  uint64_t size() const noexcept { return bytes_; }

 private:
  void swap(DeviceMemory& other) noexcept;

  std::shared_ptr<DeviceHeap> heap_;
  DevicePointer address_ = 0;
  uint64_t bytes_ = 0;
};

// Pinned host memory that the device can read and write, zeroed.
class PinnedMemory {
 public:
  PinnedMemory(std::shared_ptr<const DeviceContext> context, size_t bytes, const char* what);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_); }
  DevicePointer device_address() const noexcept { return address_; }

 private:
  std::shared_ptr<const DeviceContext> context_;
  void* memory_ = nullptr;
  DevicePointer address_ = 0;
};

// Host memory from which copies to the device read, for as long as a call takes: ordinary memory until it is pinned, so
// that what it is to hold first can be read into it before. Filled with nothing in particular.
//
// It is the system's huge pages, registered with the driver, because what the driver itself allocates takes more than
// twice the time: 0.6 to 0.7 ms a MB, of one thread after the other. Huge pages take 0.2 to 0.3 ms a MB when they are
// first written to, on every thread at once, then 0.4 ms for 4 MB to be registered and 0.25 ms to be given back; copies
// from both are as fast (one H200, 16 cores, driver 580.159.04, 2026-11-30; tests/bench/results). Where memory cannot
// be registered, the driver allocates it.
class StagingMemory {
 public:
  StagingMemory(std::shared_ptr<const DeviceContext> context, size_t bytes, const char* what);
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;
  ~StagingMemory();

  // Comes before the first copy; does nothing after that. What is in the memory stays, data() may change. Registering
  // makes pages that nobody wrote to one after the other, holding off everybody's calls: write to them before.
  void pin(const char* what);
  std::byte* data() const noexcept {
    return allocated_ != nullptr ? static_cast<std::byte*>(allocated_) : pages_.data();
  }

 private:
  std::shared_ptr<const DeviceContext> context_;
  // One of both: the system's pages, or what the driver allocated.
  Pages pages_;
  bool registered_ = false;
  void* allocated_ = nullptr;
};

// A stream of the library's own, or one that the host application lends.
class StreamHandle {
 public:
  // `adopted` may be null: a new non-blocking stream. Throws Failure.
  StreamHandle(std::shared_ptr<const DeviceContext> context, Stream adopted);
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  ~StreamHandle();

  Stream get() const noexcept { return stream_; }

 private:
  std::shared_ptr<const DeviceContext> context_;
  Stream stream_ = nullptr;
  bool owned_ = false;
};

}  // namespace mkrt::cuda
