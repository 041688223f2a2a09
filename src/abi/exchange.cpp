#include <cstring>

#include "abi/check.hpp"
#include "abi/guard.hpp"
#include "abi/handle.hpp"
#include "runtime/hook_allocator.hpp"

namespace mkrt::abi {
namespace {

constexpr size_t longest_address = 100;  // mkrt.h promises it; the system has room for 107

void check(const mkrt_exchange_desc& desc) {
  require_size(desc.struct_size, sizeof(desc), "mkrt_exchange_desc");
  require_no_extension(desc.next, "mkrt_exchange_desc");
  require_zero(desc.reserved, "mkrt_exchange_desc.reserved");
  require_process(desc.process, desc.process_count, "mkrt_exchange_desc");
  require_pointer(desc.address, "mkrt_exchange_desc.address");
  const size_t length = std::strlen(desc.address);
  if (length == 0 || length > longest_address) {
    throw base::Failure(MKRT_ERROR_ARGUMENT,
                        base::text("mkrt_exchange_desc.address has ", length, " bytes; it has 1 to ", longest_address));
  }
}

}  // namespace
}  // namespace mkrt::abi

using namespace mkrt::abi;

mkrt_status mkrt_exchange_create(mkrt_runtime* runtime, const mkrt_exchange_desc* desc, mkrt_exchange** out_exchange,
                                 mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(runtime);
    require_pointer(desc, "desc");
    require_pointer(out_exchange, "out_exchange");
    check(*desc);
    const mkrt::base::Hooks& hooks = *runtime->object->hooks();
    *out_exchange = make_handle<mkrt_exchange>(
        runtime->instance, mkrt::runtime::make_object<mkrt::exchange::SocketExchange>(hooks, *desc));
  });
}

void mkrt_exchange_destroy(mkrt_exchange* exchange) { destroy_handle(exchange); }

mkrt_status mkrt_exchange_get_extension(mkrt_exchange* exchange, mkrt_process_extension* out_extension,
                                        mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(exchange);
    require_pointer(out_extension, "out_extension");
    require_size(out_extension->base.struct_size, sizeof(*out_extension), "mkrt_process_extension.base");
    *out_extension = exchange->object->extension();
  });
}
