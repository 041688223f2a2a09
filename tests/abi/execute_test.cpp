// Executes, the timeline, and what ends an execute early.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "test_package.hpp"

namespace {

using test::ClosedGate;
using test::Ready;
using test::TestPackage;
using Matrix = std::array<float, test::rows * test::columns>;

const TestPackage& package() {
  static const TestPackage shared;
  return shared;
}

Matrix random_matrix() {
  static std::mt19937 generator(std::random_device{}());
  std::uniform_real_distribution<float> distribution(-2.0f, 2.0f);
  Matrix matrix;
  for (float& value : matrix) value = distribution(generator);
  return matrix;
}

uint64_t execute(mkrt_session* session, const mkrt_execute_desc& desc) {
  uint64_t value = 0;
  mkrt_error error = MKRT_ERROR_INIT;
  const mkrt_status status = mkrt_execute(session, &desc, &value, &error);
  REQUIRE_MESSAGE(status == MKRT_OK, error.message);
  return value;
}

mkrt_status wait(mkrt_session* session, uint64_t value, mkrt_error* out_error = nullptr) {
  return mkrt_session_wait(session, value, UINT64_MAX, out_error);
}

void write_value(mkrt_session* session, int32_t value) {
  REQUIRE(mkrt_session_write(session, 0, test::tensor_value, 0, &value, sizeof(value), nullptr) == MKRT_OK);
}

int32_t read_done(mkrt_session* session) {
  int32_t done = -1;
  REQUIRE(mkrt_session_read(session, 0, test::tensor_done, 0, sizeof(done), &done, nullptr) == MKRT_OK);
  return done;
}

// A session that has failed with MKRT_ERROR_FAULT.
uint64_t fail(mkrt_session* session) {
  write_value(session, -5);
  const uint64_t value = execute(session, test::execute_desc(test::entry_check));
  CHECK(wait(session, value) == MKRT_ERROR_FAULT);
  return value;
}

}  // namespace

TEST_CASE("results are those of the instructions, for both queue modes, worker counts and limits") {
  for (const uint32_t workers : {1u, 2u, 3u}) {
    const Ready ready(package(), 1, workers);
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      for (const uint32_t limit : {0u, 1u, 100u}) {
        const Matrix x = random_matrix();
        REQUIRE(mkrt_session_write(ready.session, 0, test::tensor_x, 0, x.data(), sizeof(x), nullptr) == MKRT_OK);
        mkrt_execute_desc desc = test::execute_desc(test::entry_scale, 3);
        desc.queue_mode = mode;
        desc.worker_limit = limit;
        CHECK(wait(ready.session, execute(ready.session, desc)) == MKRT_OK);
        Matrix out;
        out.fill(-99.0f);
        REQUIRE(mkrt_session_read(ready.session, 0, test::tensor_out, 0, sizeof(out), out.data(), nullptr) == MKRT_OK);
        for (uint32_t i = 0; i < x.size(); ++i) CHECK(out[i] == x[i] * test::weight_of(i % test::columns));
      }
    }
  }
}

TEST_CASE("state is kept between executes, counts every step, and is zero after a reset") {
  const Ready ready(package());
  Matrix x;
  x.fill(1.0f);
  Matrix sum;
  REQUIRE(mkrt_session_write(ready.session, 0, test::tensor_x, 0, x.data(), sizeof(x), nullptr) == MKRT_OK);
  execute(ready.session, test::execute_desc(test::entry_sum, 5));
  CHECK(wait(ready.session, execute(ready.session, test::execute_desc(test::entry_sum, 2))) == MKRT_OK);
  REQUIRE(mkrt_session_read(ready.session, 0, test::tensor_sum, 0, sizeof(sum), sum.data(), nullptr) == MKRT_OK);
  CHECK(std::all_of(sum.begin(), sum.end(), [](float value) { return value == 7.0f; }));
  REQUIRE(mkrt_session_reset(ready.session, nullptr) == MKRT_OK);
  for (const uint32_t tensor : {test::tensor_sum, test::tensor_x, test::tensor_out}) {
    REQUIRE(mkrt_session_read(ready.session, 0, tensor, 0, sizeof(sum), sum.data(), nullptr) == MKRT_OK);
    CHECK(std::all_of(sum.begin(), sum.end(), [](float value) { return value == 0.0f; }));
  }
}

TEST_CASE("the address of a tensor is its memory") {
  const Ready ready(package());
  void* address = nullptr;
  REQUIRE(mkrt_session_tensor_address(ready.session, 0, test::tensor_x, &address, nullptr) == MKRT_OK);
  const Matrix x = random_matrix();
  std::memcpy(address, x.data(), sizeof(x));
  Matrix seen;
  REQUIRE(mkrt_session_read(ready.session, 0, test::tensor_x, 0, sizeof(seen), seen.data(), nullptr) == MKRT_OK);
  CHECK(seen == x);
}

TEST_CASE("every rank has tensors of its own") {
  const TestPackage two(2);
  const Ready ready(two, 2, 1);
  const Matrix x[2] = {random_matrix(), random_matrix()};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    REQUIRE(mkrt_session_write(ready.session, rank, test::tensor_x, 0, x[rank].data(), sizeof(x[rank]), nullptr) ==
            MKRT_OK);
  }
  CHECK(wait(ready.session, execute(ready.session, test::execute_desc(test::entry_scale))) == MKRT_OK);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Matrix out;
    REQUIRE(mkrt_session_read(ready.session, rank, test::tensor_out, 0, sizeof(out), out.data(), nullptr) == MKRT_OK);
    for (uint32_t i = 0; i < out.size(); ++i) CHECK(out[i] == x[rank][i] * test::weight_of(i % test::columns));
  }
}

TEST_CASE("timeline values grow by one, are reached in order, and can be waited for again") {
  const Ready ready(package());
  uint64_t before = 99;
  REQUIRE(mkrt_session_query(ready.session, &before, nullptr) == MKRT_OK);
  std::vector<uint64_t> values;
  for (int i = 0; i < 10; ++i) values.push_back(execute(ready.session, test::execute_desc(test::entry_scale)));
  for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == before + 1 + i);
  CHECK(wait(ready.session, values.back()) == MKRT_OK);
  uint64_t reached = 0;
  CHECK(mkrt_session_query(ready.session, &reached, nullptr) == MKRT_OK);
  CHECK(reached == values.back());
  for (const uint64_t value : values) CHECK(mkrt_session_wait(ready.session, value, 0, nullptr) == MKRT_OK);
  CHECK(mkrt_session_wait(ready.session, 0, 0, nullptr) == MKRT_OK);
}

TEST_CASE("waiting for a value that was never given out is MKRT_ERROR_ARGUMENT at once") {
  const Ready ready(package());
  const uint64_t value = execute(ready.session, test::execute_desc(test::entry_scale));
  for (const uint64_t wrong : {value + 1, value + 2, UINT64_MAX}) {
    CHECK(mkrt_session_wait(ready.session, wrong, UINT64_MAX, nullptr) == MKRT_ERROR_ARGUMENT);
  }
  CHECK(wait(ready.session, value) == MKRT_OK);
}

TEST_CASE("a time limit that passes is MKRT_ERROR_TIMEOUT, and the work goes on") {
  const Ready ready(package());
  ClosedGate gate;
  const uint64_t value = execute(ready.session, test::execute_desc(test::entry_gate));
  gate.wait_until_entered();
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(mkrt_session_wait(ready.session, value, 0, &error) == MKRT_ERROR_TIMEOUT);
  CHECK(error.status == MKRT_ERROR_TIMEOUT);
  const auto start = std::chrono::steady_clock::now();
  CHECK(mkrt_session_wait(ready.session, value, 20 * test::milliseconds, nullptr) == MKRT_ERROR_TIMEOUT);
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(20));
  uint64_t reached = 99;
  CHECK(mkrt_session_query(ready.session, &reached, nullptr) == MKRT_OK);
  CHECK(reached == value - 1);
  gate.open();
  CHECK(wait(ready.session, value) == MKRT_OK);
  CHECK(read_done(ready.session) == 7);
}

TEST_CASE("work in flight makes a session busy for everything that needs it idle") {
  const Ready ready(package());
  ClosedGate gate;
  uint64_t last = execute(ready.session, test::execute_desc(test::entry_gate));
  int32_t number = 0;
  CHECK(mkrt_session_write(ready.session, 0, test::tensor_value, 0, &number, 4, nullptr) == MKRT_ERROR_BUSY);
  CHECK(mkrt_session_read(ready.session, 0, test::tensor_done, 0, 4, &number, nullptr) == MKRT_ERROR_BUSY);
  CHECK(mkrt_session_reset(ready.session, nullptr) == MKRT_ERROR_BUSY);
  const mkrt_execute_desc desc = test::execute_desc(test::entry_scale);
  for (int i = 1; i < 64; ++i) last = execute(ready.session, desc);
  uint64_t value = 77;
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(mkrt_execute(ready.session, &desc, &value, &error) == MKRT_ERROR_BUSY);
  CHECK(error.status == MKRT_ERROR_BUSY);
  CHECK(value == 77);
  gate.open();
  CHECK(wait(ready.session, last) == MKRT_OK);
  CHECK(execute(ready.session, desc) == last + 1);
}

TEST_CASE("an instruction's fault fails the session with the sentence of its definition until the reset") {
  const Ready ready(package());
  write_value(ready.session, 4);
  CHECK(wait(ready.session, execute(ready.session, test::execute_desc(test::entry_check))) == MKRT_OK);
  CHECK(read_done(ready.session) == 5);

  write_value(ready.session, -5);
  mkrt_error error = MKRT_ERROR_INIT;
  const uint64_t value = execute(ready.session, test::execute_desc(test::entry_check));
  CHECK(wait(ready.session, value, &error) == MKRT_ERROR_FAULT);
  CHECK(error.status == MKRT_ERROR_FAULT);
  CHECK(std::string(error.message).find("the value is negative") != std::string::npos);
  CHECK(error.rank == 0);
  CHECK(error.worker >= 0);
  CHECK(error.record == 0);
  CHECK(error.tile == 0);
  CHECK(error.step == 0);
  CHECK(error.counter == -1);

  uint64_t reached = 0;
  mkrt_error again = MKRT_ERROR_INIT;
  CHECK(mkrt_session_query(ready.session, &reached, &again) == MKRT_ERROR_FAULT);
  CHECK(reached == value);
  CHECK(std::string(again.message) == error.message);
  uint64_t untouched = 77;
  CHECK(mkrt_execute(ready.session, nullptr, &untouched, &error) == MKRT_ERROR_SESSION_FAILED);
  CHECK(untouched == 77);

  REQUIRE(mkrt_session_reset(ready.session, nullptr) == MKRT_OK);
  CHECK(mkrt_session_query(ready.session, &reached, nullptr) == MKRT_OK);
  write_value(ready.session, 8);
  CHECK(wait(ready.session, execute(ready.session, test::execute_desc(test::entry_check))) == MKRT_OK);
  CHECK(read_done(ready.session) == 9);
}

TEST_CASE("a failed execute takes those behind it along, and leaves other sessions alone") {
  const Ready ready(package());
  mkrt_session* other = nullptr;
  REQUIRE(mkrt_session_create(ready.executable, &other, nullptr) == MKRT_OK);
  write_value(ready.session, -1);
  execute(ready.session, test::execute_desc(test::entry_check));
  uint64_t last = 0;
  const mkrt_execute_desc behind = test::execute_desc(test::entry_scale);
  // It may have failed already when the second is enqueued.
  const mkrt_status status = mkrt_execute(ready.session, &behind, &last, nullptr);
  CHECK((status == MKRT_OK || status == MKRT_ERROR_SESSION_FAILED));
  if (status == MKRT_OK) CHECK(wait(ready.session, last) == MKRT_ERROR_FAULT);
  CHECK(wait(other, execute(other, behind)) == MKRT_OK);
  mkrt_session_destroy(other);
}

TEST_CASE("a tile that waits for too long fails the execute and says who waited for what") {
  const Ready ready(package());
  ClosedGate gate;
  mkrt_execute_desc desc = test::execute_desc(test::entry_gate);
  desc.wait_limit_ns = 10 * test::milliseconds;
  const uint64_t value = execute(ready.session, desc);
  gate.wait_until_entered();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  gate.open();  // the instruction that blocked others must return before the execute can end
  mkrt_error error = MKRT_ERROR_INIT;
  REQUIRE(wait(ready.session, value, &error) == MKRT_ERROR_DEADLINE);
  CHECK(error.status == MKRT_ERROR_DEADLINE);
  CHECK(error.rank == 0);
  CHECK(error.worker >= 0);
  CHECK(error.record == 1);
  CHECK(error.counter == 0);
  CHECK(error.value_seen == 0);
  CHECK(error.value_wanted == 1);
  REQUIRE(mkrt_session_reset(ready.session, nullptr) == MKRT_OK);
  CHECK(wait(ready.session, execute(ready.session, desc)) == MKRT_OK);
}

TEST_CASE("cancel stops everything in flight, from another thread, and the session works after a reset") {
  const Ready ready(package());
  uint64_t last = 0;
  for (int i = 0; i < 5; ++i) last = execute(ready.session, test::execute_desc(test::entry_sum, UINT32_MAX));
  mkrt_status status = MKRT_OK;
  std::thread canceller([&] { status = mkrt_session_cancel(ready.session, nullptr); });
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(wait(ready.session, last, &error) == MKRT_ERROR_CANCELLED);
  canceller.join();
  CHECK(status == MKRT_OK);
  CHECK(error.status == MKRT_ERROR_CANCELLED);
  CHECK(mkrt_execute(ready.session, nullptr, nullptr, nullptr) == MKRT_ERROR_SESSION_FAILED);
  REQUIRE(mkrt_session_reset(ready.session, nullptr) == MKRT_OK);
  CHECK(wait(ready.session, execute(ready.session, test::execute_desc(test::entry_scale))) == MKRT_OK);
}

TEST_CASE("cancel with nothing in flight does nothing, also on a failed session") {
  const Ready ready(package());
  CHECK(mkrt_session_cancel(ready.session, nullptr) == MKRT_OK);
  const uint64_t value = execute(ready.session, test::execute_desc(test::entry_scale));
  CHECK(wait(ready.session, value) == MKRT_OK);
  CHECK(mkrt_session_cancel(ready.session, nullptr) == MKRT_OK);
  uint64_t reached = 0;
  CHECK(mkrt_session_query(ready.session, &reached, nullptr) == MKRT_OK);
  fail(ready.session);
  CHECK(mkrt_session_cancel(ready.session, nullptr) == MKRT_OK);
  CHECK(mkrt_session_query(ready.session, &reached, nullptr) == MKRT_ERROR_FAULT);
}

TEST_CASE("a failed session can be read, reset and destroyed") {
  const Ready ready(package());
  fail(ready.session);
  Matrix out;
  CHECK(mkrt_session_read(ready.session, 0, test::tensor_out, 0, sizeof(out), out.data(), nullptr) == MKRT_OK);
  mkrt_session* session = nullptr;
  REQUIRE(mkrt_session_create(ready.executable, &session, nullptr) == MKRT_OK);
  fail(session);
  mkrt_session_destroy(session);
}

TEST_CASE("any thread may query, wait and cancel while the owner executes") {
  const Ready ready(package());
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      uint64_t last = 0;
      while (!stop) {
        uint64_t reached = 0;
        if (mkrt_session_query(ready.session, &reached, nullptr) != MKRT_OK || reached < last) ++wrong;
        if (mkrt_session_wait(ready.session, reached, UINT64_MAX, nullptr) != MKRT_OK) ++wrong;
        last = reached;
      }
    });
  }
  for (int i = 0; i < 300; ++i) CHECK(wait(ready.session, execute(ready.session, test::execute_desc(0))) == MKRT_OK);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}
