#include "abi/guard.hpp"

#include <new>
#include <stdexcept>
#include <system_error>

namespace mkrt::abi {
namespace {

// Creating a thread fails with these where the system has no memory or no thread left.
bool means_exhausted(const std::error_code& code) noexcept {
  return code == std::errc::not_enough_memory || code == std::errc::resource_unavailable_try_again;
}

}  // namespace

mkrt_status report_current_exception(mkrt_error* out_error) noexcept {
  try {
    throw;
  } catch (const base::Failure& failure) {
    return base::report(out_error, failure);
  } catch (const std::bad_alloc&) {
    return base::report(out_error, MKRT_ERROR_OUT_OF_MEMORY, "the C++ heap has no memory left");
  } catch (const std::length_error& error) {
    return base::report(out_error, MKRT_ERROR_OUT_OF_MEMORY, "more than the address space can hold: %s", error.what());
  } catch (const std::system_error& error) {
    const mkrt_status status = means_exhausted(error.code()) ? MKRT_ERROR_OUT_OF_MEMORY : MKRT_ERROR_INTERNAL;
    base::report(out_error, status, "the system refused a resource: %s", error.what());
    if (out_error != nullptr) out_error->driver_code = error.code().value();
    return status;
  } catch (const std::exception& error) {
    return base::report(out_error, MKRT_ERROR_INTERNAL, "unexpected error, please report it: %s", error.what());
  } catch (...) {
    return base::report(out_error, MKRT_ERROR_INTERNAL, "unexpected error of unknown type, please report it");
  }
}

}  // namespace mkrt::abi
