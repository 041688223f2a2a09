// How the driver is opened, on a libcuda.so.1 of the tests.
#include "cuda/driver.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "fake_library.hpp"

using namespace mkrt;
using namespace mkrt::cuda;
using namespace mkrt::cuda::test;

namespace {

// The fake library, as new, which stays loaded while this lives.
class Fake {
 public:
  Fake() : handle_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    REQUIRE_MESSAGE(handle_ != nullptr, dlerror());
    library_ = static_cast<FakeLibrary*>(dlsym(handle_, "mkrt_fake_library"));
    REQUIRE_MESSAGE(library_ != nullptr, "another libcuda.so.1 comes before that of the tests");
    *library_ = {.symbols = std::move(library_->symbols)};
  }
  Fake(const Fake&) = delete;
  Fake& operator=(const Fake&) = delete;
  ~Fake() { dlclose(handle_); }

  FakeLibrary* operator->() const { return library_; }

 private:
  void* handle_;
  FakeLibrary* library_ = nullptr;
};

base::Failure refusal() {
  try {
    open_driver();
  } catch (const base::Failure& failure) {
    return failure;
  }
  FAIL("the driver was opened");
  return {MKRT_OK, ""};
}

std::string lacks(const std::string& symbol) {
  return "the CUDA driver lacks " + symbol + ", which mkrt needs; it may be too old, or a stub of a toolkit";
}

#define MKRT_SYMBOL(name, parameters, symbol, version) #symbol,
const std::vector<std::string> required = {MKRT_CUDA_REQUIRED(MKRT_SYMBOL)};
const std::vector<std::string> optional = {MKRT_CUDA_OPTIONAL(MKRT_SYMBOL)};
const std::vector<std::string> for_ranks = {MKRT_CUDA_RANKS(MKRT_SYMBOL)};
const std::vector<std::string> for_processes = {MKRT_CUDA_PROCESSES(MKRT_SYMBOL)};
#undef MKRT_SYMBOL

// What the table has for each symbol.
std::map<std::string, void*> functions_of(const Driver& driver) {
#define MKRT_FUNCTION(name, parameters, symbol, version) {#symbol, reinterpret_cast<void*>(driver.name)},
  return {MKRT_CUDA_REQUIRED(MKRT_FUNCTION) MKRT_CUDA_OPTIONAL(MKRT_FUNCTION) MKRT_CUDA_RANKS(MKRT_FUNCTION)
              MKRT_CUDA_PROCESSES(MKRT_FUNCTION)};
#undef MKRT_FUNCTION
}

// What the table has to have where one symbol is missing.
std::map<std::string, void*> functions_of(const Fake& fake, const std::string& missing) {
  std::map<std::string, void*> functions;
  for (const auto& [symbol, found] : fake->symbols) functions[symbol] = symbol == missing ? nullptr : found.address;
  return functions;
}

}  // namespace

TEST_CASE("every function is looked up once, at its version, with the default flags, and comes to its place") {
  std::shared_ptr<const Driver> driver;
  {
    const Fake fake;
    driver = open_driver();
    CHECK(functions_of(*driver) == functions_of(fake, ""));
    std::set<std::string> asked;
    for (const FakeLibrary::LookUp& look_up : fake->look_ups) {
      CAPTURE(look_up.symbol);
      CHECK(asked.insert(look_up.symbol).second);
      CHECK(look_up.version == fake->symbols.at(look_up.symbol).version);
      CHECK(look_up.flags == 0);
    }
    CHECK(asked.size() == fake->symbols.size());
  }
  CHECK(driver->missing_for_ranks() == nullptr);
  CHECK(driver->missing_for_processes() == nullptr);
  CHECK(driver->initialize(1) == 1);  // the library stays loaded as long as its table
}

TEST_CASE("a driver without a function that is required is refused, with its name") {
  const Fake fake;
  for (const std::string& symbol : required) {
    fake->missing = symbol;
    // Not found is an error, or success and no function.
    for (const Result result : {result_not_found, result_success}) {
      fake->result_of_missing = result;
      const base::Failure failure = refusal();
      CHECK(failure.status() == MKRT_ERROR_DEVICE);
      CHECK(failure.message() == lacks(symbol));
    }
  }
  fake->missing.clear();
  CHECK(functions_of(*open_driver()) == functions_of(fake, ""));
}

TEST_CASE("a driver without a function that is optional opens, and has all others") {
  const Fake fake;
  const auto text_of = [](const char* symbol) { return std::string(symbol != nullptr ? symbol : ""); };
  for (const auto* const symbols : {&optional, &for_ranks, &for_processes}) {
    for (const std::string& symbol : *symbols) {
      CAPTURE(symbol);
      fake->missing = symbol;
      for (const Result result : {result_not_found, result_success}) {
        fake->result_of_missing = result;
        const std::shared_ptr<const Driver> driver = open_driver();
        CHECK(functions_of(*driver) == functions_of(fake, symbol));
        CHECK(text_of(driver->missing_for_ranks()) == (symbols == &for_ranks ? symbol : ""));
        CHECK(text_of(driver->missing_for_processes()) == (symbols == &for_processes ? symbol : ""));
      }
    }
  }
}

TEST_CASE("a driver that is too old for a function is refused by the first that it lacks") {
  const Fake fake;
  fake->version = 11030;
  CHECK(refusal().message() == lacks("cuDeviceGetUuid"));
  fake->version = 11050;
  CHECK(refusal().message() == lacks("cuLaunchKernelEx"));
  fake->version = 11060;
  CHECK(open_driver() != nullptr);
}

TEST_CASE("a driver that cannot be initialized is refused with its reason, as far as it tells") {
  const Fake fake;
  for (const Result result : {2, 100, 101, 803, 999}) {  // no memory, no device, not that one, no match, unknown
    CAPTURE(result);
    const auto check_refused = [&](const std::string& missing, const std::string& reason) {
      fake->missing = missing;
      const base::Failure failure = refusal();
      CHECK(failure.status() == MKRT_ERROR_DEVICE);
      CHECK(failure.driver_code() == result);
      CHECK(failure.message() == "the CUDA driver cannot be used: " + reason);
    };
    const std::string number = "(" + std::to_string(result) + ")";
    fake->result_of_initialize = result;
    check_refused("", "CUDA_ERROR_OF_A_TEST " + number + ": the test wants it so");
    check_refused("cuGetErrorString", "CUDA_ERROR_OF_A_TEST " + number);
    check_refused("cuGetErrorName", "CUDA error " + number + ": the test wants it so");
  }
  fake->result_of_initialize = result_success;
  fake->missing.clear();
  CHECK(open_driver() != nullptr);  // a second try succeeds where the reason is gone
}
