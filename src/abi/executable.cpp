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
    uint64_t memory_budget = 0;
    if (desc != nullptr) {
      require_size(desc->struct_size, sizeof(mkrt_executable_desc), "mkrt_executable_desc");
      require_no_extension(desc->next, "mkrt_executable_desc");
      require_zero(desc->reserved, "mkrt_executable_desc.reserved");
      memory_budget = desc->memory_budget;
    }
    *out_executable = make_handle<mkrt_executable>(
        program->instance, mkrt::runtime::create_executable(program->object, mesh->object, memory_budget));
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
