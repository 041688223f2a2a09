// The pieces: doors, step gates, instruction sets, budgets, descriptions.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "base/failure.hpp"
#include "host/door.hpp"
#include "host/host.hpp"
#include "host/isa.hpp"
#include "host/step_gate.hpp"
#include "memory/layout.hpp"
#include "test_schedule.hpp"

using namespace mkrt;
using namespace mkrt::host::test;

namespace {

// What `action` throws.
template <class Action>
base::Failure failure_of(const Action& action) {
  try {
    action();
  } catch (const base::Failure& failure) {
    return failure;
  }
  return {MKRT_OK, "nothing was thrown"};
}

std::shared_ptr<const package::Program> make_nothing(uint32_t ranks = 1) {
  ScheduleBuilder builder(ranks);
  builder.tensor("state", 1000, MKRT_TENSOR_STATE);
  builder.entry("nothing");
  builder.record("nothing", op_nothing);
  return builder.finish();
}

}  // namespace

TEST_CASE("a door lets each worker in once a turn, and the last to leave closes it") {
  host::Door door;
  uint32_t first = 0;
  uint32_t second = 0;
  uint32_t third = 0;
  CHECK_FALSE(door.enter(0, first));
  door.open(2, false);
  CHECK(door.enter(0, first));
  CHECK_FALSE(door.enter(0, first));  // once a turn
  CHECK_FALSE(door.enter(2, third));  // beyond the limit
  CHECK(door.enter(1, second));
  CHECK_FALSE(door.leave());
  CHECK(door.leave());
  CHECK_FALSE(door.enter(2, third));
  door.open(3, false);
  CHECK(door.enter(2, third));
  CHECK(door.leave());
  CHECK_FALSE(door.enter(0, first));  // late: it is over
}

TEST_CASE("a door that expects all workers stays open until each has been there") {
  host::Door door;
  uint32_t first = 0;
  uint32_t second = 0;
  door.open(2, true);
  CHECK(door.enter(1, second));
  CHECK_FALSE(door.leave());
  CHECK_FALSE(door.enter(1, second));
  CHECK(door.enter(0, first));
  CHECK(door.leave());
}

TEST_CASE("a step gate admits at least one step, and closes for all at the same step") {
  host::StepGate gate;
  gate.reset();
  const auto yes = [] { return true; };
  const auto no = [] { return false; };
  CHECK(gate.admit(0, yes));
  CHECK(gate.admit(2, no));  // with the step before it
  CHECK(gate.admit(1, yes));
  CHECK(gate.admitted() == 3);
  CHECK_FALSE(gate.admit(3, yes));
  CHECK_FALSE(gate.admit(3, no));
  CHECK_FALSE(gate.admit(4, no));
  CHECK(gate.admit(2, yes));
  CHECK(gate.admitted() == 3);
}

TEST_CASE("an instruction set is found by name and fingerprint, and a mismatch says both fingerprints") {
  package::IsaDefinition definition = test_isa_definition();
  const mkrt_host_isa* isas[] = {&test_isa()};
  CHECK(&host::find_isa(isas, definition) == &test_isa());
  definition.fingerprint = 0xabc;
  base::Failure failure = failure_of([&] { host::find_isa(isas, definition); });
  CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(failure.message().find("0x0000000000000abc") != std::string::npos);
  CHECK(failure.message().find("0x0000000000007e57") != std::string::npos);
  definition.name = "other";
  failure = failure_of([&] { host::find_isa(isas, definition); });
  CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(failure.message().find("\"other\"") != std::string::npos);
  definition = test_isa_definition();
  definition.opcodes.pop_back();
  CHECK(failure_of([&] { host::find_isa(isas, definition); }).status() == MKRT_ERROR_UNSUPPORTED);
}

TEST_CASE("a program of mkrt.llm that has no host code is refused, by builds without that code with their reason") {
  package::IsaDefinition definition = test_isa_definition();
  definition.name = "mkrt.llm";
  definition.fingerprint = 0xabc;
  const base::Failure failure = failure_of([&] { host::find_isa(host::builtin_isas(), definition); });
  CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
  const char* reason =
      host::builtin_isas().empty() ? "this build of mkrt has no host code of mkrt.llm" : "has fingerprint 0x";
  CHECK(failure.message().find(reason) != std::string::npos);
}

TEST_CASE("a mesh refuses programs for other rank counts and rank descriptions beyond its limits") {
  const auto mesh = make_mesh(2, 1);
  CHECK(failure_of([&] { mesh->load(make_nothing(1), {}); }).status() == MKRT_ERROR_ARGUMENT);
  CHECK(failure_of([&] { make_mesh(1, host::Door::most_workers + 1); }).status() == MKRT_ERROR_ARGUMENT);
  CHECK(failure_of([&] { make_mesh(0, 1); }).status() == MKRT_ERROR_ARGUMENT);
  CHECK(failure_of([&] { make_mesh(MKRT_MAX_RANKS + 1, 1); }).status() == MKRT_ERROR_ARGUMENT);
}

TEST_CASE("a memory budget limits the sessions that live at a time") {
  const auto mesh = make_mesh(1, 1);
  const auto program = make_nothing();
  const uint64_t session_bytes = memory::plan_layout(*program).session_bytes;
  const auto executable = mesh->load(program, {.memory_budget = 2 * session_bytes});
  auto first = executable->create_session();
  const auto second = executable->create_session();
  CHECK(failure_of([&] { executable->create_session(); }).status() == MKRT_ERROR_OUT_OF_MEMORY);
  first.reset();
  CHECK_NOTHROW(executable->create_session());
}

TEST_CASE("a host rank describes the machine, with the workers that it has") {
  mkrt_device_info info{};
  info.struct_size = sizeof(info);
  make_mesh(1, 3)->describe(0, &info);
  CHECK(info.struct_size == sizeof(info));
  CHECK(info.kind == MKRT_DEVICE_HOST);
  CHECK(info.worker_count == 3);
  CHECK(info.memory_bytes > 0);
  CHECK(info.memory_free > 0);
  CHECK(info.memory_free <= info.memory_bytes);
  CHECK(std::string(info.name) != "");
  CHECK(std::string(info.target) != "");
  host::describe_host(0, &info);
  CHECK(info.worker_count == std::max(1u, std::thread::hardware_concurrency()));
}

TEST_CASE("a mesh that was asked for no number of workers divides the processors among its ranks") {
  const auto mesh = make_mesh(2, 0);
  mkrt_device_info info{};
  info.struct_size = sizeof(info);
  mesh->describe(1, &info);
  CHECK(info.worker_count == std::max(1u, std::thread::hardware_concurrency() / 2));
}
