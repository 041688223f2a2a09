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
  rank.adopted_stream = static_cast<Stream>(desc.stream);
  rank.info.struct_size = sizeof(rank.info);
  describe_fixed(*driver, rank.context->device(), ordinal, &rank.info);
  if (desc.context != nullptr && is_set(desc.uuid) && std::memcmp(desc.uuid, rank.info.uuid, sizeof(desc.uuid)) != 0) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, "the context that was given is not of the device with the given UUID");
  }
  if (attribute(*driver, attribute_cooperative_launch, rank.context->device()) == 0) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                        base::text(rank.info.name, " cannot launch a kernel whose blocks are resident together"));
  }
  if (desc.worker_count != 0) rank.info.worker_count = std::min(rank.info.worker_count, desc.worker_count);
  return rank;
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
                                          const mkrt_device_memory_extension* device_memory) {
  if (ranks.size() != 1) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                        base::text("a CUDA mesh has one rank, ", ranks.size(), " were asked for"));
  }
  std::vector<RankDevice> devices;
  for (const mkrt_rank_desc& rank : ranks) devices.push_back(open_rank(driver, rank));
  if (device_memory != nullptr) {
    for (uint32_t rank = 0; rank < devices.size(); ++rank) {
      devices[rank].allocator = {device_memory->allocate, device_memory->release, device_memory->user_data, rank};
    }
  }
  return std::make_unique<Mesh>(std::move(hooks), std::move(devices));
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
  return std::make_unique<Executable>(hooks_, ranks_.front(), std::move(program), options);
}

}  // namespace mkrt::cuda
