#include "runtime/executable.hpp"

#include <utility>

#include "base/failure.hpp"
#include "memory/fingerprint.hpp"
#include "runtime/hook_allocator.hpp"

namespace mkrt::runtime {

namespace {

// Throws in every process where the program of one of them is another one, or not for so many ranks.
void check_same_program(const package::Program& program, device::ProcessGroup& group) {
  const auto fingerprints = group.together<uint64_t>("mkrt_executable_create", [&] {
    if (program.rank_count != group.rank_count()) {
      throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("the program is written for ", program.rank_count,
                                                          " ranks, the mesh has ", group.rank_count()));
    }
    return device::ProcessGroup::Part<uint64_t>{group.alone() ? 0 : memory::program_fingerprint(program)};
  });
  for (size_t process = 1; process < fingerprints.values.size(); ++process) {
    if (fingerprints.values[process] == fingerprints.values[0]) continue;
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("the programs of processes 0 and ", process,
                                                        " differ: their "
                                                        "schedules or tensors are not the same"));
  }
}

}  // namespace

std::shared_ptr<Executable> create_executable(std::shared_ptr<Program> program, std::shared_ptr<Mesh> mesh,
                                              const device::LoadOptions& options) {
  if (program->runtime() != mesh->runtime()) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, "the program and the mesh were made from different runtimes");
  }
  const auto turn = mesh->group().turn();
  check_same_program(*program->package(), mesh->group());
  std::unique_ptr<device::Executable> loaded;
  mesh->group().agree("mkrt_executable_create", [&] { loaded = mesh->devices().load(program->package(), options); });
  const base::Hooks& hooks = *mesh->runtime()->hooks();
  return make_object<Executable>(hooks, std::move(program), std::move(mesh), std::move(loaded));
}

}  // namespace mkrt::runtime
