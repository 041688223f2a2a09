// An editor loads a plug-in, plays, and unloads it, many times: nothing of the library may stay.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <malloc.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "mkrt/mkrt.h"

namespace {

template <class Function>
Function* find(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  REQUIRE(symbol != nullptr);
  return reinterpret_cast<Function*>(symbol);
}

size_t thread_count() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

// Joining a thread returns a little before the system takes it off its list.
size_t thread_count_at_rest(size_t expected) {
  for (int look = 0; look < 1000 && thread_count() != expected; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return thread_count();
}

}  // namespace

TEST_CASE("the library can be unloaded after use and loaded again, and leaves no thread behind") {
  const size_t threads_before = thread_count();
  for (int play = 0; play < 3; ++play) {
    void* const library = dlopen(MKRT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library != nullptr, dlerror());
    mkrt_runtime* runtime = nullptr;
    mkrt_mesh* mesh = nullptr;
    CHECK(find<decltype(mkrt_version)>(library, "mkrt_version")() == MKRT_VERSION);
    REQUIRE(find<decltype(mkrt_runtime_create)>(library, "mkrt_runtime_create")(nullptr, &runtime, nullptr) == MKRT_OK);
    mkrt_rank_desc rank{};
    rank.struct_size = sizeof(rank);
    rank.kind = MKRT_DEVICE_HOST;
    rank.worker_count = 2;
    mkrt_mesh_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.rank_count = 1;
    desc.ranks = &rank;
    REQUIRE(find<decltype(mkrt_mesh_create)>(library, "mkrt_mesh_create")(runtime, &desc, &mesh, nullptr) == MKRT_OK);
    CHECK(thread_count() > threads_before);
    find<decltype(mkrt_mesh_destroy)>(library, "mkrt_mesh_destroy")(mesh);
    find<decltype(mkrt_runtime_destroy)>(library, "mkrt_runtime_destroy")(runtime);
    CHECK(thread_count_at_rest(threads_before) == threads_before);
    REQUIRE(dlclose(library) == 0);
    CHECK(dlopen(MKRT_LIBRARY, RTLD_NOW | RTLD_NOLOAD) == nullptr);
  }
}

TEST_CASE("each time that the library is loaded and unloaded, it gives back all of the heap that it took") {
  // The loader keeps tables of its own, which grow by a few kilobytes in the first rounds.
  const auto load_and_unload = [] {
    void* const library = dlopen(MKRT_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library != nullptr, dlerror());
    mkrt_runtime* runtime = nullptr;
    REQUIRE(find<decltype(mkrt_runtime_create)>(library, "mkrt_runtime_create")(nullptr, &runtime, nullptr) == MKRT_OK);
    find<decltype(mkrt_runtime_destroy)>(library, "mkrt_runtime_destroy")(runtime);
    REQUIRE(dlclose(library) == 0);
  };
  for (int round = 0; round < 20; ++round) load_and_unload();
  const size_t before = mallinfo2().uordblks;
  for (int round = 0; round < 20; ++round) load_and_unload();
  CHECK(mallinfo2().uordblks <= before + 2048);
}
