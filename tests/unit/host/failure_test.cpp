// How executes fail, what the sentence says, and what is left when they have.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>

#include "host/session.hpp"
#include "test_schedule.hpp"

using namespace mkrt;
using namespace mkrt::host::test;

namespace {

constexpr uint64_t no_limit = UINT64_MAX;

constexpr uint32_t chain_length = 12;

// Entry 0 works; entries 1 and 2 wait for what never comes (verify/ would refuse them); entries 3 and 4 fault.
struct Failing {
  std::shared_ptr<const package::Program> program;
  uint32_t total = 0;
};

Failing make_failing(uint32_t ranks) {
  ScheduleBuilder builder(ranks);
  const uint32_t total = builder.tensor("total", 1, MKRT_TENSOR_STATE);
  builder.entry("work");
  const uint32_t done = builder.counter("done");
  package::Record& count = builder.record("count", op_count);
  count.operands = {builder.slice(total, 1)};
  count.waits = {builder.wait(done, 0, -1)};
  count.signals = {builder.signal(done)};

  builder.entry("stuck");
  builder.counter("unused", 3);
  const uint32_t blocks = builder.counter("blocks", 4);
  package::Record& produce = builder.record("produce", op_nothing, {4, 1, 1, 1});
  produce.signals = {builder.signal(blocks)};
  produce.signals[0].strides[0] = 1;
  package::Record& consume = builder.record("consume", op_nothing, {2, 2, 1, 1});
  consume.waits = {builder.wait(blocks, 5)};
  consume.waits[0].strides = {2, 1, 0, 0};

  builder.entry("chain");  // its second record waits for what never comes, and all that follow wait for it
  const uint32_t never = builder.counter("never");
  const uint32_t links = builder.counter("links", chain_length);
  builder.record("held", op_hold);
  builder.record("free", op_nothing);
  package::Record& root = builder.record("root", op_nothing);
  root.waits = {builder.wait(never, 1)};
  root.signals = {builder.signal(links), builder.signal(never)};  // nobody else would: it waits for itself
  for (uint32_t i = 1; i < chain_length; ++i) {
    package::Record& link = builder.record("link", op_nothing);
    link.waits = {builder.wait(links + i - 1, 1)};
    link.signals = {builder.signal(links + i)};
  }

  for (const uint32_t fault : {1u, 7u}) {
    builder.entry("fault" + std::to_string(fault));
    builder.record("fine", op_nothing, {3, 1, 1, 1});
    package::Record& record = builder.record("wrong \"label\"\n", op_fault);
    record.parameters = {fault};
  }
  return {builder.finish(), total};
}

uint32_t read_total(device::Session& session, uint32_t tensor) {
  uint32_t value = 0;
  REQUIRE(session.read(0, tensor, 0, sizeof(value), &value, nullptr) == MKRT_OK);
  return value;
}

void check_works_after_reset(device::Session& session, const Failing& failing) {
  uint64_t value = 0;
  mkrt_error error = make_error();
  CHECK(session.execute(request(0), &value, &error) == MKRT_ERROR_SESSION_FAILED);
  CHECK(error.status == MKRT_ERROR_SESSION_FAILED);
  REQUIRE(session.reset(&error) == MKRT_OK);
  REQUIRE(session.query(&value, &error) == MKRT_OK);
  CHECK(read_total(session, failing.total) == 0);
  REQUIRE(session.execute(request(0, 10), &value, &error) == MKRT_OK);
  REQUIRE(session.wait(value, no_limit, &error) == MKRT_OK);
  CHECK(read_total(session, failing.total) == 10);
}

}  // namespace

TEST_CASE("a missed deadline says who waited where, for which counter, what it saw and what it wanted") {
  const Failing failing = make_failing(1);
  const auto mesh = make_mesh(1, 1);  // one worker: it is the first consuming tile that waits
  const auto executable = mesh->load(failing.program, {});
  const auto session = executable->create_session();
  uint64_t value = 0;
  mkrt_error error = make_error();
  REQUIRE(session->execute(request(1, 1, MKRT_QUEUE_DYNAMIC, 0, 5'000'000), &value, &error) == MKRT_OK);
  REQUIRE(session->wait(value, no_limit, &error) == MKRT_ERROR_DEADLINE);
  CHECK(error.status == MKRT_ERROR_DEADLINE);
  CHECK(error.rank == 0);
  CHECK(error.worker == 0);
  CHECK(error.record == 1);
  CHECK(error.tile == 0);
  CHECK(error.step == 0);
  CHECK(error.counter == 3);
  CHECK(error.value_seen == 1);
  CHECK(error.value_wanted == 5);
  const std::string message = error.message;
  const std::string start = "rank 0, worker 0: record 1 \"consume\", tile 0, step 0: waited ";
  CHECK(message.substr(0, start.size()) == start);
  CHECK(message.substr(message.find(" us ")) == " us for counter \"blocks\"[0] to reach 5, saw 1");
  uint64_t reached = 0;
  CHECK(session->query(&reached, &error) == MKRT_ERROR_DEADLINE);
  CHECK(reached == value);
  CHECK(error.message == message);
  check_works_after_reset(*session, failing);
}

TEST_CASE(
    "of tiles that wait for each other, the earliest in the queue is reported, whichever misses its deadline first") {
  const Failing failing = make_failing(1);
  for (const uint32_t workers : {2u, 3u, 8u}) {
    const auto mesh = make_mesh(1, workers);
    const auto executable = mesh->load(failing.program, {});
    const auto session = executable->create_session();
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      for (int round = 0; round < 30; ++round) {
        // The held worker has the root as its next tile in static mode: a later tile's deadline passes first.
        hold() = mode == MKRT_QUEUE_STATIC && workers == 2 && round < 3;
        uint64_t value = 0;
        mkrt_error error = make_error();
        REQUIRE(session->execute(request(2, 1, mode, 0, 100'000), &value, &error) == MKRT_OK);
        if (hold()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        hold() = false;
        REQUIRE(session->wait(value, no_limit, &error) == MKRT_ERROR_DEADLINE);
        CHECK(error.record == 2);
        CHECK(error.counter == 0);
        CHECK(error.value_seen == 0);
        CHECK(error.value_wanted == 1);
        CHECK(std::string(error.message).find("record 2 \"root\", tile 0, step 0: waited ") != std::string::npos);
        REQUIRE(session->reset(nullptr) == MKRT_OK);
      }
    }
  }
}

TEST_CASE("the first failure stops all ranks and workers, in both modes, and drops what follows") {
  const Failing failing = make_failing(3);
  const auto mesh = make_mesh(3, 3);
  const auto executable = mesh->load(failing.program, {});
  const auto session = executable->create_session();
  for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
    uint64_t value = 0;
    mkrt_error error = make_error();
    REQUIRE(session->execute(request(0), &value, nullptr) == MKRT_OK);
    REQUIRE(session->execute(request(1, 3, mode, 0, 5'000'000), &value, nullptr) == MKRT_OK);
    // Those that were submitted before the failure are dropped, those after it refused.
    mkrt_status status = MKRT_OK;
    for (int i = 0; i < 10 && status == MKRT_OK; ++i) status = session->execute(request(0), &value, nullptr);
    CHECK((status == MKRT_OK || status == MKRT_ERROR_SESSION_FAILED));
    REQUIRE(session->wait(value, no_limit, &error) == MKRT_ERROR_DEADLINE);
    CHECK(error.rank == 0);
    CHECK(error.record == 1);
    CHECK(error.tile == 0);
    CHECK(error.step == 0);
    CHECK(read_total(*session, failing.total) == 1);
    check_works_after_reset(*session, failing);
    REQUIRE(session->reset(nullptr) == MKRT_OK);
  }
}

TEST_CASE("a fault is reported with the sentence of the instruction set and its place") {
  const Failing failing = make_failing(1);
  const auto mesh = make_mesh(1, 2);
  const auto executable = mesh->load(failing.program, {});
  const auto session = executable->create_session();
  uint64_t value = 0;
  mkrt_error error = make_error();
  REQUIRE(session->execute(request(3, 4), &value, nullptr) == MKRT_OK);
  REQUIRE(session->wait(value, no_limit, &error) == MKRT_ERROR_FAULT);
  CHECK(error.status == MKRT_ERROR_FAULT);
  CHECK(error.record == 1);
  CHECK(error.tile == 0);
  CHECK(error.counter == -1);
  const std::string message = error.message;
  CHECK(message.find("record 1 \"wrong \"label\"?\", tile 0, step ") != std::string::npos);
  CHECK(message.find("\"fault\": fault 1, the token is outside the vocabulary") != std::string::npos);
  check_works_after_reset(*session, failing);

  REQUIRE(session->execute(request(4), &value, nullptr) == MKRT_OK);
  REQUIRE(session->wait(value, no_limit, &error) == MKRT_ERROR_FAULT);
  CHECK(std::string(error.message).find("fault 7, which its instruction set does not list") != std::string::npos);
}

TEST_CASE("cancel from another thread ends a running execute, and what waits behind it") {
  const Failing failing = make_failing(2);
  const auto mesh = make_mesh(2, 2);
  const auto executable = mesh->load(failing.program, {});
  const auto session = executable->create_session();
  // Entry 1 waits for an hour, entry 0 works for hours.
  for (const uint32_t entry : {1u, 0u}) {
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      uint64_t value = 0;
      constexpr uint64_t hour = uint64_t{3600} * 1'000'000'000;
      REQUIRE(session->execute(request(entry, UINT32_MAX, mode, 0, hour), &value, nullptr) == MKRT_OK);
      REQUIRE(session->execute(request(0), &value, nullptr) == MKRT_OK);
      std::thread canceller([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        session->cancel();
      });
      mkrt_error error = make_error();
      CHECK(session->wait(value, no_limit, &error) == MKRT_ERROR_CANCELLED);
      CHECK(error.status == MKRT_ERROR_CANCELLED);
      CHECK(error.record == -1);
      canceller.join();
      check_works_after_reset(*session, failing);
    }
  }
  session->cancel();  // nothing in flight: nothing happens
  uint64_t value = 0;
  CHECK(session->query(&value, nullptr) == MKRT_OK);
}

TEST_CASE("cancelling a session that waits for its turn does not disturb the one that runs") {
  const Failing failing = make_failing(1);
  const auto mesh = make_mesh(1, 2);
  const auto executable = mesh->load(failing.program, {});
  const auto running = executable->create_session();
  const auto waiting = executable->create_session();
  const auto behind = executable->create_session();
  uint64_t running_value = 0;
  uint64_t value = 0;
  // One step, so that its turn lasts until its deadline.
  REQUIRE(running->execute(request(1, 1, MKRT_QUEUE_DYNAMIC, 0, 200'000'000), &running_value, nullptr) == MKRT_OK);
  REQUIRE(waiting->execute(request(0), &value, nullptr) == MKRT_OK);
  REQUIRE(behind->execute(request(0), &value, nullptr) == MKRT_OK);
  waiting->cancel();
  mkrt_error error = make_error();
  CHECK(waiting->wait(1, 0, &error) == MKRT_ERROR_CANCELLED);
  CHECK(running->wait(running_value, no_limit, &error) == MKRT_ERROR_DEADLINE);
  CHECK(behind->wait(value, no_limit, &error) == MKRT_OK);
  CHECK(read_total(*behind, failing.total) == 1);
  check_works_after_reset(*waiting, failing);
  check_works_after_reset(*running, failing);
}

TEST_CASE("a session that fails again and again does not disturb others") {
  const Failing failing = make_failing(2);
  const auto mesh = make_mesh(2, 2);
  const auto executable = mesh->load(failing.program, {});
  const auto bad = executable->create_session();
  const auto good = executable->create_session();
  std::atomic<bool> over{false};
  std::thread thread([&] {
    for (uint32_t i = 0; !over; ++i) {
      uint64_t value = 0;
      bad->execute(request(3 + i % 2, 2), &value, nullptr);
      bad->wait(value, no_limit, nullptr);
      bad->reset(nullptr);
    }
  });
  uint64_t value = 0;
  for (uint32_t i = 1; i <= 200; ++i) {
    REQUIRE(good->execute(request(0, 2), &value, nullptr) == MKRT_OK);
    REQUIRE(good->wait(value, no_limit, nullptr) == MKRT_OK);
    CHECK(read_total(*good, failing.total) == 2 * i);
  }
  over = true;
  thread.join();
}
