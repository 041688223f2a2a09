#include <vector>

#include "abi/check.hpp"
#include "abi/guard.hpp"
#include "abi/handle.hpp"
#include "mkrt/host_isa.h"
#include "runtime/hook_allocator.hpp"

namespace mkrt::abi {
namespace {

void check_host_isa(const mkrt_host_isa* isa) {
  require_pointer(isa, "an entry of mkrt_host_isa_extension.isas");
  require_size(isa->struct_size, sizeof(mkrt_host_isa), "mkrt_host_isa");
  require_pointer(isa->name, "mkrt_host_isa.name");
  if (isa->name[0] == '\0') throw base::Failure(MKRT_ERROR_ARGUMENT, "mkrt_host_isa.name is empty");
  if (isa->opcode_count > 0) require_pointer(isa->instructions, "mkrt_host_isa.instructions");
  for (uint32_t opcode = 0; opcode < isa->opcode_count; ++opcode) {
    if (isa->instructions[opcode] != nullptr) continue;
    throw base::Failure(MKRT_ERROR_ARGUMENT,
                        base::text("mkrt_host_isa.instructions[", opcode, "] of ", isa->name, " is NULL"));
  }
}

std::vector<const mkrt_host_isa*> host_isas_of(const mkrt_extension* entry) {
  const auto* extension = reinterpret_cast<const mkrt_host_isa_extension*>(entry);
  require_size(entry->struct_size, sizeof(mkrt_host_isa_extension), "mkrt_host_isa_extension.base");
  require_zero(extension->reserved, "mkrt_host_isa_extension.reserved");
  if (extension->isa_count > 0) require_pointer(extension->isas, "mkrt_host_isa_extension.isas");
  std::vector<const mkrt_host_isa*> isas(extension->isas, extension->isas + extension->isa_count);
  for (const mkrt_host_isa* isa : isas) check_host_isa(isa);
  return isas;
}

std::vector<const mkrt_host_isa*> read_chain(const mkrt_extension* next) {
  std::vector<const mkrt_host_isa*> isas;
  bool seen = false;
  for (; next != nullptr; next = next->next) {
    if (next->type != MKRT_EXTENSION_HOST_ISA) require_no_extension(next, "mkrt_runtime_desc");
    // Refusing a second one also ends a chain that leads back to itself.
    if (seen) throw base::Failure(MKRT_ERROR_ARGUMENT, "mkrt_runtime_desc.next holds MKRT_EXTENSION_HOST_ISA twice");
    seen = true;
    isas = host_isas_of(next);
  }
  return isas;
}

std::vector<const mkrt_host_isa*> check_description(const mkrt_runtime_desc* desc) {
  if (desc == nullptr) return {};
  require_size(desc->struct_size, sizeof(mkrt_runtime_desc), "mkrt_runtime_desc");
  std::vector<const mkrt_host_isa*> isas = read_chain(desc->next);
  if (desc->log_level > MKRT_LOG_DEBUG) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("mkrt_runtime_desc.log_level is ", desc->log_level,
                                                        "; the most verbose level is ", int{MKRT_LOG_DEBUG}));
  }
  if ((desc->allocate == nullptr) != (desc->release == nullptr)) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, "mkrt_runtime_desc has one of allocate and release without the other");
  }
  return isas;
}

}  // namespace
}  // namespace mkrt::abi

using namespace mkrt::abi;

mkrt_status mkrt_runtime_create(const mkrt_runtime_desc* desc, mkrt_runtime** out_runtime, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_pointer(out_runtime, "out_runtime");
    std::shared_ptr<mkrt::runtime::Runtime> runtime = mkrt::runtime::create_runtime(desc, check_description(desc));
    auto instance = mkrt::runtime::make_object<Instance>(*runtime->hooks(), runtime);
    *out_runtime = make_handle<mkrt_runtime>(std::move(instance), std::move(runtime));
  });
}

void mkrt_runtime_destroy(mkrt_runtime* runtime) { destroy_handle(runtime); }

mkrt_status mkrt_runtime_device_count(mkrt_runtime* runtime, uint32_t* out_count, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(runtime);
    require_pointer(out_count, "out_count");
    *out_count = runtime->object->device_count();
  });
}

mkrt_status mkrt_runtime_device_info(mkrt_runtime* runtime, uint32_t index, mkrt_device_info* out_info,
                                     mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(runtime);
    require_pointer(out_info, "out_info");
    require_size(out_info->struct_size, sizeof(mkrt_device_info), "mkrt_device_info");
    *out_info = runtime->object->device_info(index);
  });
}
