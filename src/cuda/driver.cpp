#include "cuda/driver.hpp"

#include "base/failure.hpp"
#include "base/report.hpp"
#include "cuda/library.hpp"

namespace mkrt::cuda {

namespace {

using GetProcAddress = Result(MKRT_CUDA_CALL*)(const char* symbol, void** out_function, int version, uint64_t flags,
                                               int* out_status);

// Keeps the library open as long as the table is used.
struct OpenDriver {
  Library library;
  Driver driver;
};

template <class Pointer>
Pointer look_up(GetProcAddress get, const char* symbol, int version) {
  void* function = nullptr;
  if (get(symbol, &function, version, proc_address_default, nullptr) != result_success) return nullptr;
  return reinterpret_cast<Pointer>(function);
}

}  // namespace

std::string Driver::describe(Result result) const {
  const char* name = nullptr;
  const char* sentence = nullptr;
  if (error_name != nullptr) error_name(result, &name);
  if (error_text != nullptr) error_text(result, &sentence);
  return base::text(name != nullptr ? name : "CUDA error", " (", result, ")", sentence != nullptr ? ": " : "",
                    sentence != nullptr ? sentence : "");
}

const char* Driver::missing_for_ranks() const noexcept {
#define MKRT_CUDA_CHECK(name, parameters, symbol, version) \
  if (name == nullptr) return #symbol;
  MKRT_CUDA_RANKS(MKRT_CUDA_CHECK)
  return nullptr;
}

const char* Driver::missing_for_processes() const noexcept {
  MKRT_CUDA_PROCESSES(MKRT_CUDA_CHECK)
#undef MKRT_CUDA_CHECK
  return nullptr;
}

void Driver::check(Result result, const std::string& what) const {
  if (result == result_success) return;
  const mkrt_status status = result == result_out_of_memory ? MKRT_ERROR_OUT_OF_MEMORY : MKRT_ERROR_DRIVER;
  throw base::Failure(status, base::text("could not ", what, ": ", describe(result))).with_driver_code(result);
}

mkrt_status driver_error(const Driver& driver, Result result, const char* what, int32_t rank,
                         mkrt_error* out_error) noexcept {
  const char* name = nullptr;
  if (driver.error_name != nullptr) driver.error_name(result, &name);
  const mkrt_status status = base::report(out_error, MKRT_ERROR_DRIVER, "could not %s on rank %d: %s (%d)", what, rank,
                                          name != nullptr ? name : "CUDA error", result);
  if (out_error != nullptr) {
    out_error->driver_code = result;
    out_error->rank = rank;
  }
  return status;
}

std::shared_ptr<const Driver> open_driver() {
  auto open = std::make_shared<OpenDriver>();
  const std::string reason = open->library.open_system_driver();
  if (!reason.empty()) {
    throw base::Failure(MKRT_ERROR_DEVICE, base::text("there is no CUDA driver on this machine: ", reason));
  }
  const auto get = reinterpret_cast<GetProcAddress>(open->library.symbol("cuGetProcAddress_v2"));
  if (get == nullptr) {
    throw base::Failure(MKRT_ERROR_DEVICE,
                        "the CUDA driver is older than 12.0 (it has no cuGetProcAddress_v2); update it");
  }
  Driver& driver = open->driver;
#define MKRT_CUDA_LOOK_UP(name, parameters, symbol, version)                                                 \
  driver.name = look_up<decltype(driver.name)>(get, #symbol, version);                                       \
  if (driver.name == nullptr) {                                                                              \
    throw base::Failure(MKRT_ERROR_DEVICE, "the CUDA driver lacks " #symbol                                  \
                                           ", which mkrt needs; it may be too old, or a stub of a toolkit"); \
  }
  MKRT_CUDA_REQUIRED(MKRT_CUDA_LOOK_UP)
#undef MKRT_CUDA_LOOK_UP
#define MKRT_CUDA_LOOK_UP(name, parameters, symbol, version) \
  driver.name = look_up<decltype(driver.name)>(get, #symbol, version);
  MKRT_CUDA_OPTIONAL(MKRT_CUDA_LOOK_UP)
  MKRT_CUDA_RANKS(MKRT_CUDA_LOOK_UP)
  MKRT_CUDA_PROCESSES(MKRT_CUDA_LOOK_UP)
#undef MKRT_CUDA_LOOK_UP
  const Result result = driver.initialize(0);
  if (result != result_success) {
    throw base::Failure(MKRT_ERROR_DEVICE, base::text("the CUDA driver cannot be used: ", driver.describe(result)))
        .with_driver_code(result);
  }
  return {open, &open->driver};
}

}  // namespace mkrt::cuda
