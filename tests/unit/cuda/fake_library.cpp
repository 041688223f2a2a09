#include "fake_library.hpp"

#include "cuda/driver.hpp"

using namespace mkrt::cuda;
using mkrt::cuda::test::FakeLibrary;

#define MKRT_EXPORT extern "C" __attribute__((visibility("default")))

MKRT_EXPORT FakeLibrary mkrt_fake_library;

namespace {

Result initialize(unsigned flags) {
  constexpr Result invalid_value = 1;
  return flags == 0 ? mkrt_fake_library.result_of_initialize : invalid_value;
}
Result error_name(Result, const char** out_name) {
  *out_name = "CUDA_ERROR_OF_A_TEST";
  return result_success;
}
Result error_text(Result, const char** out_text) {
  *out_text = "the test wants it so";
  return result_success;
}

// A function for every symbol. Opening a driver calls none of them.
enum class SymbolNumber {
#define MKRT_NUMBER(name, parameters, symbol, version) symbol,
  MKRT_CUDA_REQUIRED(MKRT_NUMBER) MKRT_CUDA_OPTIONAL(MKRT_NUMBER) MKRT_CUDA_RANKS(MKRT_NUMBER)
      MKRT_CUDA_PROCESSES(MKRT_NUMBER)
#undef MKRT_NUMBER
};
template <SymbolNumber number, class Pointer>
struct Symbol;
template <SymbolNumber number, class... Parameters>
struct Symbol<number, Result (*)(Parameters...)> {
  static Result call(Parameters...) { return static_cast<Result>(number) + 10'000; }  // no result of a driver
};

std::map<std::string, FakeLibrary::Symbol> all_symbols() {
  std::map<std::string, FakeLibrary::Symbol> symbols = {
#define MKRT_SYMBOL(name, parameters, symbol, version) \
  {#symbol, {version, reinterpret_cast<void*>(Symbol<SymbolNumber::symbol, decltype(Driver::name)>::call)}},
      MKRT_CUDA_REQUIRED(MKRT_SYMBOL) MKRT_CUDA_OPTIONAL(MKRT_SYMBOL) MKRT_CUDA_RANKS(MKRT_SYMBOL)
          MKRT_CUDA_PROCESSES(MKRT_SYMBOL)
#undef MKRT_SYMBOL
  };
  symbols["cuInit"].address = reinterpret_cast<void*>(initialize);
  symbols["cuGetErrorName"].address = reinterpret_cast<void*>(error_name);
  symbols["cuGetErrorString"].address = reinterpret_cast<void*>(error_text);
  return symbols;
}

}  // namespace

FakeLibrary mkrt_fake_library = {.symbols = all_symbols()};

// cuGetProcAddress_v2, or what drivers had before.
MKRT_EXPORT Result MKRT_FAKE_LOOK_UP(const char* symbol, void** out_function, int version, uint64_t flags,
                                     int* out_status) {
  FakeLibrary& library = mkrt_fake_library;
  library.look_ups.push_back({symbol, version, flags});
  const auto found = library.symbols.find(symbol);
  const bool known = found != library.symbols.end() && symbol != library.missing && found->second.version <= version &&
                     found->second.version <= library.version;
  if (out_status != nullptr) *out_status = known ? 0 : 1;
  if (known) {
    *out_function = found->second.address;
    return result_success;
  }
  // What comes with an error is worth nothing.
  *out_function = library.result_of_missing == result_success ? nullptr : &library;
  return library.result_of_missing;
}
