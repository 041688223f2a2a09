#include "cuda/mesh.hpp"

#include <algorithm>
#include <cstring>

#include "base/failure.hpp"
#include "cuda/cuda.hpp"
#include "cuda/executable.hpp"

namespace mkrt::cuda {

namespace {

int attribute(const Driver& driver, DeviceAttribute which, DeviceNumber device) {
  int value = 0;
  driver.check(driver.device_attribute(&value, which, device), "ask for a device's attributes");
  return value;
}

// Everything but the free memory, for which a context must be current.
void describe_fixed(const Driver& driver, DeviceNumber device, uint32_t ordinal, mkrt_device_info* out_info) {
  const uint32_t struct_size = out_info->struct_size;
  *out_info = mkrt_device_info{};
  out_info->struct_size = struct_size;
  out_info->kind = MKRT_DEVICE_CUDA;
  out_info->ordinal = ordinal;
  out_info->worker_count = static_cast<uint32_t>(attribute(driver, attribute_multiprocessor_count, device));
  out_info->compute_major = static_cast<uint32_t>(attribute(driver, attribute_compute_major, device));
  out_info->compute_minor = static_cast<uint32_t>(attribute(driver, attribute_compute_minor, device));
  size_t bytes = 0;
  driver.check(driver.device_memory(&bytes, device), "ask for a device's memory");
  out_info->memory_bytes = bytes;
  Uuid uuid{};
  driver.check(driver.device_uuid(&uuid, device), "ask for a device's UUID");
  static_assert(sizeof(uuid.bytes) == sizeof(out_info->uuid));
  std::memcpy(out_info->uuid, uuid.bytes, sizeof(uuid.bytes));
  driver.check(driver.device_name(out_info->name, sizeof(out_info->name), device), "ask for a device's name");
  std::snprintf(out_info->target, sizeof(out_info->target), "sm_%u%u%s", out_info->compute_major,
                out_info->compute_minor, out_info->compute_major >= 9 ? "a" : "");
}

bool is_set(const uint8_t (&uuid)[16]) {
  return std::any_of(std::begin(uuid), std::end(uuid), [](uint8_t byte) { return byte != 0; });
}

DeviceNumber device_by_ordinal(const Driver& driver, uint32_t ordinal) {
  const uint32_t count = device_count(driver);
  if (ordinal >= count) {
    throw base::Failure(MKRT_ERROR_DEVICE, base::text("CUDA device ", ordinal, " does not exist; there are ", count));
  }
  DeviceNumber device = 0;
  driver.check(driver.device_get(&device, static_cast<int>(ordinal)), "get a device");
  return device;
}

DeviceNumber device_by_uuid(const Driver& driver, const uint8_t (&uuid)[16], uint32_t* out_ordinal) {
  for (uint32_t ordinal = 0; ordinal < device_count(driver); ++ordinal) {
    const DeviceNumber device = device_by_ordinal(driver, ordinal);
    Uuid theirs{};
    driver.check(driver.device_uuid(&theirs, device), "ask for a device's UUID");
    if (std::memcmp(theirs.bytes, uuid, sizeof(uuid)) != 0) continue;
    *out_ordinal = ordinal;
    return device;
  }
  throw base::Failure(MKRT_ERROR_DEVICE, "no CUDA device of this process has the UUID that was asked for");
}

uint32_t ordinal_of(const Driver& driver, DeviceNumber device) {
  for (uint32_t ordinal = 0; ordinal < device_count(driver); ++ordinal) {
    if (device_by_ordinal(driver, ordinal) == device) return ordinal;
  }
  throw base::Failure(MKRT_ERROR_DEVICE, "the host application's context is of a device that is not listed");
}

// A rank as described, on a context of its own.
RankDevice open_rank(const std::shared_ptr<const Driver>& driver, const mkrt_rank_desc& desc) {
  RankDevice rank;
  uint32_t ordinal = desc.ordinal;
  if (desc.context != nullptr) {
    rank.context = std::make_shared<DeviceContext>(driver, static_cast<Context>(desc.context));
    ordinal = ordinal_of(*driver, rank.context->device());
  } else {
    const DeviceNumber device =
        is_set(desc.uuid) ? device_by_uuid(*driver, desc.uuid, &ordinal) : device_by_ordinal(*driver, desc.ordinal);
    rank.context = std::make_shared<DeviceContext>(driver, device);
  }
  if (desc.stream != nullptr && desc.context == nullptr) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, "a stream was given without the context that it belongs to");
  }
  rank.info.struct_size = sizeof(rank.info);
  describe_fixed(*driver, rank.context->device(), ordinal, &rank.info);
  if (desc.context != nullptr && is_set(desc.uuid) && std::memcmp(desc.uuid, rank.info.uuid, sizeof(desc.uuid)) != 0) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, "the context that was given is not of the device with the given UUID");
  }
  if (attribute(*driver, attribute_cooperative_launch, rank.context->device()) == 0) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                        base::text(rank.info.name, " cannot launch a kernel whose blocks are resident together"));
  }
  return rank;
}

// Which device a sentence means, and for which rank.
std::string name_of(const RankDevice& rank, uint32_t number) {
  return base::text("rank ", number, " (CUDA device ", rank.info.ordinal, ", ", rank.info.name, ")");
}

// Puts rank `number` on its device: one that another rank is on already, or a new one.
void place(std::vector<RankDevice>& ranks, uint32_t number, const mkrt_rank_desc& desc,
           std::vector<MeshDevice>& devices) {
  RankDevice& rank = ranks[number];
  const auto stream = static_cast<Stream>(desc.stream);
  const auto known = std::find_if(devices.begin(), devices.end(), [&](const MeshDevice& device) {
    return device.context->device() == rank.context->device();
  });
  rank.device = static_cast<uint32_t>(known - devices.begin());
  if (known == devices.end()) {
    devices.push_back({rank.context, stream, nullptr, {number}});
    return;
  }
  const bool same_context = known->context->handle() == rank.context->handle();
  if (!same_context || known->adopted_stream != stream) {
    throw base::Failure(MKRT_ERROR_ARGUMENT,
                        base::text(name_of(rank, number), " shares its device with rank ", known->ranks.front(),
                                   " and has another ", same_context ? "stream" : "context",
                                   "; ranks of one device are launched together, in one context and on one stream"));
  }
  rank.context = known->context;
  known->ranks.push_back(number);
}

// Divides a device's SMs: ranks that name a number get it, the others equal parts of the rest.
void share_workers(const MeshDevice& device, std::span<const mkrt_rank_desc> descs, std::vector<RankDevice>& ranks) {
  const uint32_t all = ranks[device.ranks.front()].info.worker_count;
  uint64_t taken = 0;
  uint32_t open = 0;
  for (const uint32_t rank : device.ranks) {
    if (descs[rank].worker_count == 0) ++open;
    taken += std::min(all, descs[rank].worker_count);
  }
  const uint64_t share = open == 0 || taken >= all ? 0 : (all - taken) / open;
  if (taken > all || (open != 0 && share == 0)) {
    const uint32_t last = device.ranks.back();
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text(name_of(ranks[last], last), " is one of ", device.ranks.size(),
                                                        " ranks of a device that has only ", all, " SMs for them"));
  }
  for (const uint32_t rank : device.ranks) {
    const uint32_t wanted = descs[rank].worker_count;
    ranks[rank].info.worker_count = wanted != 0 ? std::min(all, wanted) : static_cast<uint32_t>(share);
  }
}

// What the first device lacks to write and to signal in the memory of the second; "" where it has it all.
std::string missing_path(const Driver& driver, DeviceNumber from, DeviceNumber to) {
  int reaches = 0;
  int accesses = 0;
  int atomics = 0;
  driver.check(driver.device_can_access_peer(&reaches, from, to), "ask for a peer path");
  driver.check(driver.peer_attribute(&accesses, peer_access_supported, from, to), "ask for a peer path");
  driver.check(driver.peer_attribute(&atomics, peer_native_atomics, from, to), "ask for a peer path");
  if (reaches == 0 || accesses == 0) return "the first has no path to the second's memory";
  return atomics != 0 ? "" : "the path from the first to the second has no atomic additions";
}

// Whether every device maps memory, and each reaches every other's; where several devices need it, what keeps them from
// it is a failure.
bool check_mapping(const Driver& driver, std::span<const RankDevice> ranks, std::span<const MeshDevice> devices) {
  const auto refuse = [](const std::string& why) { throw base::Failure(MKRT_ERROR_UNSUPPORTED, why); };
  const bool needed = devices.size() > 1;
  if (const char* missing = driver.missing_for_ranks()) {
    if (needed) refuse(base::text("the CUDA driver lacks ", missing, ", which ranks on several devices need"));
    return false;
  }
  for (const MeshDevice& device : devices) {
    const uint32_t rank = device.ranks.front();
    if (attribute(driver, attribute_virtual_memory, device.context->device()) != 0) continue;
    if (needed) refuse(base::text(name_of(ranks[rank], rank), " cannot map memory of other devices"));
    return false;
  }
  for (const MeshDevice& from : devices) {
    for (const MeshDevice& to : devices) {
      if (&from == &to) continue;
      const std::string what = missing_path(driver, from.context->device(), to.context->device());
      if (what.empty()) continue;
      refuse(base::text(name_of(ranks[from.ranks.front()], from.ranks.front()), " and ",
                        name_of(ranks[to.ranks.front()], to.ranks.front()), " cannot be in one mesh: ", what));
    }
  }
  return true;
}

void make_mesh_stream(MeshDevice& device) {
  if (device.adopted_stream != nullptr) return;
  const ContextScope scope(*device.context);
  device.context->driver().check(scope.result(), "make the device's context current");
  device.mesh_stream = std::make_unique<StreamHandle>(device.context, nullptr);
}

// Where ranks take device memory from.
void adopt_memory(const mkrt_device_memory_extension& memory, std::vector<RankDevice>& ranks, size_t device_count) {
  if (device_count > 1) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                        "the mesh is on several devices, whose memory must be mapped at each other: the application's "
                        "device memory (MKRT_EXTENSION_DEVICE_MEMORY) cannot be");
  }
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].allocator = {memory.allocate, memory.release, memory.user_data, rank};
  }
}

}  // namespace

uint32_t device_count(const Driver& driver) {
  int count = 0;
  driver.check(driver.device_count(&count), "count the devices");
  return static_cast<uint32_t>(count);
}

void describe_device(const std::shared_ptr<const Driver>& driver, uint32_t ordinal, mkrt_device_info* out_info) {
  // Free memory is left 0 here: asking for it takes a context, which costs hundreds of megabytes and milliseconds. A
  // mesh has one and knows it.
  describe_fixed(*driver, device_by_ordinal(*driver, ordinal), ordinal, out_info);
}

std::unique_ptr<device::Mesh> create_mesh(std::shared_ptr<const base::Hooks> hooks,
                                          const std::shared_ptr<const Driver>& driver,
                                          std::span<const mkrt_rank_desc> ranks,
                                          const mkrt_device_memory_extension* device_memory,
                                          std::shared_ptr<device::ProcessGroup> group) {
  if (!group->alone()) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED, "CUDA ranks are in one process; host ranks may be in several");
  }
  std::vector<RankDevice> opened;
  std::vector<MeshDevice> devices;
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    try {
      opened.push_back(open_rank(driver, ranks[rank]));
      place(opened, rank, ranks[rank], devices);
    } catch (base::Failure& failure) {
      failure.at_rank(static_cast<int32_t>(rank));
      throw;
    }
  }
  for (const MeshDevice& device : devices) share_workers(device, ranks, opened);
  bool maps_memory = false;
  if (device_memory != nullptr) {
    adopt_memory(*device_memory, opened, devices.size());
  } else if (ranks.size() > 1) {
    maps_memory = check_mapping(*driver, opened, devices);
  }
  if (devices.size() > 1) {
    for (MeshDevice& device : devices) make_mesh_stream(device);
  }
  return std::make_unique<Mesh>(std::move(hooks), std::move(group), std::move(opened), std::move(devices), maps_memory);
}

void Mesh::describe(uint32_t rank, mkrt_device_info* out_info) const noexcept {
  const RankDevice& device = ranks_[rank];
  const uint32_t struct_size = out_info->struct_size;
  *out_info = device.info;
  out_info->struct_size = struct_size;
  const ContextScope scope(*device.context);
  if (scope.result() != result_success) return;
  size_t free = 0;
  size_t total = 0;
  if (device.context->driver().memory_info(&free, &total) == result_success) out_info->memory_free = free;
}

std::unique_ptr<device::Executable> Mesh::load(std::shared_ptr<const package::Program> program,
                                               const device::LoadOptions& options) {
  return std::make_unique<Executable>(*this, std::move(program), options);
}

}  // namespace mkrt::cuda
