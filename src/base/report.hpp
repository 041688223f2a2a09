// How code reports failure without an exception: a status, and a sentence in the caller's mkrt_error. Allocates
// nothing.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/failure.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::base {

// Sets every field but struct_size to what it is where it does not apply.
inline void clear_error(mkrt_error* error) noexcept {
  const uint32_t struct_size = error->struct_size;
  *error = mkrt_error{};
  error->struct_size = struct_size;
  error->driver_code = error->rank = error->worker = error->record = error->counter = -1;
}

// Ends a message that did not fit with "...", without cutting a UTF-8 sequence in two.
inline void end_truncated(mkrt_error* error) noexcept {
  size_t end = sizeof(error->message) - 1 - 3;
  while (end > 0 && (static_cast<unsigned char>(error->message[end]) & 0xc0) == 0x80) --end;
  std::memcpy(error->message + end, "...", 4);
}

// Fills `*out_error`, if there is one, with a status and a sentence in printf's form; returns the status. The caller
// sets the fields that tell where afterwards.
[[gnu::format(printf, 3, 4)]] inline mkrt_status report(mkrt_error* out_error, mkrt_status status, const char* format,
                                                        ...) noexcept {
  if (out_error == nullptr) return status;
  clear_error(out_error);
  out_error->status = status;
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(out_error->message, sizeof(out_error->message), format, arguments);
  va_end(arguments);
  if (length >= static_cast<int>(sizeof(out_error->message))) end_truncated(out_error);
  return status;
}

// The same for a failure that was caught.
inline mkrt_status report(mkrt_error* out_error, const Failure& failure) noexcept {
  if (out_error == nullptr) return failure.status();
  clear_error(out_error);
  out_error->status = failure.status();
  out_error->driver_code = failure.driver_code();
  out_error->rank = failure.rank();
  out_error->record = failure.record();
  out_error->tile = failure.tile();
  const std::string& message = failure.message();
  const size_t length = std::min(message.size(), sizeof(out_error->message) - 1);
  std::memcpy(out_error->message, message.data(), length);
  if (length < message.size()) end_truncated(out_error);
  return failure.status();
}

}  // namespace mkrt::base
