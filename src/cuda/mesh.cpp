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
  rank.wanted_workers = desc.worker_count;
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
std::string name_of(uint32_t number, const mkrt_device_info& info) {
  return base::text("rank ", number, " (CUDA device ", info.ordinal, ", ", info.name, ")");
}
std::string name_of(const RankDevice& rank) { return name_of(rank.number, rank.info); }

// Puts the last of `ranks` on its device: one that another rank is on already, or a new one.
void place(std::vector<RankDevice>& ranks, const mkrt_rank_desc& desc, std::vector<MeshDevice>& devices) {
  RankDevice& rank = ranks.back();
  const auto stream = static_cast<Stream>(desc.stream);
  const auto known = std::find_if(devices.begin(), devices.end(), [&](const MeshDevice& device) {
    return device.context->device() == rank.context->device();
  });
  rank.device = static_cast<uint32_t>(known - devices.begin());
  if (known == devices.end()) {
    devices.push_back({rank.context, stream, nullptr, {rank.number}, rank.info.worker_count});
    return;
  }
  const bool same_context = known->context->handle() == rank.context->handle();
  if (!same_context || known->adopted_stream != stream) {
    throw base::Failure(MKRT_ERROR_ARGUMENT,
                        base::text(name_of(rank), " shares its device with rank ", known->ranks.front(),
                                   " and has another ", same_context ? "stream" : "context",
                                   "; ranks of one device are launched together, in one context and on one stream"));
  }
  rank.context = known->context;
  known->ranks.push_back(rank.number);
}

// Divides a device's SMs: ranks that name a number get it, the others equal parts of the rest. `last` is how a sentence
// calls the last of them.
std::vector<uint32_t> divide_workers(uint32_t all, std::span<const uint32_t> wanted, const std::string& last) {
  uint64_t taken = 0;
  uint32_t open = 0;
  for (const uint32_t workers : wanted) {
    if (workers == 0) ++open;
    taken += std::min(all, workers);
  }
  const uint64_t share = open == 0 || taken >= all ? 0 : (all - taken) / open;
  if (taken > all || (open != 0 && share == 0)) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text(last, " is one of ", wanted.size(),
                                                        " ranks of a device that has only ", all, " SMs for them"));
  }
  std::vector<uint32_t> shares;
  for (const uint32_t workers : wanted) {
    shares.push_back(workers != 0 ? std::min(all, workers) : static_cast<uint32_t>(share));
  }
  return shares;
}

// The same among the ranks of this process.
void divide_workers(const MeshDevice& device, std::vector<RankDevice>& ranks) {
  std::vector<uint32_t> wanted;
  wanted.reserve(device.ranks.size());
  const uint32_t first = ranks.front().number;
  for (const uint32_t number : device.ranks) wanted.push_back(ranks[number - first].wanted_workers);
  const auto shares = divide_workers(device.worker_count, wanted, name_of(ranks[device.ranks.back() - first]));
  for (size_t i = 0; i < shares.size(); ++i) ranks[device.ranks[i] - first].info.worker_count = shares[i];
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

[[noreturn]] void refuse(const std::string& why) { throw base::Failure(MKRT_ERROR_UNSUPPORTED, why); }

void check_path(const Driver& driver, DeviceNumber from, const std::string& from_name, DeviceNumber to,
                const std::string& to_name) {
  const std::string what = missing_path(driver, from, to);
  if (!what.empty()) refuse(base::text(from_name, " and ", to_name, " cannot be in one mesh: ", what));
}

// Whether every device maps memory, and each reaches every other's; where ranks on several devices or in several
// processes need it, what keeps them from it is a failure.
bool check_mapping(const Driver& driver, std::span<const RankDevice> ranks, std::span<const MeshDevice> devices,
                   bool several_processes) {
  const bool needed = devices.size() > 1 || several_processes;
  const char* const where = several_processes ? "in several processes" : "on several devices";
  const char* missing = driver.missing_for_ranks();
  if (missing == nullptr && several_processes) missing = driver.missing_for_processes();
  if (missing != nullptr) {
    if (needed) refuse(base::text("the CUDA driver lacks ", missing, ", which ranks ", where, " need"));
    return false;
  }
  const auto name = [&](const MeshDevice& device) {
    return name_of(ranks[device.ranks.front() - ranks.front().number]);
  };
  for (const MeshDevice& device : devices) {
    if (attribute(driver, attribute_virtual_memory, device.context->device()) != 0) continue;
    if (needed) {
      refuse(base::text(name(device), " cannot map memory of other ", several_processes ? "processes" : "devices"));
    }
    return false;
  }
  for (const MeshDevice& from : devices) {
    for (const MeshDevice& to : devices) {
      if (&from != &to) check_path(driver, from.context->device(), name(from), to.context->device(), name(to));
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
void adopt_memory(const mkrt_device_memory_extension& memory, std::vector<RankDevice>& ranks, size_t device_count,
                  bool several_processes) {
  if (device_count > 1 || several_processes) {
    refuse(base::text(several_processes ? "the mesh is in several processes, which map each other's memory"
                                        : "the mesh is on several devices, whose memory must be mapped at each other",
                      ": the application's device memory (MKRT_EXTENSION_DEVICE_MEMORY) cannot be"));
  }
  for (RankDevice& rank : ranks) rank.allocator = {memory.allocate, memory.release, memory.user_data, rank.number};
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
  const bool several_processes = !group->alone();
  std::vector<RankDevice> opened;
  std::vector<MeshDevice> devices;
  for (const mkrt_rank_desc& desc : ranks) {
    const auto number = static_cast<uint32_t>(group->first_rank() + opened.size());
    try {
      opened.push_back(open_rank(driver, desc));
      opened.back().number = number;
      place(opened, desc, devices);
    } catch (base::Failure& failure) {
      failure.at_rank(static_cast<int32_t>(number));
      throw;
    }
  }
  for (const MeshDevice& device : devices) divide_workers(device, opened);
  bool maps_memory = false;
  if (device_memory != nullptr) {
    adopt_memory(*device_memory, opened, devices.size(), several_processes);
  } else if (group->rank_count() > 1) {
    maps_memory = check_mapping(*driver, opened, devices, several_processes);
  }
  // Where an execute has several launches that wait for each other.
  if (devices.size() > 1 || several_processes) {
    for (MeshDevice& device : devices) make_mesh_stream(device);
  }
  return std::make_unique<Mesh>(std::move(hooks), std::move(group), std::move(opened), std::move(devices), maps_memory);
}

// ---- Several processes ---------------------------------------------------------------------------------------------

// A rank of any process, as its own process tells the others.
struct Mesh::Neighbour {
  uint8_t uuid[16] = {};
  uint32_t wanted_workers = 0;
  int32_t handle_types = 0;  // in which its device's memory can be handed on, to this process and by it
};

std::vector<Mesh::Neighbour> Mesh::gather_ranks() {
  device::ProcessGroup& processes = group();
  std::vector<Neighbour> all(rank_count());
  for (uint32_t n = 0; n < processes.most_ranks(); ++n) {
    const auto told = processes.together<Neighbour>("mkrt_mesh_create", [&] {
      device::ProcessGroup::Part<Neighbour> own;
      if (n >= ranks_.size()) return own;
      const RankDevice& rank = ranks_[n];
      const Driver& driver = rank.context->driver();
      const DeviceNumber device = rank.context->device();
      std::memcpy(own.value.uuid, rank.info.uuid, sizeof(own.value.uuid));
      own.value.wanted_workers = rank.wanted_workers;
      if (processes.passes_descriptors() && attribute(driver, attribute_posix_memory_handles, device) != 0) {
        own.value.handle_types |= memory_handle_posix;
      }
      if (attribute(driver, attribute_fabric_memory_handles, device) != 0) {
        own.value.handle_types |= memory_handle_fabric;
      }
      return own;
    });
    for (uint32_t process = 0; process < processes.size(); ++process) {
      const device::ProcessGroup::Process& of = processes.process(process);
      if (n < of.rank_count) all[of.first_rank + n] = told.values[process];
    }
  }
  return all;
}

void Mesh::connect() {
  if (group().alone()) return;
  const std::vector<Neighbour> all = gather_ranks();
  group().agree("mkrt_mesh_create", [&] {
    int common = memory_handle_posix | memory_handle_fabric;
    for (const Neighbour& rank : all) common &= rank.handle_types;
    // A descriptor reaches whom it was passed to and nobody else, a fabric handle whoever is of the same fabric.
    handle_type_ = (common & memory_handle_posix) != 0 ? memory_handle_posix : common;
    if (handle_type_ == memory_handle_none) {
      refuse(
          group().passes_descriptors()
              ? "the devices of the mesh have no kind of handle in common by which processes map each other's memory"
              : "the exchange between the processes passes no file descriptors, and not every device of the mesh has "
                "fabric handles, which could be passed instead");
    }
    share_workers(all);
    check_paths(all);
  });
}

// Ranks of other processes may be on the devices of this one. Kernels that wait for each other must find room together,
// as far as the driver runs two processes at a time.
void Mesh::share_workers(const std::vector<Neighbour>& all) {
  for (const MeshDevice& device : devices_) {
    const RankDevice& first = rank(device.ranks.front());
    std::vector<uint32_t> sharing, wanted;
    for (uint32_t number = 0; number < all.size(); ++number) {
      if (std::memcmp(all[number].uuid, first.info.uuid, sizeof(first.info.uuid)) != 0) continue;
      sharing.push_back(number);
      wanted.push_back(all[number].wanted_workers);
    }
    const auto shares = divide_workers(device.worker_count, wanted, name_of(sharing.back(), first.info));
    for (size_t i = 0; i < sharing.size(); ++i) {
      if (group().is_local(sharing[i])) ranks_[sharing[i] - group().first_rank()].info.worker_count = shares[i];
    }
  }
}

// From the devices here to those of other processes, where the driver shows them here as well.
void Mesh::check_paths(const std::vector<Neighbour>& all) const {
  const Driver& driver = ranks_.front().context->driver();
  for (uint32_t number = 0; number < all.size(); ++number) {
    if (group().is_local(number)) continue;
    for (uint32_t ordinal = 0; ordinal < device_count(driver); ++ordinal) {
      mkrt_device_info info{};
      const DeviceNumber to = device_by_ordinal(driver, ordinal);
      describe_fixed(driver, to, ordinal, &info);
      if (std::memcmp(info.uuid, all[number].uuid, sizeof(info.uuid)) != 0) continue;
      const std::string name = base::text(name_of(number, info), " of process ", group().process_of(number));
      for (const MeshDevice& from : devices_) {
        if (from.context->device() == to) continue;
        check_path(driver, from.context->device(), name_of(rank(from.ranks.front())), to, name);
      }
    }
  }
}

void Mesh::describe(uint32_t number, mkrt_device_info* out_info) const noexcept {
  const RankDevice& device = rank(number);
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
