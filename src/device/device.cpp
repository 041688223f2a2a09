#include "device/device.hpp"

#include "base/failure.hpp"
#include "base/report.hpp"

namespace mkrt::device {

void Session::trace(uint32_t) { throw base::Failure(MKRT_ERROR_UNSUPPORTED, "devices of this kind do not trace"); }

mkrt_status Session::read_trace(uint32_t, uint32_t, mkrt_trace_tile*, mkrt_error* out_error) noexcept {
  return base::report(out_error, MKRT_ERROR_UNSUPPORTED, "devices of this kind do not trace");
}

}  // namespace mkrt::device
