// Where exceptions end: nothing that is thrown inside reaches the host application.
#pragma once

#include "abi/check.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::abi {

// Turns the exception that is being handled into a status and `*out_error`.
mkrt_status report_current_exception(mkrt_error* out_error) noexcept;

// Runs `body`, whose last act is to write the call's outputs.
template <class Body>
mkrt_status guarded(mkrt_error* out_error, Body&& body) noexcept {
  if (!error_usable(out_error)) return MKRT_ERROR_STRUCT_SIZE;
  try {
    body();
    return MKRT_OK;
  } catch (...) {
    return report_current_exception(out_error);
  }
}

}  // namespace mkrt::abi
