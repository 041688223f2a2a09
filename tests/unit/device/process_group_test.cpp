// What a process makes of all-gathers that go wrong.
#include "device/process_group.hpp"

#include <doctest/doctest.h>

#include <string>

#include "base/failure.hpp"

using namespace mkrt;
using device::ProcessGroup;

namespace {

// An exchange of two processes, of which the other says the same as this one.
struct Mirror {
  uint32_t calls = 0;
  mkrt_status status = MKRT_OK;
  bool swaps = false;  // changes a byte of what this process said

  mkrt_process_extension extension() {
    mkrt_process_extension extension{};
    extension.base = {sizeof(extension), MKRT_EXTENSION_PROCESSES, nullptr};
    extension.process_count = 2;
    extension.user_data = this;
    extension.all_gather = all_gather;
    return extension;
  }
  static mkrt_status all_gather(void* user_data, const void* data, uint32_t size_bytes, int32_t, uint64_t,
                                void* out_data, int32_t*, mkrt_error*) {
    Mirror& self = *static_cast<Mirror*>(user_data);
    ++self.calls;
    auto* out = static_cast<std::byte*>(out_data);
    std::memcpy(out, data, size_bytes);
    std::memcpy(out + size_bytes, data, size_bytes);
    if (self.swaps) out[size_bytes - 1] ^= std::byte{1};
    return self.status;
  }
};

std::string failure_of(ProcessGroup& group, const char* call) {
  try {
    group.agree(call, [] {});
  } catch (const base::Failure& failure) {
    CHECK(failure.status() == MKRT_ERROR_PEER);
    return failure.message();
  }
  return "";
}

}  // namespace

TEST_CASE("after an all-gather that failed nothing is exchanged any more: the others may be one further") {
  Mirror mirror;
  ProcessGroup group(mirror.extension(), 1, nullptr);
  CHECK(failure_of(group, "a call").empty());
  mirror.status = MKRT_ERROR_PEER;
  CHECK(failure_of(group, "a call").find("failed in a call") != std::string::npos);
  mirror.status = MKRT_OK;
  const uint32_t calls = mirror.calls;
  CHECK(failure_of(group, "a later call").find("failed before a later call") != std::string::npos);
  CHECK(mirror.calls == calls);
}

TEST_CASE("an exchange that says something else for this process than it said is refused") {
  Mirror mirror;
  ProcessGroup group(mirror.extension(), 1, nullptr);
  mirror.swaps = true;
  CHECK(failure_of(group, "a call").find("process 0 is not of this version of the library, or the exchange") == 0);
}

TEST_CASE("what a call is known by is new with each all-gather") {
  Mirror mirror;
  ProcessGroup group(mirror.extension(), 1, nullptr);
  const uint32_t before = group.next_call();
  CHECK(failure_of(group, "a call").empty());
  CHECK(group.next_call() == before + 1);
}
