// Lifetimes: any order of destruction, use after it, many objects, many threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "test_package.hpp"

namespace {

using test::Objects;
using test::Ready;
using test::TestPackage;

const TestPackage& package() {
  static const TestPackage shared;
  return shared;
}

Objects create() {
  Objects objects;
  const test::HostRanks ranks;
  mkrt_error error = MKRT_ERROR_INIT;
  const mkrt_status status = objects.create(package().runtime_desc(), ranks.desc, package().program_desc, &error);
  REQUIRE_MESSAGE(status == MKRT_OK, error.message);
  return objects;
}

// What a handle's destruction leaves must say so.
void check_destroyed(mkrt_status status, const mkrt_error& error) {
  CHECK(status == MKRT_ERROR_HANDLE);
  CHECK(std::string(error.message).find("destroyed") != std::string::npos);
}

}  // namespace

TEST_CASE("objects can be destroyed in every order, and what is left works until it goes") {
  std::array<int, 5> order{0, 1, 2, 3, 4};
  do {
    Objects objects = create();
    bool has_program = true;
    bool has_session = true;
    for (const int next : order) {
      switch (next) {
        case 0: mkrt_runtime_destroy(objects.runtime); break;
        case 1: mkrt_mesh_destroy(objects.mesh); break;
        case 2:
          mkrt_program_destroy(objects.program);
          has_program = false;
          break;
        case 3: mkrt_executable_destroy(objects.executable); break;
        default:
          mkrt_session_destroy(objects.session);
          has_session = false;
          break;
      }
      if (has_session) {
        uint64_t value = 0;
        CHECK(mkrt_execute(objects.session, nullptr, &value, nullptr) == MKRT_OK);
        CHECK(mkrt_session_wait(objects.session, value, UINT64_MAX, nullptr) == MKRT_OK);
      }
      if (has_program) {
        uint32_t index = 0;
        CHECK(mkrt_program_find_tensor(objects.program, "x", &index, nullptr) == MKRT_OK);
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE(
    "a handle used after its destruction is MKRT_ERROR_HANDLE for each type, and destroying it again does nothing") {
  const Ready kept(package());  // keeps nothing of `objects` alive: runtimes share nothing
  Objects objects = create();
  mkrt_error error = MKRT_ERROR_INIT;
  uint32_t number = 0;
  uint64_t value = 0;
  mkrt_session* session = nullptr;
  mkrt_mesh* mesh = nullptr;

  mkrt_session_destroy(objects.session);
  check_destroyed(mkrt_execute(objects.session, nullptr, &value, &error), error);
  check_destroyed(mkrt_session_query(objects.session, &value, &error), error);
  check_destroyed(mkrt_session_wait(objects.session, 0, 0, &error), error);
  check_destroyed(mkrt_session_cancel(objects.session, &error), error);
  check_destroyed(mkrt_session_reset(objects.session, &error), error);
  mkrt_session_destroy(objects.session);

  mkrt_executable_destroy(objects.executable);
  check_destroyed(mkrt_session_create(objects.executable, &session, &error), error);
  mkrt_executable_destroy(objects.executable);

  mkrt_runtime_destroy(objects.runtime);  // the mesh and the program keep it alive
  check_destroyed(mkrt_runtime_device_count(objects.runtime, &number, &error), error);
  check_destroyed(mkrt_mesh_create(objects.runtime, nullptr, &mesh, &error), error);
  mkrt_runtime_destroy(objects.runtime);

  mkrt_mesh_destroy(objects.mesh);
  check_destroyed(mkrt_mesh_rank_count(objects.mesh, &number, &error), error);
  check_destroyed(mkrt_executable_create(objects.program, objects.mesh, nullptr, &objects.executable, &error), error);
  mkrt_mesh_destroy(objects.mesh);

  CHECK(mkrt_program_find_tensor(objects.program, "x", &number, &error) == MKRT_OK);
  Objects second = create();
  mkrt_program_destroy(second.program);
  check_destroyed(mkrt_program_find_tensor(second.program, "x", &number, &error), error);
  mkrt_program_destroy(second.program);
  second.program = nullptr;
  second.destroy();
  mkrt_program_destroy(objects.program);
}

TEST_CASE("the last 256 destroyed handles of a runtime are recognized, whatever else is created meanwhile") {
  const Ready ready(package());
  std::vector<mkrt_session*> destroyed;
  for (int i = 0; i < 600; ++i) {
    mkrt_session* session = nullptr;
    REQUIRE(mkrt_session_create(ready.executable, &session, nullptr) == MKRT_OK);
    mkrt_session_destroy(session);
    destroyed.push_back(session);
  }
  uint64_t value = 0;
  for (size_t i = destroyed.size() - 256; i < destroyed.size(); ++i) {
    CHECK(mkrt_session_query(destroyed[i], &value, nullptr) == MKRT_ERROR_HANDLE);
    mkrt_session_destroy(destroyed[i]);
  }
  CHECK(mkrt_session_query(ready.session, &value, nullptr) == MKRT_OK);
}

TEST_CASE("destroying a session with work in flight stops the work") {
  const Ready ready(package());
  mkrt_session* session = nullptr;
  REQUIRE(mkrt_session_create(ready.executable, &session, nullptr) == MKRT_OK);
  const mkrt_execute_desc forever = test::execute_desc(test::entry_sum, UINT32_MAX);
  for (int i = 0; i < 3; ++i) REQUIRE(mkrt_execute(session, &forever, nullptr, nullptr) == MKRT_OK);
  mkrt_session_destroy(session);  // years of work
  uint64_t value = 0;
  CHECK(mkrt_execute(ready.session, nullptr, &value, nullptr) == MKRT_OK);
  CHECK(mkrt_session_wait(ready.session, value, UINT64_MAX, nullptr) == MKRT_OK);
}

TEST_CASE("runtimes share nothing") {
  const Ready first(package());
  {
    const Ready second(package());
    const float ones[32] = {1.0f};
    CHECK(mkrt_session_write(second.session, 0, test::tensor_x, 0, ones, sizeof(ones), nullptr) == MKRT_OK);
  }
  float seen[32];
  CHECK(mkrt_session_read(first.session, 0, test::tensor_x, 0, sizeof(seen), seen, nullptr) == MKRT_OK);
  CHECK(std::all_of(std::begin(seen), std::end(seen), [](float value) { return value == 0.0f; }));
}

TEST_CASE("threads may create, ask and destroy on one runtime, mesh, program and executable at the same time") {
  const Ready ready(package());
  std::atomic<uint32_t> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        mkrt_program* program = nullptr;
        mkrt_session* session = nullptr;
        uint32_t index = 0;
        uint64_t value = 0;
        bool fine = mkrt_program_load(ready.runtime, &package().program_desc, &program, nullptr) == MKRT_OK &&
                    mkrt_program_find_tensor(ready.program, "out", &index, nullptr) == MKRT_OK &&
                    mkrt_session_create(ready.executable, &session, nullptr) == MKRT_OK &&
                    mkrt_execute(session, nullptr, &value, nullptr) == MKRT_OK &&
                    mkrt_session_wait(session, value, UINT64_MAX, nullptr) == MKRT_OK;
        mkrt_program_destroy(program);
        mkrt_session_destroy(session);
        fine = fine && mkrt_session_query(session, &value, nullptr) == MKRT_ERROR_HANDLE;
        if (!fine) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
}
