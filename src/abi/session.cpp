// The execute path: nothing here throws or allocates, but for starting a trace.
#include "abi/check.hpp"
#include "abi/guard.hpp"
#include "abi/handle.hpp"

namespace mkrt::abi {
namespace {

// What every function of a session checks first.
mkrt_status check_session(const mkrt_session* session, mkrt_error* out_error) noexcept {
  if (!error_usable(out_error)) return MKRT_ERROR_STRUCT_SIZE;
  return check_handle(session, out_error);
}

mkrt_status report_null(const char* name, mkrt_error* out_error) noexcept {
  return base::report(out_error, MKRT_ERROR_ARGUMENT, "%s is NULL", name);
}

mkrt_status check_description(const mkrt_execute_desc& desc, mkrt_error* out_error) noexcept {
  mkrt_status status = check_size(desc.struct_size, sizeof(desc), "mkrt_execute_desc", out_error);
  if (status == MKRT_OK) status = check_no_extension(desc.next, "mkrt_execute_desc", out_error);
  if (status == MKRT_OK && desc.reserved != 0) {
    status =
        base::report(out_error, MKRT_ERROR_ARGUMENT, "mkrt_execute_desc.reserved must be 0, not %u", desc.reserved);
  }
  return status;
}

}  // namespace
}  // namespace mkrt::abi

using namespace mkrt::abi;

void mkrt_session_destroy(mkrt_session* session) { destroy_handle(session); }

mkrt_status mkrt_session_reset(mkrt_session* session, mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  return session->object->reset(out_error);
}

mkrt_status mkrt_session_write(mkrt_session* session, uint32_t rank, uint32_t tensor, uint64_t offset_bytes,
                               const void* data, uint64_t size_bytes, mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  if (data == nullptr && size_bytes > 0) return report_null("data", out_error);
  return session->object->write(rank, tensor, offset_bytes, data, size_bytes, out_error);
}

mkrt_status mkrt_session_read(mkrt_session* session, uint32_t rank, uint32_t tensor, uint64_t offset_bytes,
                              uint64_t size_bytes, void* out_data, mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  if (out_data == nullptr && size_bytes > 0) return report_null("out_data", out_error);
  return session->object->read(rank, tensor, offset_bytes, size_bytes, out_data, out_error);
}

mkrt_status mkrt_session_tensor_address(mkrt_session* session, uint32_t rank, uint32_t tensor, void** out_address,
                                        mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  if (out_address == nullptr) return report_null("out_address", out_error);
  return session->object->tensor_address(rank, tensor, out_address, out_error);
}

mkrt_status mkrt_execute(mkrt_session* session, const mkrt_execute_desc* desc, uint64_t* out_value,
                         mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  mkrt_execute_desc request{};
  if (desc != nullptr) {
    if (const mkrt_status status = check_description(*desc, out_error); status != MKRT_OK) return status;
    request = *desc;
  }
  return session->object->execute(request, out_value, out_error);
}

mkrt_status mkrt_session_query(mkrt_session* session, uint64_t* out_value, mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  if (out_value == nullptr) return report_null("out_value", out_error);
  return session->object->query(out_value, out_error);
}

mkrt_status mkrt_session_wait(mkrt_session* session, uint64_t value, uint64_t timeout_ns, mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  return session->object->wait(value, timeout_ns, out_error);
}

mkrt_status mkrt_session_cancel(mkrt_session* session, mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  session->object->cancel();
  return MKRT_OK;
}

mkrt_status mkrt_session_trace(mkrt_session* session, uint32_t tiles_per_worker, mkrt_error* out_error) {
  return guarded(out_error, [&] {
    require_handle(session);
    session->object->trace(tiles_per_worker);
  });
}

mkrt_status mkrt_session_read_trace(mkrt_session* session, uint32_t worker, uint32_t count, mkrt_trace_tile* out_tiles,
                                    mkrt_error* out_error) {
  if (const mkrt_status status = check_session(session, out_error); status != MKRT_OK) return status;
  if (out_tiles == nullptr && count > 0) return report_null("out_tiles", out_error);
  return session->object->read_trace(worker, count, out_tiles, out_error);
}
