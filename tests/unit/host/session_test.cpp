// Sessions: what their timelines say, how many share a mesh, and how they end.
#include <doctest/doctest.h>

#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "host/session.hpp"
#include "test_schedule.hpp"

using namespace mkrt;
using namespace mkrt::host::test;

namespace {

constexpr uint64_t no_limit = UINT64_MAX;
constexpr uint64_t millisecond = 1'000'000;

// Entry 0 adds 1 to "total" on each rank; entry 1 holds until it is let go; entry 2 does nothing, tile by tile.
struct Counting {
  std::shared_ptr<const package::Program> program;
  uint32_t total = 0;
};

Counting make_counting(uint32_t ranks = 1) {
  ScheduleBuilder builder(ranks);
  const uint32_t total = builder.tensor("total", 1, MKRT_TENSOR_STATE);
  builder.entry("count");
  const uint32_t done = builder.counter("done");
  package::Record& count = builder.record("count", op_count);
  count.operands = {builder.slice(total, 1)};
  count.waits = {builder.wait(done, 0, -1)};
  count.signals = {builder.signal(done)};
  builder.entry("hold");
  builder.record("hold", op_hold);
  builder.entry("nothing");
  builder.record("nothing", op_nothing, {16, 1, 1, 1});
  return {builder.finish(), total};
}

uint32_t read_total(device::Session& session, uint32_t tensor, uint32_t rank = 0) {
  uint32_t value = 0;
  REQUIRE(session.read(rank, tensor, 0, sizeof(value), &value, nullptr) == MKRT_OK);
  return value;
}

// Keeps op_hold from returning while it lives.
class Hold {
 public:
  Hold() : before_(held().load()) { hold() = true; }
  ~Hold() { release(); }
  void release() { hold() = false; }
  void wait_until_held() const {
    while (held().load() == before_) std::this_thread::yield();
  }

 private:
  uint64_t before_;
};

}  // namespace

TEST_CASE("64 executes may be in flight, the next is refused as busy and changes nothing") {
  const Counting counting = make_counting();
  const auto mesh = make_mesh(1, 2);
  const auto executable = mesh->load(counting.program, {});
  const auto session = executable->create_session();
  for (int round = 0; round < 3; ++round) {
    Hold holding;
    uint64_t first = 0;
    uint64_t value = 0;
    REQUIRE(session->execute(request(1), &first, nullptr) == MKRT_OK);
    for (uint64_t i = 1; i < 64; ++i) {
      REQUIRE(session->execute(request(0), &value, nullptr) == MKRT_OK);
      CHECK(value == first + i);
    }
    mkrt_error error = make_error();
    CHECK(session->execute(request(0), &value, &error) == MKRT_ERROR_BUSY);
    CHECK(error.status == MKRT_ERROR_BUSY);
    CHECK(value == first + 63);
    uint64_t reached = 0;
    CHECK(session->query(&reached, nullptr) == MKRT_OK);
    CHECK(reached == first - 1);
    holding.release();
    REQUIRE(session->wait(value, no_limit, nullptr) == MKRT_OK);
    CHECK(session->query(&reached, nullptr) == MKRT_OK);
    CHECK(reached == value);
    CHECK(read_total(*session, counting.total) == 63 * (static_cast<uint32_t>(round) + 1));
  }
}

TEST_CASE("while work is in flight, reads, writes and resets are refused and waits end with their limit") {
  const Counting counting = make_counting();
  const auto mesh = make_mesh(1, 1);
  const auto executable = mesh->load(counting.program, {});
  const auto session = executable->create_session();
  Hold holding;
  uint64_t value = 0;
  uint32_t data = 0;
  REQUIRE(session->execute(request(1), &value, nullptr) == MKRT_OK);
  CHECK(session->write(0, counting.total, 0, &data, sizeof(data), nullptr) == MKRT_ERROR_BUSY);
  CHECK(session->read(0, counting.total, 0, sizeof(data), &data, nullptr) == MKRT_ERROR_BUSY);
  CHECK(session->reset(nullptr) == MKRT_ERROR_BUSY);
  mkrt_error error = make_error();
  CHECK(session->wait(value, 0, &error) == MKRT_ERROR_TIMEOUT);
  CHECK(session->wait(value, 2 * millisecond, &error) == MKRT_ERROR_TIMEOUT);
  CHECK(error.status == MKRT_ERROR_TIMEOUT);
  CHECK(session->wait(value + 1, no_limit, &error) == MKRT_ERROR_ARGUMENT);
  CHECK(session->wait(0, 0, &error) == MKRT_OK);
  holding.release();
  CHECK(session->wait(value, no_limit, nullptr) == MKRT_OK);
  CHECK(session->reset(nullptr) == MKRT_OK);
}

TEST_CASE("any number of threads may wait for one value") {
  const Counting counting = make_counting();
  const auto mesh = make_mesh(1, 1);
  const auto executable = mesh->load(counting.program, {});
  const auto session = executable->create_session();
  Hold holding;
  uint64_t value = 0;
  REQUIRE(session->execute(request(1), &value, nullptr) == MKRT_OK);
  std::vector<std::thread> threads;
  std::atomic<int> arrived{0};
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      const uint64_t limit = i % 2 == 0 ? no_limit : uint64_t{3600} * 1000 * millisecond;
      if (session->wait(value, limit, nullptr) == MKRT_OK) ++arrived;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(arrived == 0);
  holding.release();
  for (std::thread& thread : threads) thread.join();
  CHECK(arrived == 6);
}

TEST_CASE("state outlives executes and a reset makes it zero") {
  const Counting counting = make_counting(2);
  const auto mesh = make_mesh(2, 2);
  const auto executable = mesh->load(counting.program, {});
  const auto session = executable->create_session();
  const uint32_t start = 1000;
  REQUIRE(session->write(1, counting.total, 0, &start, sizeof(start), nullptr) == MKRT_OK);
  uint64_t value = 0;
  REQUIRE(session->execute(request(0, 5), &value, nullptr) == MKRT_OK);
  REQUIRE(session->wait(value, no_limit, nullptr) == MKRT_OK);
  CHECK(read_total(*session, counting.total, 0) == 5);
  CHECK(read_total(*session, counting.total, 1) == 1005);
  CHECK(*static_cast<uint32_t*>(session->tensor_address(1, counting.total)) == 1005);
  REQUIRE(session->reset(nullptr) == MKRT_OK);
  CHECK(read_total(*session, counting.total, 1) == 0);
  REQUIRE(session->execute(request(0, 3), &value, nullptr) == MKRT_OK);
  CHECK(value == 2);  // the timeline goes on
  REQUIRE(session->wait(value, no_limit, nullptr) == MKRT_OK);
  CHECK(read_total(*session, counting.total, 1) == 3);
}

TEST_CASE("sessions of several threads share a mesh, each with results of its own") {
  const Counting counting = make_counting(2);
  const auto mesh = make_mesh(2, 2);
  const auto executable = mesh->load(counting.program, {});
  const auto other_executable = mesh->load(counting.program, {});
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto session = (t % 2 == 0 ? executable : other_executable)->create_session();
      uint64_t value = 0;
      uint32_t expected = 0;
      bool good = true;
      for (uint32_t i = 0; i < 100 && good; ++i) {
        const uint32_t steps = 1 + (i + t) % 3;
        expected += steps;
        good = session->execute(request(0, steps, i % 2 == 0 ? MKRT_QUEUE_DYNAMIC : MKRT_QUEUE_STATIC), &value,
                                nullptr) == MKRT_OK;
        if (i % (t + 2) == 0) good = good && session->wait(value, no_limit, nullptr) == MKRT_OK;
      }
      good = good && session->wait(value, no_limit, nullptr) == MKRT_OK;
      for (uint32_t rank = 0; rank < 2; ++rank) {
        uint32_t total = 0;
        good = good && session->read(rank, counting.total, 0, sizeof(total), &total, nullptr) == MKRT_OK &&
               total == expected;
      }
      if (good) ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 4);
}

TEST_CASE("a session with endless work lets others have their turns and goes on after each") {
  const Counting counting = make_counting(2);
  const auto mesh = make_mesh(2, 2);
  const auto executable = mesh->load(counting.program, {});
  for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
    const auto greedy = executable->create_session();
    const auto modest = executable->create_session();
    uint64_t greedy_value = 0;
    uint64_t value = 0;
    REQUIRE(greedy->execute(request(0, UINT32_MAX, mode), &greedy_value, nullptr) == MKRT_OK);
    for (uint32_t i = 1; i <= 5; ++i) {
      REQUIRE(modest->execute(request(0, 2), &value, nullptr) == MKRT_OK);
      REQUIRE(modest->wait(value, no_limit, nullptr) == MKRT_OK);
      CHECK(read_total(*modest, counting.total, 1) == 2 * i);
    }
    uint64_t reached = 0;
    CHECK(greedy->query(&reached, nullptr) == MKRT_OK);
    CHECK(reached == 0);  // still at it
  }
}

TEST_CASE("an execute that was interrupted by turns of others does each of its steps once") {
  const Counting counting = make_counting(2);
  const auto mesh = make_mesh(2, 2);
  const auto executable = mesh->load(counting.program, {});
  const auto first = executable->create_session();
  const auto second = executable->create_session();
  constexpr uint32_t steps = 20'000;  // some milliseconds: several turns
  uint64_t first_value = 0;
  uint64_t second_value = 0;
  REQUIRE(first->execute(request(0, steps), &first_value, nullptr) == MKRT_OK);
  REQUIRE(second->execute(request(0, steps, MKRT_QUEUE_STATIC), &second_value, nullptr) == MKRT_OK);
  CHECK(first->wait(first_value, no_limit, nullptr) == MKRT_OK);
  CHECK(second->wait(second_value, no_limit, nullptr) == MKRT_OK);
  for (const uint32_t rank : {0u, 1u}) {
    CHECK(read_total(*first, counting.total, rank) == steps);
    CHECK(read_total(*second, counting.total, rank) == steps);
  }
}

TEST_CASE("destroying a session with work in flight stops the work and leaves others alone") {
  const Counting counting = make_counting(2);
  const auto mesh = make_mesh(2, 3);
  const auto executable = mesh->load(counting.program, {});
  const auto other = executable->create_session();
  for (uint32_t i = 1; i <= 20; ++i) {
    auto session = executable->create_session();
    uint64_t value = 0;
    const uint32_t mode = i % 2 == 0 ? MKRT_QUEUE_DYNAMIC : MKRT_QUEUE_STATIC;
    REQUIRE(session->execute(request(0, UINT32_MAX, mode), &value, nullptr) == MKRT_OK);
    REQUIRE(session->execute(request(2, 1000), &value, nullptr) == MKRT_OK);
    REQUIRE(other->execute(request(0), &value, nullptr) == MKRT_OK);
    session.reset();
    REQUIRE(other->wait(value, no_limit, nullptr) == MKRT_OK);
    CHECK(read_total(*other, counting.total) == i);
  }
}

TEST_CASE("meshes come and go with their workers asleep, awake or just beginning") {
  const Counting counting = make_counting();
  for (uint32_t i = 0; i < 30; ++i) {
    const auto mesh = make_mesh(1, 1 + i % 4);
    if (i % 3 == 0) continue;
    const auto executable = mesh->load(counting.program, {});
    const auto session = executable->create_session();
    uint64_t value = 0;
    REQUIRE(session->execute(request(2), &value, nullptr) == MKRT_OK);
    if (i % 3 == 1) CHECK(session->wait(value, no_limit, nullptr) == MKRT_OK);
  }
}

TEST_CASE("workers without work use no processor time") {
  const Counting counting = make_counting();
  const auto mesh = make_mesh(1, 8);
  const auto executable = mesh->load(counting.program, {});
  const auto session = executable->create_session();
  uint64_t value = 0;
  REQUIRE(session->execute(request(2), &value, nullptr) == MKRT_OK);
  REQUIRE(session->wait(value, no_limit, nullptr) == MKRT_OK);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // they look around before they sleep
  const std::clock_t before = std::clock();                    // of the process
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CHECK(seconds < 0.05);  // one worker that spins would use 0.2
}
