#include "cuda/symmetric.hpp"

#include <algorithm>

#include "base/failure.hpp"

namespace mkrt::cuda {

namespace {

// How a device's memory is asked for: with a handle for other processes where it can have one.
MemoryProperties properties_of(const DeviceContext& context) {
  MemoryProperties properties{};
  properties.type = memory_pinned_on_device;
  properties.location = {memory_location_device, context.device()};
  int posix = 0;
  const Driver& driver = context.driver();
  driver.check(driver.device_attribute(&posix, attribute_posix_memory_handles, context.device()),
               "ask for a device's attributes");
  properties.handle_types = posix != 0 ? memory_handle_posix : memory_handle_none;
  return properties;
}

// One entry for each device among the heaps'.
std::vector<MemoryAccess> access_of(std::span<const std::shared_ptr<DeviceHeap>> heaps) {
  std::vector<MemoryAccess> access;
  for (const std::shared_ptr<DeviceHeap>& heap : heaps) {
    const DeviceNumber device = heap->context()->device();
    const bool known = std::any_of(access.begin(), access.end(),
                                   [device](const MemoryAccess& other) { return other.location.id == device; });
    if (!known) access.push_back({{memory_location_device, device}, memory_access_read_write});
  }
  return access;
}

// What sizes and addresses are multiples of on all devices.
uint64_t granularity_of(std::span<const std::shared_ptr<DeviceHeap>> heaps) {
  uint64_t largest = 1;
  for (const std::shared_ptr<DeviceHeap>& heap : heaps) {
    const MemoryProperties properties = properties_of(*heap->context());
    size_t bytes = 0;
    const Driver& driver = heap->context()->driver();
    driver.check(driver.memory_granularity(&bytes, &properties, granularity_recommended),
                 "ask for the granularity of device memory");
    largest = std::max<uint64_t>(largest, bytes);  // powers of two
  }
  return largest;
}

}  // namespace

MappedParts::MappedParts(std::span<const std::shared_ptr<DeviceHeap>> heaps, uint64_t bytes, const char* what)
    : context_(heaps.front()->context()) {
  const uint64_t granularity = granularity_of(heaps);
  stride_ = (bytes + granularity - 1) / granularity * granularity;
  const std::vector<MemoryAccess> access = access_of(heaps);
  parts_.reserve(heaps.size());
  range_bytes_ = stride_ * heaps.size();
  driver().check(driver().address_reserve(&range_, range_bytes_, granularity, 0, 0),
                 base::text("reserve addresses for ", what));
  try {
    for (const std::shared_ptr<DeviceHeap>& heap : heaps) {
      heap->charge(stride_, what);
      parts_.push_back({heap});
      const auto rank = static_cast<uint32_t>(parts_.size() - 1);
      map(parts_.back(), address(rank), what);
      driver().check(driver().memory_set_access(address(rank), stride_, access.data(), access.size()),
                     base::text("let all ranks reach the memory of ", what));
    }
  } catch (...) {
    give_back();
    throw;
  }
}

MappedParts::~MappedParts() { give_back(); }

void MappedParts::map(Part& part, DevicePointer address, const char* what) {
  const MemoryProperties properties = properties_of(*part.heap->context());
  const Result result = driver().memory_create(&part.memory, stride_, &properties, 0);
  if (result != result_success) part.heap->refuse(result, stride_, what);
  part.created = true;
  driver().check(driver().memory_map(address, stride_, 0, part.memory, 0), base::text("map memory for ", what));
  part.mapped = true;
}

// In the opposite order: nothing is mapped in a range that is freed, no memory is released that is mapped.
void MappedParts::give_back() noexcept {
  const ContextScope scope(*context_);
  for (auto rank = static_cast<uint32_t>(parts_.size()); rank-- > 0;) {
    const Part& part = parts_[rank];
    if (part.mapped) driver().memory_unmap(address(rank), stride_);
    if (part.created) driver().memory_release(part.memory);
    part.heap->discharge(stride_);
  }
  driver().address_free(range_, range_bytes_);
}

SymmetricMemory::SymmetricMemory(std::span<const std::shared_ptr<DeviceHeap>> heaps, bool mapped, uint64_t bytes,
                                 const char* what) {
  const DeviceContext& context = *heaps.front()->context();
  const ContextScope scope(context);
  context.driver().check(scope.result(), "make the device's context current");
  if (mapped) {
    mapped_ = std::make_unique<MappedParts>(heaps, bytes, what);
    return;
  }
  for (const std::shared_ptr<DeviceHeap>& heap : heaps) allocated_.emplace_back(heap, bytes, what);
}

}  // namespace mkrt::cuda
