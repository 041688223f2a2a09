#include "abi/check.hpp"
#include "abi/guard.hpp"
#include "abi/handle.hpp"

using namespace mkrt::abi;

mkrt_status mkrt_executable_create(mkrt_program* program, mkrt_mesh* mesh, const mkrt_executable_desc* desc,
                                   mkrt_executable** out_executable, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(program);
    require_handle(mesh);
    require_pointer(out_executable, "out_executable");
    mkrt::device::LoadOptions options;
    if (desc != nullptr) {
      require_size(desc->struct_size, sizeof(mkrt_executable_desc), "mkrt_executable_desc");
      require_no_extension(desc->next, "mkrt_executable_desc");
      if (desc->loader_threads > MKRT_MAX_LOADER_THREADS) {
        throw mkrt::base::Failure(MKRT_ERROR_ARGUMENT,
                                  mkrt::base::text("mkrt_executable_desc.loader_threads is ", desc->loader_threads,
                                                   "; there are at most ", MKRT_MAX_LOADER_THREADS));
      }
      if (desc->loader_threads != 0) options.loader_threads = desc->loader_threads;
      options.memory_budget = desc->memory_budget;
    }
    *out_executable = make_handle<mkrt_executable>(
        program->instance, mkrt::runtime::create_executable(program->object, mesh->object, options));
  });
}

void mkrt_executable_destroy(mkrt_executable* executable) { destroy_handle(executable); }

mkrt_status mkrt_session_create(mkrt_executable* executable, mkrt_session** out_session, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(executable);
    require_pointer(out_session, "out_session");
    *out_session = make_handle<mkrt_session>(executable->instance, mkrt::runtime::create_session(executable->object));
  });
}
