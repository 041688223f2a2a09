#include <vector>

#include "abi/check.hpp"
#include "abi/guard.hpp"
#include "abi/handle.hpp"

namespace mkrt::abi {
namespace {

// One description a rank, defaults resolved where the caller gave none.
std::vector<mkrt_rank_desc> ranks_of(const mkrt_mesh_desc* desc) {
  mkrt_rank_desc any{};
  any.struct_size = sizeof(any);
  if (desc == nullptr) return {any};
  require_size(desc->struct_size, sizeof(mkrt_mesh_desc), "mkrt_mesh_desc");
  if (desc->rank_count > MKRT_MAX_RANKS) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("mkrt_mesh_desc.rank_count is ", desc->rank_count,
                                                        "; a mesh has at most ", MKRT_MAX_RANKS));
  }
  const uint32_t count = desc->rank_count == 0 ? 1 : desc->rank_count;
  if (desc->ranks == nullptr) return std::vector<mkrt_rank_desc>(count, any);
  std::vector<mkrt_rank_desc> ranks;
  ranks.reserve(count);
  // The array's stride is the size that the caller was compiled with: nothing behind a wrong size can be read.
  for (uint32_t rank = 0; rank < count; ++rank) {
    require_size(desc->ranks[rank].struct_size, sizeof(mkrt_rank_desc), "mkrt_rank_desc");
    ranks.push_back(desc->ranks[rank]);
  }
  return ranks;
}

// The extensions of a mesh; NULL where the chain holds none of a type.
struct Extensions {
  const mkrt_device_memory_extension* device_memory = nullptr;
  const mkrt_process_extension* processes = nullptr;
};

// Takes an extension of the chain. Refusing a second one of a type also ends a chain that leads back to itself.
template <class Extension>
void take_extension(const mkrt_extension* from, const char* name, const char* constant, const Extension** out) {
  if (*out != nullptr) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("mkrt_mesh_desc.next holds ", constant, " twice"));
  }
  require_size(from->struct_size, sizeof(Extension), base::text(name, ".base").c_str());
  *out = reinterpret_cast<const Extension*>(from);
}

Extensions extensions_of(const mkrt_mesh_desc* desc) {
  Extensions found;
  for (const mkrt_extension* next = desc == nullptr ? nullptr : desc->next; next != nullptr; next = next->next) {
    if (next->type == MKRT_EXTENSION_DEVICE_MEMORY) {
      take_extension(next, "mkrt_device_memory_extension", "MKRT_EXTENSION_DEVICE_MEMORY", &found.device_memory);
    } else if (next->type == MKRT_EXTENSION_PROCESSES) {
      take_extension(next, "mkrt_process_extension", "MKRT_EXTENSION_PROCESSES", &found.processes);
    } else {
      require_no_extension(next, "mkrt_mesh_desc");
    }
  }
  return found;
}

void check(const Extensions& extensions) {
  const mkrt_device_memory_extension* memory = extensions.device_memory;
  if (memory != nullptr && (memory->allocate == nullptr || memory->release == nullptr)) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, "mkrt_device_memory_extension has a function that is NULL");
  }
  const mkrt_process_extension* processes = extensions.processes;
  if (processes == nullptr) return;
  if (processes->all_gather == nullptr) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, "mkrt_process_extension.all_gather is NULL");
  }
  require_process(processes->process, processes->process_count, "mkrt_process_extension");
}

}  // namespace
}  // namespace mkrt::abi

using namespace mkrt::abi;

mkrt_status mkrt_mesh_create(mkrt_runtime* runtime, const mkrt_mesh_desc* desc, mkrt_mesh** out_mesh,
                             mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(runtime);
    require_pointer(out_mesh, "out_mesh");
    const std::vector<mkrt_rank_desc> ranks = ranks_of(desc);
    const Extensions extensions = extensions_of(desc);
    check(extensions);
    mkrt::runtime::MeshOptions options{extensions.device_memory, extensions.processes, nullptr};
    if (extensions.processes != nullptr) options.keep = mkrt::exchange::SocketExchange::of(*extensions.processes);
    *out_mesh = make_handle<mkrt_mesh>(runtime->instance, mkrt::runtime::create_mesh(runtime->object, ranks, options));
  });
}

void mkrt_mesh_destroy(mkrt_mesh* mesh) { destroy_handle(mesh); }

mkrt_status mkrt_mesh_rank_count(mkrt_mesh* mesh, uint32_t* out_count, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(mesh);
    require_pointer(out_count, "out_count");
    *out_count = mesh->object->rank_count();
  });
}

mkrt_status mkrt_mesh_local_ranks(mkrt_mesh* mesh, uint32_t* out_first, uint32_t* out_count, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(mesh);
    require_pointer(out_first, "out_first");
    require_pointer(out_count, "out_count");
    *out_first = mesh->object->group().first_rank();
    *out_count = mesh->object->group().local_rank_count();
  });
}

mkrt_status mkrt_mesh_device_info(mkrt_mesh* mesh, uint32_t rank, mkrt_device_info* out_info, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(mesh);
    require_pointer(out_info, "out_info");
    require_size(out_info->struct_size, sizeof(mkrt_device_info), "mkrt_device_info");
    *out_info = mesh->object->device_info(rank);
  });
}
