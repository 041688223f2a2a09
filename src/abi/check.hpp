// Checks of what a caller passes: pointers, struct sizes, chains, reserved fields. All throw base::Failure, except
// those for the execute path, which return a status.
#pragma once

#include <cstdint>

#include "base/failure.hpp"
#include "base/report.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::abi {

// An out_error that the library cannot have the layout of must not be written, so the call cannot go on: the caller
// would never learn what went wrong later.
inline bool error_usable(const mkrt_error* out_error) noexcept {
  return out_error == nullptr || out_error->struct_size == sizeof(mkrt_error);
}

inline void require_pointer(const void* pointer, const char* name) {
  if (pointer == nullptr) throw base::Failure(MKRT_ERROR_ARGUMENT, base::text(name, " is NULL"));
}

inline void require_zero(uint32_t value, const char* name) {
  if (value != 0) throw base::Failure(MKRT_ERROR_ARGUMENT, base::text(name, " is reserved and must be 0, not ", value));
}

// MKRT_OK where `found` is the size that this library has; every release so far knows one size for each struct.
inline mkrt_status check_size(uint32_t found, size_t known, const char* name, mkrt_error* out_error) noexcept {
  if (found == known) [[likely]]
    return MKRT_OK;
  return base::report(
      out_error, MKRT_ERROR_STRUCT_SIZE, "%s.struct_size is %u; this library (version %u.%u.%u) knows %u", name, found,
      MKRT_VERSION / 1000000u, MKRT_VERSION / 1000u % 1000u, MKRT_VERSION % 1000u, static_cast<uint32_t>(known));
}

inline void require_size(uint32_t found, size_t known, const char* name) {
  mkrt_error error = MKRT_ERROR_INIT;
  if (check_size(found, known, name, &error) != MKRT_OK) throw base::Failure(MKRT_ERROR_STRUCT_SIZE, error.message);
}

// The number of a process among those of a mesh, as two structs have it.
inline void require_process(uint32_t process, uint32_t count, const char* name) {
  if (count >= 1 && count <= MKRT_MAX_RANKS && process < count) return;
  throw base::Failure(MKRT_ERROR_ARGUMENT,
                      base::text(name, " is of process ", process, " of ", count, "; there are 1 to ", MKRT_MAX_RANKS,
                                 " processes, numbered from 0"));
}

// MKRT_OK where the chain is empty: what most descriptions know.
inline mkrt_status check_no_extension(const mkrt_extension* next, const char* name, mkrt_error* out_error) noexcept {
  if (next == nullptr) [[likely]]
    return MKRT_OK;
  return base::report(out_error, MKRT_ERROR_EXTENSION,
                      "%s.next holds an extension of type %u, which is not known there", name, next->type);
}

inline void require_no_extension(const mkrt_extension* next, const char* name) {
  mkrt_error error = MKRT_ERROR_INIT;
  if (check_no_extension(next, name, &error) != MKRT_OK) throw base::Failure(MKRT_ERROR_EXTENSION, error.message);
}

}  // namespace mkrt::abi
