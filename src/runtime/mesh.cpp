#include "runtime/mesh.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "host/host.hpp"
#include "runtime/hook_allocator.hpp"

namespace mkrt::runtime {
namespace {

// The kind that all ranks take.
uint32_t kind_of(const Runtime& runtime, std::span<const mkrt_rank_desc> ranks) {
  for (const mkrt_rank_desc& rank : ranks) {
    if (rank.kind <= MKRT_DEVICE_CUDA) continue;
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("device kind ", rank.kind, " does not exist"))
        .at_rank(static_cast<int32_t>(&rank - ranks.data()));
  }
  uint32_t kind = ranks.front().kind;
  if (kind == MKRT_DEVICE_DEFAULT) {
    runtime.log(MKRT_LOG_WARNING, "no CUDA device can be used: the default device is the host");
    kind = MKRT_DEVICE_HOST;
  }
  for (const mkrt_rank_desc& rank : ranks) {
    if (rank.kind == MKRT_DEVICE_DEFAULT || rank.kind == kind) continue;
    throw base::Failure(MKRT_ERROR_ARGUMENT, "the ranks of a mesh are of one kind, these are of two")
        .at_rank(static_cast<int32_t>(&rank - ranks.data()));
  }
  return kind;
}

// A host rank that names what only CUDA has was meant to be something else.
void check_host_rank(const mkrt_rank_desc& rank, int32_t number) {
  const bool has_uuid = std::any_of(std::begin(rank.uuid), std::end(rank.uuid), [](uint8_t byte) { return byte != 0; });
  if (!has_uuid && rank.context == nullptr && rank.stream == nullptr) return;
  throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("rank ", number, " is a host rank and has a ",
                                                      has_uuid       ? "uuid"
                                                      : rank.context ? "context"
                                                                     : "stream"))
      .at_rank(number);
}

}  // namespace

mkrt_device_info Mesh::device_info(uint32_t rank) const {
  if (rank >= rank_count()) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("rank ", rank, " does not exist; the mesh has ", rank_count()));
  }
  mkrt_device_info info{};
  info.struct_size = sizeof(info);
  devices_->describe(rank, &info);
  return info;
}

std::shared_ptr<Mesh> create_mesh(std::shared_ptr<Runtime> runtime, std::span<const mkrt_rank_desc> ranks) {
  if (kind_of(*runtime, ranks) == MKRT_DEVICE_CUDA) {
    throw base::Failure(MKRT_ERROR_DEVICE, "there is no CUDA device that can be used");
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) check_host_rank(ranks[rank], static_cast<int32_t>(rank));
  std::unique_ptr<device::Mesh> devices = host::create_mesh(runtime->hooks(), ranks, runtime->host_isas());
  const base::Hooks& hooks = *runtime->hooks();
  return make_object<Mesh>(hooks, std::move(runtime), std::move(devices));
}

}  // namespace mkrt::runtime
