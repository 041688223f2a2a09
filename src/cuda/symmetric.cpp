#include "cuda/symmetric.hpp"

#include <algorithm>

#include "base/failure.hpp"

namespace mkrt::cuda {

namespace {

constexpr char collective_call[] = "mkrt_session_create";  // as messages between processes name it

// How a device's memory is asked for.
MemoryProperties properties_of(const DeviceContext& context, int handle_type) {
  MemoryProperties properties{};
  properties.type = memory_pinned_on_device;
  properties.handle_types = handle_type;
  properties.location = {memory_location_device, context.device()};
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
uint64_t granularity_of(std::span<const std::shared_ptr<DeviceHeap>> heaps, int handle_type) {
  uint64_t largest = 1;
  for (const std::shared_ptr<DeviceHeap>& heap : heaps) {
    const MemoryProperties properties = properties_of(*heap->context(), handle_type);
    size_t bytes = 0;
    const Driver& driver = heap->context()->driver();
    driver.check(driver.memory_granularity(&bytes, &properties, granularity_recommended),
                 "ask for the granularity of device memory");
    largest = std::max<uint64_t>(largest, bytes);  // powers of two
  }
  return largest;
}

// The context is current while `call` runs.
template <class Call>
auto in_context(const DeviceContext& context, const Call& call) {
  const ContextScope scope(context);
  context.driver().check(scope.result(), "make the device's context current");
  return call();
}

}  // namespace

MappedParts::MappedParts(const Mesh& mesh, std::span<const std::shared_ptr<DeviceHeap>> heaps, uint64_t bytes,
                         const char* what)
    : group_(mesh.group()),
      handle_type_(mesh.handle_type()),
      heaps_(heaps),
      what_(what),
      context_(heaps.front()->context()),
      parts_(mesh.rank_count()) {
  agree_on_stride(bytes);
  try {
    std::vector<Handle> handles(parts_.size());
    create_and_exchange(handles);
    group_.agree(collective_call, [&] {
      in_context(*context_, [&] {
        const std::vector<MemoryAccess> access = access_of(heaps_);
        for (uint32_t rank = 0; rank < parts_.size(); ++rank) {
          if (!group_.is_local(rank)) import(rank, handles[rank]);
          map(rank, access);
        }
      });
    });
  } catch (...) {
    give_back();
    throw;
  }
}

MappedParts::~MappedParts() { give_back(); }

void MappedParts::agree_on_stride(uint64_t bytes) {
  struct Wanted {
    uint64_t bytes, granularity;
  };
  const auto all = group_.together<Wanted>(collective_call, [&] {
    return in_context(*context_, [&] {
      return device::ProcessGroup::Part<Wanted>{{bytes, granularity_of(heaps_, handle_type_)}};
    });
  });
  uint64_t most = 0;
  for (const Wanted& wanted : all.values) {
    most = std::max(most, wanted.bytes);
    granularity_ = std::max(granularity_, wanted.granularity);
  }
  stride_ = (most + granularity_ - 1) / granularity_ * granularity_;
}

void MappedParts::reserve() {
  const uint64_t bytes = stride_ * parts_.size();
  driver().check(driver().address_reserve(&range_, bytes, granularity_, 0, 0),
                 base::text("reserve addresses for ", what_));
  range_bytes_ = bytes;
}

MappedParts::Handle MappedParts::create(Part& part, const std::shared_ptr<DeviceHeap>& heap) {
  heap->charge(stride_, what_);
  part.heap = heap;
  const MemoryProperties properties = properties_of(*heap->context(), handle_type_);
  const Result result = driver().memory_create(&part.memory, stride_, &properties, 0);
  if (result != result_success) heap->refuse(result, stride_, what_);
  part.held = true;
  Handle handle;
  const std::string what = base::text("share the memory of ", what_, " with other processes");
  if (handle_type_ == memory_handle_posix) {
    int descriptor = -1;
    driver().check(driver().memory_export(&descriptor, part.memory, handle_type_, 0), what);
    handle.descriptor = base::Descriptor(descriptor);
  } else if (handle_type_ == memory_handle_fabric) {
    driver().check(driver().memory_export(&handle.fabric, part.memory, handle_type_, 0), what);
  }
  return handle;
}

// Makes the parts of this process, and gets the handles of the others.
void MappedParts::create_and_exchange(std::vector<Handle>& out_handles) {
  // An all-gather carries one part of each process.
  for (uint32_t n = 0; n < group_.most_ranks(); ++n) {
    Handle own;  // others get a descriptor of theirs
    auto all = group_.together<FabricHandle>(collective_call, [&] {
      in_context(*context_, [&] {
        if (n == 0) reserve();
        if (n < heaps_.size()) own = create(parts_[group_.first_rank() + n], heaps_[n]);
      });
      return device::ProcessGroup::Part<FabricHandle>{own.fabric, own.descriptor.get()};
    });
    for (uint32_t process = 0; process < group_.size(); ++process) {
      const device::ProcessGroup::Process& of = group_.process(process);
      if (process == group_.own() || n >= of.rank_count) continue;
      out_handles[of.first_rank + n] = {all.values[process], std::move(all.descriptors[process])};
    }
  }
}

void MappedParts::import(uint32_t rank, Handle& handle) {
  Part& part = parts_[rank];
  const uint32_t process = group_.process_of(rank);
  void* passed = &handle.fabric;
  if (handle_type_ == memory_handle_posix) {
    if (!handle.descriptor) {
      throw base::Failure(MKRT_ERROR_PEER, base::text("no file descriptor came with the memory of rank ", rank,
                                                      " of process ", process));
    }
    passed = reinterpret_cast<void*>(static_cast<intptr_t>(handle.descriptor.get()));
  }
  driver().check(driver().memory_import(&part.memory, passed, handle_type_),
                 base::text("get at the memory of rank ", rank, " of process ", process));
  part.held = true;
}

void MappedParts::map(uint32_t rank, std::span<const MemoryAccess> access) {
  Part& part = parts_[rank];
  driver().check(driver().memory_map(address(rank), stride_, 0, part.memory, 0),
                 base::text("map the memory of rank ", rank, " for ", what_));
  part.mapped = true;
  driver().check(driver().memory_set_access(address(rank), stride_, access.data(), access.size()),
                 base::text("reach the memory of rank ", rank, " for ", what_));
}

// In the opposite order: nothing is mapped in a range that is freed, no memory is released that is mapped. What other
// processes have mapped stays with them.
void MappedParts::give_back() noexcept {
  const ContextScope scope(*context_);
  for (auto rank = static_cast<uint32_t>(parts_.size()); rank-- > 0;) {
    const Part& part = parts_[rank];
    if (part.mapped) driver().memory_unmap(address(rank), stride_);
    if (part.held) driver().memory_release(part.memory);
    if (part.heap) part.heap->discharge(stride_);
  }
  if (range_bytes_ != 0) driver().address_free(range_, range_bytes_);
}

SymmetricMemory::SymmetricMemory(const Mesh& mesh, std::span<const std::shared_ptr<DeviceHeap>> heaps, uint64_t bytes,
                                 const char* what) {
  if (mesh.maps_memory()) {
    mapped_ = std::make_unique<MappedParts>(mesh, heaps, bytes, what);
    return;
  }
  in_context(*heaps.front()->context(), [&] {
    for (const std::shared_ptr<DeviceHeap>& heap : heaps) allocated_.emplace_back(heap, bytes, what);
  });
}

}  // namespace mkrt::cuda
