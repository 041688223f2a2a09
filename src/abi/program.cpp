#include "abi/check.hpp"
#include "abi/guard.hpp"
#include "abi/handle.hpp"

using namespace mkrt::abi;

mkrt_status mkrt_program_load(mkrt_runtime* runtime, const mkrt_program_desc* desc, mkrt_program** out_program,
                              mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(runtime);
    require_pointer(out_program, "out_program");
    require_pointer(desc, "desc");
    require_size(desc->struct_size, sizeof(mkrt_program_desc), "mkrt_program_desc");
    require_no_extension(desc->next, "mkrt_program_desc");
    require_zero(desc->reserved, "mkrt_program_desc.reserved");
    require_pointer(desc->path, "mkrt_program_desc.path");
    if (*desc->path == '\0') throw mkrt::base::Failure(MKRT_ERROR_FILE, "mkrt_program_desc.path is empty");
    *out_program =
        make_handle<mkrt_program>(runtime->instance, mkrt::runtime::load_program(runtime->object, desc->path));
  });
}

void mkrt_program_destroy(mkrt_program* program) { destroy_handle(program); }

mkrt_status mkrt_program_get_info(mkrt_program* program, mkrt_program_info* out_info, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(program);
    require_pointer(out_info, "out_info");
    require_size(out_info->struct_size, sizeof(mkrt_program_info), "mkrt_program_info");
    *out_info = program->object->info();
  });
}

mkrt_status mkrt_program_entry_info(mkrt_program* program, uint32_t index, mkrt_entry_info* out_info,
                                    mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(program);
    require_pointer(out_info, "out_info");
    require_size(out_info->struct_size, sizeof(mkrt_entry_info), "mkrt_entry_info");
    *out_info = program->object->entry_info(index);
  });
}

mkrt_status mkrt_program_find_entry(mkrt_program* program, const char* name, uint32_t* out_index,
                                    mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(program);
    require_pointer(out_index, "out_index");
    require_pointer(name, "name");
    *out_index = program->object->find_entry(name);
  });
}

mkrt_status mkrt_program_record_info(mkrt_program* program, uint32_t entry, uint32_t record, mkrt_record_info* out_info,
                                     mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(program);
    require_pointer(out_info, "out_info");
    require_size(out_info->struct_size, sizeof(mkrt_record_info), "mkrt_record_info");
    *out_info = program->object->record_info(entry, record);
  });
}

mkrt_status mkrt_program_tensor_info(mkrt_program* program, uint32_t index, mkrt_tensor_info* out_info,
                                     mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(program);
    require_pointer(out_info, "out_info");
    require_size(out_info->struct_size, sizeof(mkrt_tensor_info), "mkrt_tensor_info");
    *out_info = program->object->tensor_info(index);
  });
}

mkrt_status mkrt_program_find_tensor(mkrt_program* program, const char* name, uint32_t* out_index,
                                     mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(program);
    require_pointer(out_index, "out_index");
    require_pointer(name, "name");
    *out_index = program->object->find_tensor(name);
  });
}

mkrt_status mkrt_program_metadata(mkrt_program* program, const char* key, const char** out_value,
                                  mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(program);
    require_pointer(out_value, "out_value");
    require_pointer(key, "key");
    *out_value = program->object->metadata(key);
  });
}
