// Memory: the host's hook and the C++ heap, failing at every allocation in turn, and neither used by an execute.
//
// This program replaces malloc and its kin, which the library's own C++ heap stands on.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "test_package.hpp"

// Sanitizers bring an allocator of their own; the hook is checked with them all the same.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MKRT_TEST_OWN_MALLOC 0
#else
#define MKRT_TEST_OWN_MALLOC 1
#endif

namespace {

std::atomic<int64_t> heap_calls{0};
std::atomic<int64_t> heap_live{0};
// Allocations from the first to the last of these numbers fail, counted from 1.
std::atomic<int64_t> heap_first_failing{0};
std::atomic<int64_t> heap_last_failing{0};

#if MKRT_TEST_OWN_MALLOC
bool heap_call_fails() {
  const int64_t call = ++heap_calls;
  return call >= heap_first_failing && call <= heap_last_failing;
}

void* count(void* memory) {
  if (memory != nullptr) ++heap_live;
  return memory;
}
#endif

}  // namespace

#if MKRT_TEST_OWN_MALLOC
// glibc's own functions under their other names.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* memory);

void* malloc(size_t size) { return heap_call_fails() ? nullptr : count(__libc_malloc(size)); }
void* calloc(size_t number, size_t size) { return heap_call_fails() ? nullptr : count(__libc_calloc(number, size)); }
void* realloc(void* memory, size_t size) {
  if (heap_call_fails()) return nullptr;
  void* const moved = __libc_realloc(memory, size);
  if (memory == nullptr) count(moved);
  return moved;
}
void* aligned_alloc(size_t alignment, size_t size) {
  return heap_call_fails() ? nullptr : count(__libc_memalign(alignment, size));
}
void* memalign(size_t alignment, size_t size) {
  return heap_call_fails() ? nullptr : count(__libc_memalign(alignment, size));
}
int posix_memalign(void** out_memory, size_t alignment, size_t size) {
  if (heap_call_fails()) return ENOMEM;
  *out_memory = count(__libc_memalign(alignment, size));
  return *out_memory == nullptr ? ENOMEM : 0;
}
void free(void* memory) {
  if (memory != nullptr) --heap_live;
  __libc_free(memory);
}
}
#endif

namespace {

using test::Objects;
using test::TestPackage;

const TestPackage& package() {
  static const TestPackage shared;
  return shared;
}

// A host's allocator that checks what it is given back and can fail.
class HostMemory {
 public:
  int64_t calls = 0;
  int64_t failing = 0;  // the allocation, counted from 1, that fails
  uint32_t mistakes = 0;
  std::vector<std::pair<uint32_t, std::string>> messages;

  mkrt_runtime_desc desc() {
    mkrt_runtime_desc desc = package().runtime_desc();
    desc.user_data = this;
    desc.allocate = [](void* self, size_t size, size_t alignment) {
      return static_cast<HostMemory*>(self)->allocate(size, alignment);
    };
    desc.release = [](void* self, void* memory, size_t size, size_t alignment) {
      static_cast<HostMemory*>(self)->release(memory, size, alignment);
    };
    desc.log = [](void* self, uint32_t level, const char* message) {
      static_cast<HostMemory*>(self)->messages.emplace_back(level, message);
    };
    return desc;
  }
  size_t live() const { return live_.size(); }

 private:
  struct Size {
    size_t size, alignment;
  };

  void* allocate(size_t size, size_t alignment) {
    const std::lock_guard lock(mutex_);
    if (++calls == failing) return nullptr;
    const bool power_of_two = alignment != 0 && (alignment & (alignment - 1)) == 0;
    if (size == 0 || !power_of_two) ++mistakes;
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, size) != 0) return nullptr;
    std::memset(memory, 0xa5, size);  // what a host's memory holds is anything but zeros
    live_[memory] = {size, alignment};
    return memory;
  }
  void release(void* memory, size_t size, size_t alignment) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(memory);
    if (found == live_.end() || found->second.size != size || found->second.alignment != alignment) {
      ++mistakes;
      return;
    }
    live_.erase(found);
    std::free(memory);
  }

  std::mutex mutex_;
  std::map<void*, Size> live_;
};

// Creates everything, executes once, and destroys everything. The first status that is not MKRT_OK.
mkrt_status run_all(const mkrt_runtime_desc& runtime_desc, mkrt_error* out_error) {
  static const test::HostRanks ranks;  // what the test itself allocates must not fail in its place
  Objects objects;
  mkrt_status status = objects.create(runtime_desc, ranks.desc, package().program_desc, out_error);
  uint64_t value = 0;
  if (status == MKRT_OK) status = mkrt_execute(objects.session, nullptr, &value, out_error);
  if (status == MKRT_OK) status = mkrt_session_wait(objects.session, value, UINT64_MAX, out_error);
  objects.destroy();
  return status;
}

}  // namespace

TEST_CASE("everything that is taken from the host's hook goes back to it, with its size and alignment") {
  HostMemory memory;
  mkrt_error error = MKRT_ERROR_INIT;
  const mkrt_status status = run_all(memory.desc(), &error);
  REQUIRE_MESSAGE(status == MKRT_OK, error.message);
  CHECK(memory.calls > 10);
  CHECK(memory.live() == 0);
  CHECK(memory.mistakes == 0);
}

TEST_CASE("when the hook's n-th allocation fails, for every n, the status is OUT_OF_MEMORY and nothing leaks") {
  HostMemory whole;
  REQUIRE(run_all(whole.desc(), nullptr) == MKRT_OK);
  for (int64_t n = 1; n <= whole.calls; ++n) {
    CAPTURE(n);
    HostMemory memory;
    memory.failing = n;
    mkrt_error error = MKRT_ERROR_INIT;
    CHECK(run_all(memory.desc(), &error) == MKRT_ERROR_OUT_OF_MEMORY);
    CHECK(error.status == MKRT_ERROR_OUT_OF_MEMORY);
    CHECK(memory.live() == 0);
    CHECK(memory.mistakes == 0);
    // The same memory works for the next attempt.
    memory.failing = 0;
    CHECK(run_all(memory.desc(), nullptr) == MKRT_OK);
    CHECK(memory.live() == 0);
  }
}

TEST_CASE("a hook that fails in the middle leaves the objects before it usable") {
  HostMemory memory;
  const test::HostRanks ranks;
  Objects objects;
  REQUIRE(objects.create(memory.desc(), ranks.desc, package().program_desc, nullptr) == MKRT_OK);
  mkrt_session* session = nullptr;
  for (int64_t n = 1;; ++n) {
    memory.failing = memory.calls + n;
    const size_t live = memory.live();
    const mkrt_status status = mkrt_session_create(objects.executable, &session, nullptr);
    memory.failing = 0;
    if (status == MKRT_OK) break;
    REQUIRE(status == MKRT_ERROR_OUT_OF_MEMORY);
    CHECK(memory.live() == live);
    CHECK(session == nullptr);
    uint64_t value = 0;
    CHECK(mkrt_execute(objects.session, nullptr, &value, nullptr) == MKRT_OK);
    CHECK(mkrt_session_wait(objects.session, value, UINT64_MAX, nullptr) == MKRT_OK);
  }
  mkrt_session_destroy(session);
  objects.destroy();
  CHECK(memory.live() == 0);
  CHECK(memory.mistakes == 0);
}

TEST_CASE("the log hook gets what its level lets through") {
  HostMemory memory;
  mkrt_runtime_desc desc = memory.desc();
  REQUIRE(run_all(desc, nullptr) == MKRT_OK);
  CHECK(memory.messages.empty());  // nothing to warn of
  desc.log_level = MKRT_LOG_DEBUG;
  REQUIRE(run_all(desc, nullptr) == MKRT_OK);
  CHECK(!memory.messages.empty());
  bool names_package = false;
  for (const auto& [level, message] : memory.messages) {
    CHECK(level >= MKRT_LOG_ERROR);
    CHECK(level <= MKRT_LOG_DEBUG);
    if (message.find(package().folder.path()) != std::string::npos) names_package = true;
  }
  CHECK(names_package);
}

TEST_CASE("a default device that turns out to be the host is said to be one, not taken in silence") {
  HostMemory memory;
  mkrt_runtime_desc desc = memory.desc();
  mkrt_runtime* runtime = nullptr;
  mkrt_mesh* mesh = nullptr;
  REQUIRE(mkrt_runtime_create(&desc, &runtime, nullptr) == MKRT_OK);
  uint32_t devices = 0;
  REQUIRE(mkrt_runtime_device_count(runtime, &devices, nullptr) == MKRT_OK);
  REQUIRE(mkrt_mesh_create(runtime, nullptr, &mesh, nullptr) == MKRT_OK);
  if (devices == 1) {
    REQUIRE(memory.messages.size() == 1);
    CHECK(memory.messages[0].first == MKRT_LOG_WARNING);
  }
  mkrt_mesh_destroy(mesh);
  mkrt_runtime_destroy(runtime);
}

TEST_CASE("executing, querying, waiting and cancelling allocate nothing, whether they succeed or fail") {
  HostMemory memory;
  const test::HostRanks ranks;
  Objects objects;
  REQUIRE(objects.create(memory.desc(), ranks.desc, package().program_desc, nullptr) == MKRT_OK);
  mkrt_execute_desc desc = test::execute_desc(test::entry_scale, 3);
  mkrt_execute_desc wrong = desc;
  wrong.entry = 1000;
  mkrt_error error = MKRT_ERROR_INIT;
  uint64_t value = 0;
  uint64_t reached = 0;
  float data[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  std::array<mkrt_status, 14> statuses{};
  const int64_t hook_before = memory.calls;
  const int64_t heap_before = heap_calls;
  for (int i = 0; i < 100; ++i) {
    desc.queue_mode = i % 2 == 0 ? MKRT_QUEUE_DYNAMIC : MKRT_QUEUE_STATIC;
    statuses[0] = mkrt_session_write(objects.session, 0, test::tensor_x, 0, data, sizeof(data), &error);
    statuses[1] = mkrt_execute(objects.session, &desc, &value, &error);
    statuses[2] = mkrt_session_query(objects.session, &reached, &error);
    statuses[3] = mkrt_session_wait(objects.session, value, UINT64_MAX, &error);
    statuses[4] = mkrt_session_read(objects.session, 0, test::tensor_out, 0, sizeof(data), data, &error);
    statuses[5] = mkrt_execute(objects.session, &wrong, &value, &error);
    statuses[6] = mkrt_session_wait(objects.session, UINT64_MAX, 0, &error);
    statuses[7] = mkrt_session_cancel(objects.session, &error);
    statuses[8] = mkrt_execute(nullptr, nullptr, &value, &error);
    const int32_t negative = -1;
    desc.entry = test::entry_check;
    statuses[9] = mkrt_session_write(objects.session, 0, test::tensor_value, 0, &negative, sizeof(negative), &error);
    statuses[10] = mkrt_execute(objects.session, &desc, &value, &error);
    statuses[11] = mkrt_session_wait(objects.session, value, UINT64_MAX, &error);
    statuses[12] = mkrt_execute(objects.session, &desc, &value, &error);
    statuses[13] = mkrt_session_reset(objects.session, &error);
    desc.entry = test::entry_scale;
  }
  CHECK(memory.calls == hook_before);
  CHECK(heap_calls == heap_before);
  CHECK(statuses == std::array<mkrt_status, 14>{MKRT_OK, MKRT_OK, MKRT_OK, MKRT_OK, MKRT_OK, MKRT_ERROR_ARGUMENT,
                                                MKRT_ERROR_ARGUMENT, MKRT_OK, MKRT_ERROR_HANDLE, MKRT_OK, MKRT_OK,
                                                MKRT_ERROR_FAULT, MKRT_ERROR_SESSION_FAILED, MKRT_OK});
  objects.destroy();
}

#if MKRT_TEST_OWN_MALLOC
TEST_CASE("when the C++ heap fails once, or for good, at the n-th allocation, for every n, nothing leaks or dies") {
  const mkrt_runtime_desc desc = package().runtime_desc();
  REQUIRE(run_all(desc, nullptr) == MKRT_OK);  // what a process allocates once is allocated now
  const int64_t first = heap_calls;
  REQUIRE(run_all(desc, nullptr) == MKRT_OK);
  const int64_t total = heap_calls - first;
  REQUIRE(total > 50);
  mkrt_error error = MKRT_ERROR_INIT;
  for (const bool for_good : {false, true}) {
    for (int64_t n = 1; n <= total; ++n) {
      const int64_t live = heap_live;
      heap_first_failing = heap_calls + n;
      heap_last_failing = for_good ? INT64_MAX : heap_first_failing.load();
      const mkrt_status status = run_all(desc, &error);
      heap_last_failing = 0;
      const int64_t left = heap_live - live;
      CAPTURE(for_good);
      CAPTURE(n);
      CAPTURE(error.message);
      // Some allocations are only wishes: without them it goes on.
      CHECK_MESSAGE((status == MKRT_ERROR_OUT_OF_MEMORY || status == MKRT_OK), mkrt_status_name(status));
      CHECK(left == 0);
    }
  }
  CHECK(run_all(desc, nullptr) == MKRT_OK);
}
#endif
