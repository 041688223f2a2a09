#include "cuda/memory.hpp"

#include <cstring>
#include <utility>

#include "base/failure.hpp"

namespace mkrt::cuda {

// What the driver's own allocations have; tensors, tables and bulk copies rely on it.
constexpr uint64_t allocation_alignment = 256;

void DeviceHeap::charge(uint64_t bytes, const char* what) {
  // Relaxed: only the sum matters.
  const uint64_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
  if (budget_ == 0 || (bytes <= budget_ && before <= budget_ - bytes)) return;
  discharge(bytes);
  throw base::Failure(MKRT_ERROR_OUT_OF_MEMORY,
                      base::text(bytes, " bytes are needed for ", what, ", and ", before, " of the ", budget_,
                                 " bytes of the memory budget are in use"));
}

DevicePointer DeviceHeap::allocate(uint64_t bytes, const char* what) {
  charge(bytes, what);
  try {
    return allocator_.allocate != nullptr ? take_from_application(bytes, what) : take(bytes, what);
  } catch (...) {
    discharge(bytes);
    throw;
  }
}

DevicePointer DeviceHeap::take(uint64_t bytes, const char* what) {
  DevicePointer address = 0;
  const Result result = context_->driver().memory_allocate(&address, bytes);
  if (result != result_success) refuse(result, bytes, what);
  return address;
}

void DeviceHeap::refuse(Result result, uint64_t bytes, const char* what) const {
  const Driver& driver = context_->driver();
  if (result != result_out_of_memory) driver.check(result, base::text("allocate device memory for ", what));
  size_t free = 0;
  size_t total = 0;
  const ContextScope scope(*context_);
  const bool known = scope.result() == result_success && driver.memory_info(&free, &total) == result_success;
  throw base::Failure(MKRT_ERROR_OUT_OF_MEMORY,
                      known ? base::text(bytes, " bytes are needed for ", what, ", and ", free, " of the device's ",
                                         total, " bytes are free")
                            : base::text(bytes, " bytes are needed for ", what, ", which the device does not have"))
      .with_driver_code(result);
}

DevicePointer DeviceHeap::take_from_application(uint64_t bytes, const char* what) {
  const uint64_t address = allocator_.allocate(allocator_.user_data, allocator_.rank, bytes, allocation_alignment);
  if (address == 0) {
    throw base::Failure(MKRT_ERROR_OUT_OF_MEMORY, base::text(bytes, " bytes are needed for ", what,
                                                             ", which the application's device memory did not give"));
  }
  if (address % allocation_alignment != 0) {
    allocator_.release(allocator_.user_data, allocator_.rank, address, bytes);
    throw base::Failure(MKRT_ERROR_ARGUMENT,
                        base::text("the application gave device memory at ", address, " for ", what,
                                   ", which is not aligned to ", allocation_alignment, " bytes"));
  }
  return address;
}

void DeviceHeap::release(DevicePointer address, uint64_t bytes) noexcept {
  const ContextScope scope(*context_);
  if (allocator_.release != nullptr) {
    allocator_.release(allocator_.user_data, allocator_.rank, address, bytes);
  } else {
    context_->driver().memory_free(address);
  }
  discharge(bytes);
}

DeviceMemory::DeviceMemory(std::shared_ptr<DeviceHeap> heap, uint64_t bytes, const char* what)
    : address_(heap->allocate(bytes, what)), bytes_(bytes) {
  heap_ = std::move(heap);
}

DeviceMemory::~DeviceMemory() {
  if (heap_) heap_->release(address_, bytes_);
}

void DeviceMemory::swap(DeviceMemory& other) noexcept {
  std::swap(heap_, other.heap_);
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
}

namespace {

void* allocate_pinned(const Driver& driver, size_t bytes, unsigned flags, const char* what) {
  void* memory = nullptr;
  driver.check(driver.host_allocate(&memory, bytes, flags),
               base::text("allocate ", bytes, " bytes of pinned memory for ", what));
  return memory;
}

void free_pinned(const DeviceContext& context, void* memory) noexcept {
  const ContextScope scope(context);
  context.driver().host_free(memory);
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<const DeviceContext> context, size_t bytes, const char* what)
    : context_(std::move(context)) {
  const Driver& driver = context_->driver();
  memory_ = allocate_pinned(driver, bytes, host_memory_portable | host_memory_mapped, what);
  const Result result = driver.host_device_pointer(&address_, memory_, 0);
  if (result != result_success) {
    driver.host_free(memory_);
    driver.check(result, base::text("map pinned memory for ", what));
  }
  std::memset(memory_, 0, bytes);
}

PinnedMemory::~PinnedMemory() { free_pinned(*context_, memory_); }

StagingMemory::StagingMemory(std::shared_ptr<const DeviceContext> context, size_t bytes, const char* what)
    : context_(std::move(context)) {
  const Driver& driver = context_->driver();
  if (driver.host_register != nullptr && driver.host_unregister != nullptr) pages_ = Pages(bytes);
  if (pages_.empty()) allocated_ = allocate_pinned(driver, bytes, 0, what);
}

void StagingMemory::pin(const char* what) {
  if (registered_ || allocated_ != nullptr) return;
  const Driver& driver = context_->driver();
  registered_ = driver.host_register(pages_.data(), pages_.size(), 0) == result_success;
  if (registered_) return;
  allocated_ = allocate_pinned(driver, pages_.size(), 0, what);
  std::memcpy(allocated_, pages_.data(), pages_.size());
  pages_ = {};
}

StagingMemory::~StagingMemory() {
  if (allocated_ != nullptr) free_pinned(*context_, allocated_);
  if (!registered_) return;
  const ContextScope scope(*context_);
  context_->driver().host_unregister(pages_.data());
}

StreamHandle::StreamHandle(std::shared_ptr<const DeviceContext> context, Stream adopted)
    : context_(std::move(context)), stream_(adopted), owned_(adopted == nullptr) {
  if (!owned_) return;
  // Non-blocking: the host application's default stream does not wait for ours, nor ours for it.
  const Driver& driver = context_->driver();
  driver.check(driver.stream_create(&stream_, stream_non_blocking), "create a stream");
}

StreamHandle::~StreamHandle() {
  if (!owned_) return;
  const ContextScope scope(*context_);
  context_->driver().stream_destroy(stream_);
}

}  // namespace mkrt::cuda
