// A driver of before CUDA 12.0: a libcuda.so.1 of the tests that has cuGetProcAddress alone, which is not called.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include "base/failure.hpp"
#include "cuda/driver.hpp"
#include "fake_library.hpp"

using namespace mkrt;
using cuda::test::FakeLibrary;

TEST_CASE("a driver of before CUDA 12.0 is refused, whatever it has") {
  void* const handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(handle != nullptr, dlerror());
  const auto* const library = static_cast<const FakeLibrary*>(dlsym(handle, "mkrt_fake_library"));
  REQUIRE_MESSAGE(library != nullptr, "another libcuda.so.1 comes before that of the tests");
  REQUIRE(dlsym(handle, "cuGetProcAddress") != nullptr);
  try {
    cuda::open_driver();
    FAIL("the driver was opened");
  } catch (const base::Failure& failure) {
    CHECK(failure.status() == MKRT_ERROR_DEVICE);
    CHECK(failure.message() == "the CUDA driver is older than 12.0 (it has no cuGetProcAddress_v2); update it");
  }
  CHECK(library->look_ups.empty());
  dlclose(handle);
}
