// Sessions on a simulated GPU: results, timeline, how they fail, and what they leave to the application.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "cuda/context.hpp"
#include "fixture.hpp"

using namespace mkrt;
using namespace mkrt::cuda;
using namespace mkrt::cuda::test;
using host::test::request;

TEST_CASE("results are those of the host device in both queue modes, over several steps and executes") {
  Gpu gpu;
  const Work work(1'500'000);  // two pieces each on their way to the device
  const OnGpu on(gpu, work, rank_desc(), {.loader_threads = 3});
  for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
    const std::vector<uint32_t> begin = random_state();
    write_state(*on.session, work, begin);
    run(*on.session, request(entry_step, 5, mode));
    run(*on.session, request(entry_step, 1, mode, 2));
    CHECK(read_state(*on.session, work) == host_result(work, begin, 6));
  }
  run(*on.session, request(entry_count, 3));
  CHECK(read_total(*on.session, work) == 3);
  const std::vector<Launch> launches = gpu.launches();
  REQUIRE(launches.size() == 5);  // one an execute
  CHECK(launches[0].grid == 4);
  CHECK(launches[1].grid == 2);
  CHECK(launches[0].parameters.step_count == 5);
  CHECK(launches[2].parameters.queue_mode == MKRT_QUEUE_STATIC);
  CHECK(launches[0].parameters.page_count == 9);  // (200000 - 40000) / 16384
  CHECK(on.session->reset(nullptr) == MKRT_OK);
  CHECK(read_total(*on.session, work) == 0);
  CHECK(read_state(*on.session, work) == std::vector<uint32_t>(width, 0));
}

TEST_CASE("a new session is zero, sessions do not share state, and go in any order") {
  Gpu gpu;
  const Work work;
  OnGpu on(gpu, work);
  auto other = on.executable->create_session();
  CHECK(read_state(*other, work) == std::vector<uint32_t>(width, 0));
  run(*on.session, request(entry_count, 2));
  run(*other, request(entry_count));
  CHECK(read_total(*on.session, work) == 2);
  CHECK(read_total(*other, work) == 1);
  on.session.reset();
  run(*other, request(entry_count));
  CHECK(read_total(*other, work) == 2);
}

TEST_CASE("tensors have addresses of the device") {
  Gpu gpu;
  const Work work;
  const OnGpu on(gpu, work);
  const auto address = reinterpret_cast<uint64_t>(on.session->tensor_address(0, work.state));
  CHECK(address % 256 == 0);
  CHECK(address != reinterpret_cast<uint64_t>(on.session->tensor_address(0, work.total)));
  // Copying nothing is nothing, whatever the pointers.
  CHECK(on.session->write(0, work.state, 0, nullptr, 0, nullptr) == MKRT_OK);
  CHECK(on.session->read(0, work.state, 0, 0, nullptr, nullptr) == MKRT_OK);
}

TEST_CASE("the timeline counts executes, 64 of them may be in flight, and the next is refused as busy") {
  Gpu gpu;
  const Work work;
  const OnGpu on(gpu, work);
  device::Session& session = *on.session;
  Hold holding;
  uint64_t reached = 99;
  CHECK(session.query(&reached, nullptr) == MKRT_OK);
  CHECK(reached == 0);
  CHECK(enqueue(session, request(entry_hold)) == 1);
  for (uint64_t value = 2; value <= 64; ++value) CHECK(enqueue(session, request(entry_count)) == value);
  uint64_t value = 4711;
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(session.execute(request(entry_count), &value, &error) == MKRT_ERROR_BUSY);
  CHECK(value == 4711);
  CHECK(std::string(error.message).find("reached 0 of 64") != std::string::npos);
  uint32_t data = 0;
  CHECK(session.write(0, work.total, 0, &data, sizeof(data), nullptr) == MKRT_ERROR_BUSY);
  CHECK(session.read(0, work.total, 0, sizeof(data), &data, nullptr) == MKRT_ERROR_BUSY);
  CHECK(session.reset(nullptr) == MKRT_ERROR_BUSY);
  mkrt_trace_tile tile{};
  CHECK(session.read_trace(0, 1, &tile, nullptr) == MKRT_ERROR_BUSY);
  CHECK(failure_of([&] { session.trace(1); }).status() == MKRT_ERROR_BUSY);
  CHECK(session.wait(1, 0, &error) == MKRT_ERROR_TIMEOUT);
  CHECK(session.wait(1, 3 * millisecond, &error) == MKRT_ERROR_TIMEOUT);
  CHECK(session.wait(65, no_limit, &error) == MKRT_ERROR_ARGUMENT);  // never given out: nothing to wait for
  CHECK(session.query(&reached, nullptr) == MKRT_OK);
  CHECK(reached == 0);
  holding.release();
  CHECK(session.wait(64, no_limit, nullptr) == MKRT_OK);
  CHECK(read_total(session, work) == 63);
  CHECK(enqueue(session, request(entry_count)) == 65);
  CHECK(session.wait(65, no_limit, nullptr) == MKRT_OK);
  CHECK(session.wait(1, 0, nullptr) == MKRT_OK);
}

TEST_CASE("a missed deadline names the record of its own entry, whatever was enqueued behind it") {
  Gpu gpu;
  const Work work;
  const OnGpu on(gpu, work);
  device::Session& session = *on.session;
  enqueue(session, request(entry_count));
  const uint64_t stuck = enqueue(session, request(entry_stuck, 1, MKRT_QUEUE_DYNAMIC, 0, 5 * millisecond));
  uint64_t last = 0;
  // Entries of one record: record 1 is not theirs. Those that come after the failure are refused.
  for (int i = 0; i < 3; ++i) session.execute(request(entry_count), &last, nullptr);
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(session.wait(std::max(last, stuck), no_limit, &error) == MKRT_ERROR_DEADLINE);
  CHECK(error.record == 1);
  CHECK(error.tile == 0);
  CHECK(error.rank == 0);
  CHECK(error.value_seen == 4);
  CHECK(error.value_wanted == 5);
  const std::string message = error.message;
  CHECK(message.find("record 1 \"consume\", tile 0, step 0") != std::string::npos);
  CHECK(message.find("for counter \"blocks\"[0] to reach 5, saw 4") != std::string::npos);
  CHECK(session.execute(request(entry_count), &last, &error) == MKRT_ERROR_SESSION_FAILED);
  CHECK(read_total(session, work) == 1);  // a failed session can still be read
  REQUIRE(session.reset(&error) == MKRT_OK);
  run(session, request(entry_count, 10));
  CHECK(read_total(session, work) == 10);
}

TEST_CASE("a fault is the sentence of the instruction set") {
  Gpu gpu;
  const Work work;
  const OnGpu on(gpu, work);
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(on.session->wait(enqueue(*on.session, request(entry_fault)), no_limit, &error) == MKRT_ERROR_FAULT);
  CHECK(error.record == 2);
  CHECK(std::string(error.message).find("the token is outside the vocabulary") != std::string::npos);
  uint64_t value = 0;
  CHECK(on.session->query(&value, &error) == MKRT_ERROR_FAULT);
  CHECK(value == 1);
  REQUIRE(on.session->reset(nullptr) == MKRT_OK);
  run(*on.session, request(entry_count));
}

TEST_CASE("a cancel from another thread stops what waits, and all behind it, until a reset") {
  Gpu gpu;
  const Work work;
  const OnGpu on(gpu, work);
  device::Session& session = *on.session;
  session.cancel();  // nothing is in flight: nothing happens
  run(session, request(entry_count));
  for (int round = 0; round < 3; ++round) {
    enqueue(session, request(entry_stuck));
    const uint64_t value = enqueue(session, request(entry_count, 1000));
    std::thread canceller([&] { session.cancel(); });
    mkrt_error error = MKRT_ERROR_INIT;
    const auto begin = std::chrono::steady_clock::now();
    CHECK(session.wait(value, no_limit, &error) == MKRT_ERROR_CANCELLED);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));  // the deadline is 60
    canceller.join();
    CHECK(std::string(error.message) == "the execute was cancelled");
    CHECK(session.execute(request(entry_count), nullptr, nullptr) == MKRT_ERROR_SESSION_FAILED);
    REQUIRE(session.reset(nullptr) == MKRT_OK);
    CHECK(read_total(session, work) == 0);
    run(session, request(entry_count, 7));
    CHECK(read_total(session, work) == 7);
  }
}

TEST_CASE("destroying a session cancels what waits") {
  Gpu gpu;
  const Work work;
  OnGpu on(gpu, work);
  enqueue(*on.session, request(entry_stuck));
  const auto begin = std::chrono::steady_clock::now();
  on.session.reset();
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("a launch that the driver gives up on ends the wait with the driver's error") {
  Gpu gpu;
  const Work work;
  const OnGpu on(gpu, work);
  device::Session& session = *on.session;
  gpu.break_next_launch(700);
  const uint64_t value = enqueue(session, request(entry_count));
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(session.wait(value, no_limit, &error) == MKRT_ERROR_DRIVER);
  CHECK(error.driver_code == 700);
  CHECK(error.rank == 0);
  CHECK(session.execute(request(entry_count), nullptr, nullptr) == MKRT_ERROR_SESSION_FAILED);
  CHECK(session.reset(&error) == MKRT_ERROR_DRIVER);  // the context is lost
}

namespace {

// A rank in an application's context, on its stream.
mkrt_rank_desc lent_rank(DriverDouble& gpu) {
  mkrt_rank_desc rank = rank_desc();
  rank.context = gpu.create_context(0);
  rank.stream = gpu.create_stream(static_cast<Context>(rank.context));
  return rank;
}

}  // namespace

TEST_CASE("whoever only queries learns that the device is lost") {
  for (const bool lent : {false, true}) {
    CAPTURE(lent);
    Gpu gpu;
    const Work work;
    const mkrt_rank_desc rank = lent ? lent_rank(gpu) : rank_desc();
    const OnGpu on(gpu, work, rank);
    device::Session& session = *on.session;
    enqueue(session, request(entry_stuck));
    uint64_t reached = 0;
    CHECK(session.query(&reached, nullptr) == MKRT_OK);
    gpu.lose(lent ? static_cast<Context>(rank.context) : gpu.primary_context(0), 719);
    mkrt_error error = MKRT_ERROR_INIT;
    mkrt_status status = MKRT_OK;
    for (int i = 0; i < 10'000 && status == MKRT_OK; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      status = session.query(&reached, &error);
    }
    CHECK(status == MKRT_ERROR_DRIVER);
    CHECK(error.driver_code == 719);
    CHECK(session.execute(request(entry_count), nullptr, nullptr) == MKRT_ERROR_SESSION_FAILED);
    CHECK(session.reset(nullptr) == MKRT_ERROR_DRIVER);
  }
}

TEST_CASE("few of the queries of work in flight ask the driver") {
  Gpu gpu;
  const Work work;
  const OnGpu on(gpu, work);
  Hold holding;
  enqueue(*on.session, request(entry_hold));
  uint64_t reached = 0;
  gpu.fail_none();  // counts from here
  for (int i = 0; i < 10'000; ++i) CHECK(on.session->query(&reached, nullptr) == MKRT_OK);
  CHECK(gpu.call_count() >= 1);
  CHECK(gpu.call_count() < 1000);
}

TEST_CASE("queries and waits do not spoil what the application captures meanwhile") {
  Gpu gpu;
  const Work work;
  const mkrt_rank_desc rank = lent_rank(gpu);
  const OnGpu on(gpu, work, rank);
  Hold holding;
  const uint64_t value = enqueue(*on.session, request(entry_hold));
  gpu.begin_capture(static_cast<Stream>(rank.stream));
  uint64_t reached = 0;
  CHECK(on.session->query(&reached, nullptr) == MKRT_OK);
  CHECK(on.session->wait(value, 3 * millisecond, nullptr) == MKRT_ERROR_TIMEOUT);
  gpu.end_capture(static_cast<Stream>(rank.stream));
  holding.release();
  CHECK(on.session->wait(value, no_limit, nullptr) == MKRT_OK);
}

TEST_CASE("a query that could spoil what the application captures does not ask, and fails") {
  Gpu gpu;
  const Work work;
  const mkrt_rank_desc rank = lent_rank(gpu);
  const OnGpu on(gpu, work, rank);
  Hold holding;
  enqueue(*on.session, request(entry_hold));
  gpu.begin_capture(static_cast<Stream>(rank.stream));
  gpu.fail_call(2, 999);
  uint64_t reached = 0;
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(on.session->query(&reached, &error) == MKRT_ERROR_DRIVER);
  CHECK(gpu.failed_call() == "capture_mode");
  CHECK(error.driver_code == 999);
  gpu.fail_none();
  gpu.end_capture(static_cast<Stream>(rank.stream));
}

namespace {

struct Captured {
  explicit Captured(const device::ExecuteRequest& what) : rank(lent_rank(gpu)), on(gpu, work, rank) {
    gpu.begin_capture(stream());
    value = enqueue(*on.session, what);
    graph = gpu.end_capture(stream());
  }
  Stream stream() const { return static_cast<Stream>(rank.stream); }
  void replay() { gpu.replay(graph, stream()); }
  mkrt_status wait(mkrt_error* error = nullptr) { return on.session->wait(value, no_limit, error); }
  // As an application does: on its stream.
  void synchronize() {
    gpu.push(static_cast<Context>(rank.context));
    CHECK(gpu.driver()->stream_synchronize(stream()) == result_success);
    gpu.pop();
  }

  Gpu gpu;
  Work work;
  mkrt_rank_desc rank;
  OnGpu on;
  uint64_t value = 0;
  DriverDouble::Graph graph;
};

}  // namespace

TEST_CASE("an execute that is captured runs with each launch of its graph, and its value is reached with the first") {
  Captured captured(request(entry_count, 2));
  uint64_t reached = 99;
  CHECK(captured.on.session->query(&reached, nullptr) == MKRT_OK);
  CHECK(reached == 0);
  CHECK(captured.on.session->reset(nullptr) == MKRT_ERROR_BUSY);
  captured.replay();
  CHECK(captured.wait() == MKRT_OK);
  captured.replay();
  captured.replay();
  captured.synchronize();
  CHECK(read_total(*captured.on.session, captured.work) == 6);
  run(*captured.on.session, request(entry_count));
  CHECK(read_total(*captured.on.session, captured.work) == 7);
  captured.replay();  // too late: the timeline goes back, and the session counts as busy until the next execute
  captured.synchronize();
  CHECK(captured.on.session->query(&reached, nullptr) == MKRT_OK);
  CHECK(reached == captured.value);
  run(*captured.on.session, request(entry_count));
  CHECK(read_total(*captured.on.session, captured.work) == 10);
}

TEST_CASE("a cancel reaches every launch of a graph, holds for those that follow, and a reset ends it") {
  Captured captured(request(entry_stuck, 1, MKRT_QUEUE_DYNAMIC, 0, 5'000 * millisecond));
  device::Session& session = *captured.on.session;
  mkrt_error error = MKRT_ERROR_INIT;
  for (int launch = 0; launch < 3; ++launch) {
    CAPTURE(launch);
    captured.replay();
    session.cancel();
    captured.synchronize();
    CHECK(captured.wait(&error) == MKRT_ERROR_CANCELLED);
    CHECK(session.execute(request(entry_count), nullptr, nullptr) == MKRT_ERROR_SESSION_FAILED);
    captured.replay();  // leaves at once
    captured.synchronize();
    REQUIRE(session.reset(nullptr) == MKRT_OK);
  }
  // Whether something is in flight cannot be known any more.
  session.cancel();
  CHECK(captured.wait() == MKRT_ERROR_CANCELLED);
  REQUIRE(session.reset(nullptr) == MKRT_OK);
  run(session, request(entry_count));
  captured.replay();
  // And goes with its session.
}

TEST_CASE("each launch of a graph has the deadline of its execute") {
  Captured captured(request(entry_stuck, 1, MKRT_QUEUE_DYNAMIC, 0, 5 * millisecond));
  uint64_t reached = 0;
  mkrt_error error = MKRT_ERROR_INIT;
  for (int launch = 0; launch < 2; ++launch) {
    CAPTURE(launch);
    captured.replay();
    captured.synchronize();
    CHECK(captured.on.session->query(&reached, &error) == MKRT_ERROR_DEADLINE);
    CHECK(error.record == 1);
    REQUIRE(captured.on.session->reset(nullptr) == MKRT_OK);
  }
}

TEST_CASE("weights come from a file as from memory, whether larger or smaller than a block") {
  for (const uint64_t weight_bytes : {4096, 1'048'576, 6'000'000}) {
    for (const uint32_t threads : {1, 4}) {
      CAPTURE(weight_bytes);
      CAPTURE(threads);
      Gpu gpu;
      Work work(weight_bytes);
      work.move_weights_to_file();
      const OnGpu on(gpu, work, rank_desc(), {.loader_threads = threads});
      const std::vector<uint32_t> begin = random_state();
      write_state(*on.session, work, begin);
      run(*on.session, request(entry_step, 2));
      CHECK(read_state(*on.session, work) == host_result(work, begin, 2));
    }
  }
}

#ifndef _WIN32  // which lets nobody shorten a mapped file
TEST_CASE("a weight file that became shorter since it was opened is a failure with a sentence") {
  for (const uint64_t left : {1'500'000, 100'000, 0}) {
    CAPTURE(left);
    Gpu gpu;
    Work work(800'000);
    const std::string path = work.move_weights_to_file();
    const auto size = std::filesystem::file_size(path);
    const auto mesh = make_mesh(gpu, rank_desc());
    std::filesystem::resize_file(path, left);
    const base::Failure failure = failure_of([&] { mesh->load(work.program, {.loader_threads = 3}); });
    CHECK(failure.status() == MKRT_ERROR_FILE);
    CHECK(failure.message().find(path + ": ends at byte ") == 0);
    CHECK(failure.message().find(base::text("had ", size, " bytes when it was opened")) != std::string::npos);
    CHECK(gpu.live_objects() == 1);  // the mesh's context
  }
}
#endif

TEST_CASE("the application's context and stream are used and left as they were") {
  Gpu gpu(std::vector<SimulatedDevice>(2));
  const Work work;
  const Context context = gpu.create_context(1);
  const Context other = gpu.create_context(0);
  mkrt_rank_desc rank = rank_desc();
  rank.context = context;
  rank.stream = gpu.create_stream(context);
  gpu.push(other);
  const std::vector<Context> before = gpu.context_stack();
  const auto unchanged = [&] { CHECK(gpu.context_stack() == before); };
  {
    const auto mesh = make_mesh(gpu, rank);
    unchanged();
    CHECK(gpu.live_objects() == 0);  // no primary context is made beside the application's
    mkrt_device_info info{};
    mesh->describe(0, &info);
    unchanged();
    CHECK(info.ordinal == 1);
    CHECK(info.memory_free > 0);
    const auto executable = mesh->load(work.program, {.loader_threads = 2});
    unchanged();
    auto session = executable->create_session();
    unchanged();
    const std::vector<uint32_t> begin = random_state();
    write_state(*session, work, begin);
    unchanged();
    session->trace(4);
    unchanged();
    run(*session, request(entry_step, 2));
    unchanged();
    CHECK(read_state(*session, work) == host_result(work, begin, 2));
    unchanged();
    mkrt_trace_tile tile{};
    CHECK(session->read_trace(0, 1, &tile, nullptr) == MKRT_OK);
    session->cancel();
    CHECK(session->reset(nullptr) == MKRT_OK);
    unchanged();
    enqueue(*session, request(entry_count));
    session.reset();
    unchanged();
  }
  unchanged();
  for (const Launch& launch : gpu.launches()) CHECK(launch.stream == rank.stream);
  gpu.pop();
}

TEST_CASE("adopting a context leaves the caller's current, whichever call fails, and takes nothing of it") {
  DriverDouble gpu(std::vector<SimulatedDevice>(2));
  const Context context = gpu.create_context(1);
  DeviceNumber device = 0;
  REQUIRE(gpu.driver()->device_get(&device, 1) == result_success);
  gpu.push(gpu.create_context(0));
  const std::vector<Context> before = gpu.context_stack();
  gpu.fail_none();  // counts from here
  {
    const DeviceContext adopted(gpu.driver(), context);
    CHECK(gpu.context_stack() == before);
    CHECK(adopted.handle() == context);
    CHECK(adopted.device() == device);
  }
  CHECK(gpu.call_count() == 3);
  const auto adopt = [&] { DeviceContext(gpu.driver(), context); };
  const auto check_fails = [&](uint64_t call, const std::string& name, const std::string& reason) {
    gpu.fail_call(call, 999);
    const base::Failure failure = failure_of(adopt);
    CHECK(gpu.failed_call() == name);
    CHECK(failure.status() == MKRT_ERROR_DRIVER);
    CHECK(failure.driver_code() == 999);
    CHECK(failure.message().find("could not " + reason) == 0);
    CHECK(gpu.context_stack() == before);
  };
  check_fails(1, "context_push", "make the host application's context current");
  CHECK(gpu.call_count() == 1);  // what is not current is neither asked nor popped
  check_fails(2, "context_device", "ask for the device of the host application's context");
  gpu.fail_call(3, 999);
  adopt();  // a pop that reports an earlier failure has popped
  CHECK(gpu.failed_call() == "context_pop");
  CHECK(gpu.context_stack() == before);
  gpu.fail_none();
  gpu.pop();
}

TEST_CASE("a stream without its context, and a context of another device than the UUID says, are refused") {
  Gpu gpu(std::vector<SimulatedDevice>(2));
  mkrt_rank_desc rank = rank_desc();
  rank.stream = gpu.create_stream(gpu.create_context(0));
  CHECK(failure_of([&] { make_mesh(gpu, rank); }).status() == MKRT_ERROR_ARGUMENT);
  rank.context = gpu.create_context(0);
  std::memset(rank.uuid, 0x11, sizeof(rank.uuid));  // of device 1
  CHECK(failure_of([&] { make_mesh(gpu, rank); }).status() == MKRT_ERROR_ARGUMENT);
  CHECK(gpu.live_objects() == 0);
}

TEST_CASE("devices are found by number and by UUID, and those that cannot be used are refused with the reason") {
  Gpu gpu({{.name = "First"}, {.name = "Second", .multiprocessors = 7}, {.name = "Third", .cooperative = false}});
  mkrt_rank_desc rank = rank_desc();
  mkrt_device_info info{};
  rank.ordinal = 1;
  make_mesh(gpu, rank)->describe(0, &info);
  CHECK(std::string(info.name) == "Second");
  CHECK(std::string(info.target) == "sm_90a");
  CHECK(info.worker_count == 7);
  rank.worker_count = 3;
  make_mesh(gpu, rank)->describe(0, &info);
  CHECK(info.worker_count == 3);
  rank.worker_count = 1000;
  make_mesh(gpu, rank)->describe(0, &info);
  CHECK(info.worker_count == 7);
  std::memset(rank.uuid, 0x10, sizeof(rank.uuid));  // the UUID wins over the number
  make_mesh(gpu, rank)->describe(0, &info);
  CHECK(std::string(info.name) == "First");
  std::memset(rank.uuid, 0x77, sizeof(rank.uuid));
  CHECK(failure_of([&] { make_mesh(gpu, rank); }).status() == MKRT_ERROR_DEVICE);
  std::memset(rank.uuid, 0, sizeof(rank.uuid));
  rank.ordinal = 3;
  const base::Failure none = failure_of([&] { make_mesh(gpu, rank); });
  CHECK(none.status() == MKRT_ERROR_DEVICE);
  CHECK(none.message().find("there are 3") != std::string::npos);
  rank.ordinal = 2;
  const base::Failure old = failure_of([&] { make_mesh(gpu, rank); });
  CHECK(old.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(old.message().find("Third") != std::string::npos);
  CHECK(gpu.live_objects() == 0);
}

TEST_CASE("the memory budget and the device's memory bound what is taken, and the sentences have the sizes") {
  Gpu gpu;
  const Work work(100'000);
  const auto mesh = make_mesh(gpu, rank_desc());
  const base::Failure weights = failure_of([&] { mesh->load(work.program, {.memory_budget = 150'000}); });
  CHECK(weights.status() == MKRT_ERROR_OUT_OF_MEMORY);
  CHECK(weights.message() ==
        "200096 bytes are needed for the weights, and 0 of the 150000 bytes of the memory budget are in use");
  // Room for one session, not for two.
  constexpr uint64_t budget = 200'096 + 30'000;
  {
    const auto executable = mesh->load(work.program, {.memory_budget = budget});
    auto first = executable->create_session();
    const base::Failure second = failure_of([&] { executable->create_session(); });
    CHECK(second.status() == MKRT_ERROR_OUT_OF_MEMORY);
    CHECK(second.message().find("of the " + std::to_string(budget) + " bytes of the memory budget") !=
          std::string::npos);
    run(*first, request(entry_count));  // what there was before still works
    // Until memory is back at the driver it counts.
    int releases = 0;
    gpu.on_release([&] {
      ++releases;
      CHECK(failure_of([&] { executable->create_session(); }).status() == MKRT_ERROR_OUT_OF_MEMORY);
    });
    first.reset();
    gpu.on_release(nullptr);
    CHECK(releases == 1);
    CHECK(executable->create_session() != nullptr);  // and what it took is there again
  }
  CHECK(gpu.most_memory(0) <= budget);
  gpu.set_free_memory(0, 100'000);
  const base::Failure full = failure_of([&] { mesh->load(work.program, {}); });
  CHECK(full.status() == MKRT_ERROR_OUT_OF_MEMORY);
  CHECK(full.driver_code() == 2);
  CHECK(full.message().find("200096 bytes are needed for the weights") == 0);
  CHECK(full.message().find(" of the device's 1073741824 bytes are free") != std::string::npos);
  CHECK(gpu.live_objects() == 1);
}

namespace {

// An application's own device memory, in a context that must be current where it is asked for some.
struct Pool {
  explicit Pool(DriverDouble& double_of_gpu) : gpu(double_of_gpu), context(gpu.create_context(0)) {
    extension.base.struct_size = sizeof(extension);
    extension.base.type = MKRT_EXTENSION_DEVICE_MEMORY;
    extension.user_data = this;
    extension.allocate = [](void* user_data, uint32_t rank, uint64_t size, uint64_t alignment) {
      return static_cast<Pool*>(user_data)->allocate(rank, size, alignment);
    };
    extension.release = [](void* user_data, uint32_t rank, uint64_t address, uint64_t size) {
      static_cast<Pool*>(user_data)->release(rank, address, size);
    };
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  mkrt_rank_desc rank() const {
    mkrt_rank_desc desc = rank_desc();
    desc.context = context;
    return desc;
  }
  uint64_t allocate(uint32_t rank, uint64_t size, uint64_t alignment) {
    CHECK(rank == 0);
    CHECK(alignment == 256);
    CHECK(gpu.context_stack().back() == context);
    if (size > limit) return 0;
    const uint64_t address = gpu.allocate(context, size + 256) + misalign;
    given[address] = size;
    return address;
  }
  void release(uint32_t rank, uint64_t address, uint64_t size) {
    CHECK(rank == 0);
    REQUIRE(given.count(address) == 1);
    CHECK(given[address] == size);
    given.erase(address);
    gpu.free(address - misalign);
  }

  DriverDouble& gpu;
  Context context;
  mkrt_device_memory_extension extension{};
  std::map<uint64_t, uint64_t> given;  // address to size
  uint64_t limit = UINT64_MAX;         // of one piece
  uint64_t misalign = 0;
};

}  // namespace

TEST_CASE("device memory comes from the application where it supplies it, and goes back there") {
  Gpu gpu;
  const Work work;
  Pool pool(gpu);
  {
    const OnGpu on(gpu, work, pool.rank(), {}, &pool.extension);
    CHECK(pool.given.size() == 2);  // weights and session
    on.session->trace(2);
    CHECK(pool.given.size() == 3);
    const std::vector<uint32_t> begin = random_state();
    write_state(*on.session, work, begin);
    run(*on.session, request(entry_step, 2));
    CHECK(read_state(*on.session, work) == host_result(work, begin, 2));
    pool.limit = 100;
    const base::Failure failure = failure_of([&] { on.executable->create_session(); });
    CHECK(failure.status() == MKRT_ERROR_OUT_OF_MEMORY);
    CHECK(failure.message().find("bytes are needed for a session") != std::string::npos);
    pool.limit = UINT64_MAX;
  }
  CHECK(pool.given.empty());
  pool.misalign = 16;
  CHECK(failure_of([&] { OnGpu(gpu, work, pool.rank(), {}, &pool.extension); }).status() == MKRT_ERROR_ARGUMENT);
  CHECK(pool.given.empty());
}

TEST_CASE("what the budget allows and the device or the application refuses does not count against the budget") {
  Gpu gpu;
  const Work work(100'000);
  constexpr uint64_t budget = 200'096 + 30'000;  // one session beside the weights
  const auto check_refused = [](device::Executable& executable, mkrt_status status, const std::string& reason) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      const base::Failure failure = failure_of([&] { executable.create_session(); });
      CHECK(failure.status() == status);
      CHECK_MESSAGE(failure.message().find(reason) != std::string::npos, failure.message());
    }
  };
  {
    const auto mesh = make_mesh(gpu, rank_desc());
    const auto executable = mesh->load(work.program, {.memory_budget = budget});
    gpu.set_free_memory(0, 1000);
    check_refused(*executable, MKRT_ERROR_OUT_OF_MEMORY, "1000 of the device's");
    gpu.set_free_memory(0, SimulatedDevice{}.memory);
    const auto session = executable->create_session();
    check_refused(*executable, MKRT_ERROR_OUT_OF_MEMORY, "of the memory budget are in use");
  }
  Pool pool(gpu);
  const auto mesh = make_mesh(gpu, pool.rank(), &pool.extension);
  const auto executable = mesh->load(work.program, {.memory_budget = budget});
  pool.limit = 1000;
  check_refused(*executable, MKRT_ERROR_OUT_OF_MEMORY, "the application's device memory did not give");
  pool.limit = UINT64_MAX;
  pool.misalign = 16;
  check_refused(*executable, MKRT_ERROR_ARGUMENT, "not aligned");
  pool.misalign = 0;
  const auto session = executable->create_session();
  check_refused(*executable, MKRT_ERROR_OUT_OF_MEMORY, "of the memory budget are in use");
}

TEST_CASE("a trace has every tile once, in order, and only of the last execute") {
  Gpu gpu;
  const Work work;
  const OnGpu on(gpu, work);
  device::Session& session = *on.session;
  constexpr uint32_t workers = 4;
  mkrt_trace_tile tile{};
  CHECK(session.read_trace(0, 1, &tile, nullptr) == MKRT_ERROR_ARGUMENT);  // nothing is traced yet
  constexpr uint32_t room = 32;
  session.trace(room);
  run(session, request(entry_step, 2));
  std::set<std::tuple<uint32_t, uint32_t, uint64_t>> tiles;
  for (uint32_t worker = 0; worker < workers; ++worker) {
    std::vector<mkrt_trace_tile> traced(room);
    REQUIRE(session.read_trace(worker, room, traced.data(), nullptr) == MKRT_OK);
    uint64_t before = 0;
    for (const mkrt_trace_tile& one : traced) {
      if (one.time[MKRT_TRACE_FETCHED] == 0) continue;
      CHECK(one.time[MKRT_TRACE_FETCHED] >= before);
      before = one.time[MKRT_TRACE_SIGNALLED];
      tiles.insert({one.step, one.record, one.tile});
    }
  }
  CHECK(tiles.size() == 2 * 4 * width);
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(session.read_trace(workers, 1, &tile, &error) == MKRT_ERROR_ARGUMENT);
  CHECK(session.read_trace(0, room + 1, &tile, &error) == MKRT_ERROR_ARGUMENT);
  run(session, request(entry_count));  // one tile
  std::vector<mkrt_trace_tile> traced(2);
  REQUIRE(session.read_trace(0, 2, traced.data(), nullptr) == MKRT_OK);
  CHECK(traced[0].time[MKRT_TRACE_FETCHED] != 0);
  CHECK(traced[1].time[MKRT_TRACE_FETCHED] == 0);
  session.trace(0);
  CHECK(session.read_trace(0, 1, &tile, nullptr) == MKRT_ERROR_ARGUMENT);
  run(session, request(entry_count));
}

TEST_CASE("a session whose image has no kernel that traces says so, and goes on without") {
  Gpu gpu;
  const Work work;
  FakeImage image(work.program->isa.fingerprint);
  image.has_traced_kernel = false;
  work.write_image(image);
  const OnGpu on(gpu, work);
  const base::Failure failure = failure_of([&] { on.session->trace(4); });
  CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(failure.message().find("has no kernel mkrt_run_traced") != std::string::npos);
  on.session->trace(0);
  mkrt_trace_tile tile{};
  CHECK(on.session->read_trace(0, 1, &tile, nullptr) == MKRT_ERROR_ARGUMENT);
  run(*on.session, request(entry_step, 2));
}

TEST_CASE("a program with more records than a launch has room for is refused") {
  Gpu gpu;
  host::test::ScheduleBuilder builder;
  builder.entry("long");
  for (int i = 0; i <= MKRT_LAUNCH_RECORDS; ++i) builder.record("", host::test::op_nothing);
  const auto mesh = make_mesh(gpu, rank_desc());
  const base::Failure failure = failure_of([&] { mesh->load(builder.finish(), {}); });
  CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(failure.message().find("1025 records") != std::string::npos);
}
