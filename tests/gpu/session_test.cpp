// What sessions promise beyond results: cancelling, faults, company, and memory.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "driver.hpp"
#include "faults.hpp"
#include "gpu.hpp"

namespace {

using namespace mkrt::test;
using Clock = std::chrono::steady_clock;

mkrt::ExecuteOptions steps(uint32_t count, uint32_t queue_mode = MKRT_QUEUE_DYNAMIC, uint32_t workers = 0) {
  mkrt::ExecuteOptions options;
  options.step_count = count;
  options.queue_mode = queue_mode;
  options.worker_limit = workers;
  return options;
}

// Tokens that a fresh start of a golden case gives in `count` steps.
std::vector<int32_t> decode(Model& model, const Golden& golden, uint32_t count, const Way& way = {0, 0}) {
  model.start(0, golden.prompt_ids);
  model.step(way, count);
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i <= count; ++i) tokens.push_back(model.token(0, i));
  return tokens;
}

}  // namespace

TEST_CASE("a cancel from another thread ends a long execute within 5 ms, and a reset session works as a new one") {
  const Novelist novelist;
  const Golden golden = read_golden().front();
  Model model(novelist.package(), gpu());
  const std::vector<int32_t> expected = decode(model, golden, 40);
  double longest = 0;
  for (const Way& way : gpu().ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    for (int round = 0; round < 10; ++round) {
      model.reset();
      model.start(0, golden.prompt_ids);
      // Seconds of work: far more steps than the context holds, which go on at its end.
      const uint64_t value = model.session().execute(steps(1'000'000, way.queue_mode, way.workers));
      Clock::time_point cancelled;
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(3 + round));
        cancelled = Clock::now();
        model.session().cancel();
      });
      mkrt_error error = MKRT_ERROR_INIT;
      const mkrt_status status = mkrt_session_wait(model.session().get(), value, UINT64_MAX, &error);
      const Clock::time_point ended = Clock::now();
      other.join();
      CHECK(status == MKRT_ERROR_CANCELLED);
      CHECK(ended > cancelled);  // it was running
      longest = std::max(longest, std::chrono::duration<double, std::milli>(ended - cancelled).count());
      CHECK(mkrt_execute(model.session().get(), nullptr, nullptr, &error) == MKRT_ERROR_SESSION_FAILED);
    }
    model.reset();
    CHECK(decode(model, golden, 40, way) == expected);
  }
  MESSAGE("from a cancel to the end of the execute: at most " << longest << " ms");
  CHECK(longest < 5);
}

TEST_CASE("cancels at any moment of a step end it, however many chunks attention is at") {
  const Novelist novelist;
  const Golden golden = read_golden().front();
  Model model(novelist.package(), gpu());
  const std::vector<int32_t> expected = decode(model, golden, 20);
  std::minstd_rand engine(20261201);
  for (const uint32_t workers : {1u, 3u, 0u}) {
    CAPTURE(workers);
    for (int round = 0; round < 100; ++round) {
      model.reset();
      model.start(0, golden.prompt_ids);
      // The last place of the context, where the sequence stays: the most chunks there are.
      model.set("positions", 0, static_cast<int32_t>(model.context) - 1);
      const uint32_t mode = round % 2 == 0 ? MKRT_QUEUE_DYNAMIC : MKRT_QUEUE_STATIC;
      const uint64_t value = model.session().execute(steps(1'000'000, mode, workers));
      std::this_thread::sleep_for(std::chrono::microseconds(engine() % 3000));
      model.session().cancel();
      mkrt_error error = MKRT_ERROR_INIT;
      const mkrt_status status = mkrt_session_wait(model.session().get(), value, 10'000'000'000, &error);
      if (status == MKRT_ERROR_TIMEOUT) {
        // Destructors would wait for a kernel that hangs.
        std::fprintf(stderr, "round %d with %u workers: the kernel did not end within 10 s of its cancel\n", round,
                     workers);
        std::_Exit(1);
      }
      CHECK(status == MKRT_ERROR_CANCELLED);
    }
  }
  model.reset();
  CHECK(decode(model, golden, 20) == expected);
}

TEST_CASE("a token outside the vocabulary is a fault that says where, until the session is reset") {
  const Novelist novelist;
  const Golden golden = read_golden().front();
  Model model(novelist.package(), gpu());
  const std::vector<int32_t> expected = decode(model, golden, 20);
  std::string sentence;
  for (const Way& way : gpu().ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    for (const int32_t token : {static_cast<int32_t>(model.vocabulary), -1, INT32_MAX}) {
      model.reset();
      model.start(0, {1, 2, 3, token, 5});
      const uint64_t value = model.session().execute(steps(8, way.queue_mode, way.workers));
      const mkrt_error error = error_of([&] { model.session().wait(value); });
      CHECK(error.status == MKRT_ERROR_FAULT);
      CHECK(error.rank == 0);
      CHECK(error.worker >= 0);
      CHECK(error.step == 3);
      CHECK(error.tile == 0);
      CHECK(contains(error.message, "the token is outside the vocabulary"));
      sentence = error.message;
      CHECK(error_of([&] { model.session().query(); }).status == MKRT_ERROR_FAULT);
      CHECK(error_of([&] { model.session().execute(); }).status == MKRT_ERROR_SESSION_FAILED);
    }
    model.reset();
    CHECK(decode(model, golden, 20, way) == expected);
  }
  MESSAGE(sentence);
}

TEST_CASE("a position outside the token list is a fault") {
  const Novelist novelist;
  Model model(novelist.package(), gpu());
  for (const int32_t position : {static_cast<int32_t>(model.context), -1}) {
    model.reset();
    model.start(0, {1, 2, 3});
    model.set("positions", 0, position);
    const mkrt_error error = error_of([&] { model.step({0, 0}); });
    CHECK(error.status == MKRT_ERROR_FAULT);
    CHECK(contains(error.message, "the position is outside"));
  }
}

TEST_CASE("a fault of one of two tiles of a block ends the execute and says which, and a reset session works") {
  check_fault_before_another_tile(gpu({1, 2, 0}));
}

TEST_CASE("executes queue up to 64 in flight, and one more is refused without harm") {
  const Novelist novelist;
  const Golden golden = read_golden().front();
  Model model(novelist.package(), gpu());
  const std::vector<int32_t> expected = decode(model, golden, 100);
  model.reset();
  model.start(0, golden.prompt_ids);
  uint64_t value = 0;
  uint32_t done = 0, refused = 0;
  while (done < 100) {
    mkrt_error error = MKRT_ERROR_INIT;
    const mkrt_status status = mkrt_execute(model.session().get(), nullptr, &value, &error);
    if (status == MKRT_OK) {
      ++done;
    } else {
      if (status != MKRT_ERROR_BUSY) FAIL(std::string(error.message));
      ++refused;
      std::this_thread::yield();
    }
  }
  model.session().wait(value);
  MESSAGE(refused << " executes were refused");
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i <= 100; ++i) tokens.push_back(model.token(0, i));
  CHECK(tokens == expected);
}

TEST_CASE("sessions side by side, of one executable and of two, give what each gives alone") {
  const Novelist novelist;
  const std::vector<Golden> cases = read_golden();
  Model model(novelist.package(), gpu());
  std::vector<std::vector<int32_t>> alone;
  for (const Golden& golden : cases) {
    model.reset();
    alone.push_back(decode(model, golden, 60));
  }
  const mkrt::Executable second(model.program(), model.mesh());
  const uint32_t tokens = model.program().find_tensor("tokens"), length = model.program().find_tensor("prompt_length"),
                 active = model.program().find_tensor("active");
  for (const uint32_t workers : {0u, 20u}) {
    std::vector<mkrt::Session> sessions;
    for (size_t i = 0; i < cases.size(); ++i) sessions.emplace_back(i % 2 == 0 ? model.executable() : second);
    std::vector<std::vector<int32_t>> together(cases.size(), std::vector<int32_t>(61));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < cases.size(); ++i) {
      threads.emplace_back([&, i] {
        const std::vector<int32_t>& prompt = cases[i].prompt_ids;
        sessions[i].write<int32_t>(tokens, prompt);
        sessions[i].write_value<int32_t>(length, static_cast<int32_t>(prompt.size()));
        sessions[i].write_value<int32_t>(active, 1);
        // Both modes and many executes, so that launches of different sessions meet in every order.
        for (uint32_t step = 0; step < 60; step += 5) sessions[i].execute(steps(5, step / 5 % 2, workers));
        sessions[i].wait(12);
        sessions[i].read<int32_t>(tokens, together[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < cases.size(); ++i) CHECK(together[i] == alone[i]);
  }
}

TEST_CASE("a budget that is too small is a status with the sizes, and nothing stays taken") {
  const Novelist novelist;
  const mkrt::Runtime runtime;
  const mkrt::Mesh mesh(runtime, gpu().rank);
  const mkrt::Program program(runtime, novelist.package());
  const uint64_t weights = program.info().weight_bytes;
  {
    // The driver keeps what it took for its first stream and launch.
    const mkrt::Executable executable(program, mesh);
    mkrt::Session session(executable);
    session.wait(session.execute());
  }
  const uint64_t free_before = mesh.device_info().memory_free;
  for (int round = 0; round < 5; ++round) {
    const mkrt_error error = error_of([&] { mkrt::Executable(program, mesh, weights / 2); });
    CHECK(error.status == MKRT_ERROR_OUT_OF_MEMORY);
    CHECK(contains(error.message, std::to_string(weights / 2)));
    if (round == 0) MESSAGE(std::string(error.message));
    // Room for the weights and half a session.
    const mkrt::Executable executable(program, mesh, weights + program.info().session_bytes / 2 + 65536);
    CHECK(error_of([&] { mkrt::Session session(executable); }).status == MKRT_ERROR_OUT_OF_MEMORY);
  }
  CHECK(mesh.device_info().memory_free == free_before);
  const mkrt::Executable enough(program, mesh, 2 * (weights + program.info().session_bytes) + (1 << 20));
  mkrt::Session session(enough);
  session.wait(session.execute());
}

TEST_CASE("making and destroying executables and sessions leaves the device's memory as it was") {
  const Novelist novelist;
  const mkrt::Runtime runtime;
  const mkrt::Mesh mesh(runtime, gpu().rank);
  const mkrt::Program program(runtime, novelist.package());
  uint64_t free_before = 0;
  for (int round = 0; round < 20; ++round) {
    const mkrt::Executable executable(program, mesh, 0, 4);
    mkrt::Session first(executable), second(executable);
    first.execute(steps(1000));
    second.execute(steps(10));
    first.close();  // cancels what is in flight
    if (round == 1) free_before = mesh.device_info().memory_free;
    if (round > 1) CHECK(mesh.device_info().memory_free == free_before);
  }
}

namespace {

// A host application's device memory, counted.
struct Counted {
  const Driver* driver;
  uint64_t bytes = 0;
  uint32_t calls = 0;

  static uint64_t allocate(void* user_data, uint32_t, uint64_t size, uint64_t) {
    auto& self = *static_cast<Counted*>(user_data);
    uint64_t address = 0;
    if (self.driver->allocate(&address, size) != 0) return 0;
    self.bytes += size;
    ++self.calls;
    return address;
  }
  static void release(void* user_data, uint32_t, uint64_t address, uint64_t size) {
    auto& self = *static_cast<Counted*>(user_data);
    self.bytes -= size;
    self.driver->release(address);
  }
};

}  // namespace

TEST_CASE("weights and sessions lie in memory of the application's where it brings an allocator") {
  const Novelist novelist;
  const Golden golden = read_golden().front();
  std::vector<int32_t> expected;
  {
    Model model(novelist.package(), gpu());
    expected = decode(model, golden, 30);
  }
  const Driver driver;
  Counted memory{&driver};
  mkrt_device_memory_extension extension{};
  extension.base.struct_size = sizeof(extension);
  extension.base.type = MKRT_EXTENSION_DEVICE_MEMORY;
  extension.user_data = &memory;
  extension.allocate = Counted::allocate;
  extension.release = Counted::release;
  {
    const mkrt::Runtime runtime;
    const mkrt::RankOptions rank = gpu().rank;
    const mkrt::Mesh mesh(runtime, mkrt::Span<const mkrt::RankOptions>(&rank, 1), &extension.base);
    const mkrt::Program program(runtime, novelist.package());
    const mkrt::Executable executable(program, mesh);
    CHECK(memory.bytes >= program.info().weight_bytes);
    mkrt::Session session(executable);
    CHECK(memory.bytes >= program.info().weight_bytes + program.info().session_bytes);
    session.write<int32_t>(program.find_tensor("tokens"), golden.prompt_ids);
    session.write_value<int32_t>(program.find_tensor("prompt_length"), static_cast<int32_t>(golden.prompt_ids.size()));
    session.write_value<int32_t>(program.find_tensor("active"), 1);
    const uint32_t calls = memory.calls;
    session.wait(session.execute(steps(30)));
    CHECK(memory.calls == calls);  // an execute allocates nothing
    std::vector<int32_t> tokens(31);
    session.read<int32_t>(program.find_tensor("tokens"), tokens);
    CHECK(tokens == expected);
  }
  CHECK(memory.bytes == 0);
}
