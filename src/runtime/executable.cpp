#include "runtime/executable.hpp"

#include <utility>

#include "base/failure.hpp"
#include "runtime/hook_allocator.hpp"

namespace mkrt::runtime {

std::shared_ptr<Executable> create_executable(std::shared_ptr<Program> program, std::shared_ptr<Mesh> mesh,
                                              const device::LoadOptions& options) {
  if (program->runtime() != mesh->runtime()) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, "the program and the mesh were made from different runtimes");
  }
  if (program->package()->rank_count != mesh->rank_count()) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("the program is written for ", program->package()->rank_count,
                                                        " ranks, the mesh has ", mesh->rank_count()));
  }
  std::unique_ptr<device::Executable> loaded = mesh->devices().load(program->package(), options);
  const base::Hooks& hooks = *mesh->runtime()->hooks();
  return make_object<Executable>(hooks, std::move(program), std::move(mesh), std::move(loaded));
}

}  // namespace mkrt::runtime
