#include "runtime/mesh.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "cuda/cuda.hpp"
#include "device/process_group.hpp"
#include "host/host.hpp"
#include "runtime/hook_allocator.hpp"

namespace mkrt::runtime {
namespace {

// The oldest major compute capability that a default device has. Older devices can be asked for by name, for packages
// with images of their own; those of kernels/ begin here.
constexpr uint32_t oldest_default_major = 8;

// What the ranks of every kind of device are made with.
struct Choice {
  const mkrt_device_memory_extension* device_memory;
  std::shared_ptr<device::ProcessGroup> group;
};

// The kind that all ranks take; MKRT_DEVICE_DEFAULT where none of them names one.
uint32_t kind_of(std::span<const mkrt_rank_desc> ranks) {
  uint32_t kind = MKRT_DEVICE_DEFAULT;
  for (const mkrt_rank_desc& rank : ranks) {
    const auto refuse = [&](const std::string& why) {
      throw base::Failure(MKRT_ERROR_ARGUMENT, why).at_rank(static_cast<int32_t>(&rank - ranks.data()));
    };
    if (rank.kind > MKRT_DEVICE_CUDA) refuse(base::text("device kind ", rank.kind, " does not exist"));
    if (rank.kind == MKRT_DEVICE_DEFAULT) continue;
    if (kind == MKRT_DEVICE_DEFAULT) kind = rank.kind;
    if (rank.kind != kind) refuse("the ranks of a mesh are of one kind, these are of two");
  }
  return kind;
}

bool has_uuid(const mkrt_rank_desc& rank) {
  return std::any_of(std::begin(rank.uuid), std::end(rank.uuid), [](uint8_t byte) { return byte != 0; });
}

bool names_cuda_device(const mkrt_rank_desc& rank) {
  return has_uuid(rank) || rank.context != nullptr || rank.stream != nullptr;
}

// A host rank that names what only CUDA has was meant to be something else.
void check_host_rank(const mkrt_rank_desc& rank, int32_t number) {
  if (!names_cuda_device(rank)) return;
  throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("rank ", number, " is a host rank and has a ",
                                                      has_uuid(rank) ? "uuid"
                                                      : rank.context ? "context"
                                                                     : "stream"))
      .at_rank(number);
}

std::unique_ptr<device::Mesh> create_host(Runtime& runtime, std::span<const mkrt_rank_desc> ranks,
                                          const Choice& choice) {
  if (choice.device_memory != nullptr) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                        "the mesh is on the host, which takes no device memory from MKRT_EXTENSION_DEVICE_MEMORY");
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) check_host_rank(ranks[rank], static_cast<int32_t>(rank));
  return host::create_mesh(runtime.hooks(), ranks, runtime.host_isas(), choice.group);
}

std::unique_ptr<device::Mesh> create_cuda(Runtime& runtime, std::span<const mkrt_rank_desc> ranks,
                                          const Choice& choice) {
  return cuda::create_mesh(runtime.hooks(), runtime.cuda().driver(), ranks, choice.device_memory, choice.group);
}

bool is_old(const mkrt_device_info& device) { return device.compute_major < oldest_default_major; }

// Several ranks, each on a device of its own: the first that are new enough. Null where they are fewer than the ranks,
// or cannot be in one mesh, which is logged. Processes take one after the other of the devices that all see; where they
// see fewer than there are ranks, whoever started them has given each its own.
std::unique_ptr<device::Mesh> try_a_device_each(Runtime& runtime, std::span<const mkrt_rank_desc> ranks,
                                                const Choice& choice) {
  std::vector<uint32_t> ordinals;
  for (const mkrt_device_info& info : runtime.cuda().found().devices) {
    if (!is_old(info)) ordinals.push_back(info.ordinal);
  }
  const device::ProcessGroup& processes = *choice.group;
  const size_t first = ordinals.size() >= processes.rank_count() ? processes.first_rank() : 0;
  if (processes.rank_count() == 1 || ordinals.size() < first + ranks.size()) return nullptr;
  std::vector<mkrt_rank_desc> apart(ranks.begin(), ranks.end());
  for (size_t i = 0; i < apart.size(); ++i) apart[i].ordinal = ordinals[first + i];
  try {
    return create_cuda(runtime, apart, choice);
  } catch (const base::Failure& failure) {
    runtime.log(MKRT_LOG_WARNING, base::text("the ranks share a device: ", failure.message()));
    return nullptr;
  }
}

// A mesh on CUDA devices: one for each rank, or else all ranks on the first that can be used. Null where there is none,
// and why.
std::unique_ptr<device::Mesh> try_cuda(Runtime& runtime, std::span<const mkrt_rank_desc> ranks, const Choice& choice,
                                       std::string* out_reason) {
  const CudaDevices::Found& found = runtime.cuda().found();
  if (found.refusal) {
    *out_reason = found.refusal->message();
    return nullptr;
  }
  if (std::unique_ptr<device::Mesh> mesh = try_a_device_each(runtime, ranks, choice)) return mesh;
  *out_reason = "there is no CUDA device";
  for (const mkrt_device_info& info : found.devices) {
    std::vector<mkrt_rank_desc> on_device(ranks.begin(), ranks.end());
    for (mkrt_rank_desc& rank : on_device) rank.ordinal = info.ordinal;
    try {
      if (is_old(info)) {
        throw base::Failure(MKRT_ERROR_UNSUPPORTED, base::text("its compute capability is ", info.compute_major, ".",
                                                               info.compute_minor, ", less than 8.0"));
      }
      return create_cuda(runtime, on_device, choice);
    } catch (const base::Failure& failure) {
      *out_reason = base::text("CUDA device ", info.ordinal, " (", info.name, ") cannot be used: ", failure.message());
      if (&info != &found.devices.back()) runtime.log(MKRT_LOG_WARNING, *out_reason);
    }
  }
  return nullptr;
}

std::unique_ptr<device::Mesh> create_default(Runtime& runtime, std::span<const mkrt_rank_desc> ranks,
                                             const Choice& choice) {
  std::string reason;
  std::unique_ptr<device::Mesh> mesh = try_cuda(runtime, ranks, choice, &reason);
  if (mesh) return mesh;
  runtime.log(MKRT_LOG_WARNING, base::text("the default device is the host: ", reason));
  return create_host(runtime, ranks, choice);
}

}  // namespace

mkrt_device_info Mesh::device_info(uint32_t rank) const {
  if (rank >= rank_count()) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("rank ", rank, " does not exist; the mesh has ", rank_count()));
  }
  if (!group().is_local(rank)) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("rank ", rank, " is of process ", group().process_of(rank),
                                                        "; this is process ", group().own()));
  }
  mkrt_device_info info{};
  info.struct_size = sizeof(info);
  devices_->describe(rank, &info);
  return info;
}

std::shared_ptr<Mesh> create_mesh(std::shared_ptr<Runtime> runtime, std::span<const mkrt_rank_desc> ranks,
                                  const MeshOptions& options) {
  const auto count = static_cast<uint32_t>(ranks.size());
  const Choice choice{options.device_memory,
                      options.processes == nullptr
                          ? std::make_shared<device::ProcessGroup>(count)
                          : std::make_shared<device::ProcessGroup>(*options.processes, count, options.keep)};
  const auto create = [&](uint32_t kind) {
    if (kind == MKRT_DEVICE_CUDA) return create_cuda(*runtime, ranks, choice);
    if (kind == MKRT_DEVICE_HOST) return create_host(*runtime, ranks, choice);
    // What only CUDA has says which kind is meant.
    const bool names_cuda = std::any_of(ranks.begin(), ranks.end(), names_cuda_device);
    return names_cuda ? create_cuda(*runtime, ranks, choice) : create_default(*runtime, ranks, choice);
  };
  std::unique_ptr<device::Mesh> devices;
  const auto kinds = choice.group->together<uint32_t>("mkrt_mesh_create", [&] {
    devices = create(kind_of(ranks));
    mkrt_device_info info{};
    info.struct_size = sizeof(info);
    devices->describe(choice.group->first_rank(), &info);
    return device::ProcessGroup::Part<uint32_t>{info.kind};
  });
  for (size_t process = 1; process < kinds.values.size(); ++process) {
    if (kinds.values[process] == kinds.values[0]) continue;
    throw base::Failure(
        MKRT_ERROR_ARGUMENT,
        base::text("the ranks of a mesh are of one kind; those of processes 0 and ", process, " are of two"));
  }
  devices->connect();
  const base::Hooks& hooks = *runtime->hooks();
  return make_object<Mesh>(hooks, std::move(runtime), std::move(devices));
}

}  // namespace mkrt::runtime
