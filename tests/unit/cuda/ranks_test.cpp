// Several ranks on simulated GPUs: sharing a device, with a device each, and both.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "fixture.hpp"

using namespace mkrt;
using namespace mkrt::cuda;
using namespace mkrt::cuda::test;
using host::test::request;

namespace {

// Where three GPUs' ranks are, in the ways that matter.
const std::vector<std::vector<mkrt_rank_desc>> placements = {
    rank_descs({0, 0}),    rank_descs({0, 1}),    rank_descs({0, 0, 0}),
    rank_descs({0, 1, 2}), rank_descs({1, 0, 1}), rank_descs({2, 2, 0, 0}),
};

struct ThreeGpus : Gpu {
  ThreeGpus() : Gpu(std::vector<SimulatedDevice>(3)) {}
};

size_t device_count(RankDescs ranks) {
  std::set<uint32_t> devices;
  for (const mkrt_rank_desc& rank : ranks) devices.insert(rank.ordinal);
  return devices.size();
}

void check_works_after_reset(device::Session& session, const Work& work) {
  CHECK(session.execute(request(entry_count), nullptr, nullptr) == MKRT_ERROR_SESSION_FAILED);
  mkrt_error error = MKRT_ERROR_INIT;
  const mkrt_status reset = session.reset(&error);
  REQUIRE_MESSAGE(reset == MKRT_OK, error.message);
  const std::vector<uint32_t> begin = random_state(work.program->rank_count);
  write_state(session, work, begin);
  run(session, request(entry_step, 2));
  CHECK(read_state(session, work) == host_result(work, begin, 2));
}

}  // namespace

TEST_CASE("ranks give the host device's results wherever they are, in both queue modes, over steps and executes") {
  for (const auto& ranks : placements) {
    CAPTURE(ranks.size());
    CAPTURE(device_count(ranks));
    ThreeGpus gpu;
    const auto count = static_cast<uint32_t>(ranks.size());
    const Work work(4096, count);
    const OnGpu on(gpu, work, ranks);
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      const std::vector<uint32_t> begin = random_state(count);
      write_state(*on.session, work, begin);
      for (const uint32_t steps : {5u, 1u, 2u}) enqueue(*on.session, request(entry_step, steps, mode, steps % 2));
      run(*on.session, request(entry_step, 3, mode));
      CHECK(read_state(*on.session, work) == host_result(work, begin, 11));
    }
    run(*on.session, request(entry_count, 3));
    for (uint32_t rank = 0; rank < count; ++rank) CHECK(read_total(*on.session, work, rank) == 3);
    CHECK(gpu.launches().size() == 9 * device_count(ranks));  // one a device for each execute
    CHECK(on.session->reset(nullptr) == MKRT_OK);
    CHECK(read_state(*on.session, work) == std::vector<uint32_t>(size_t{width} * count, 0));
  }
}

TEST_CASE("ranks share a device's SMs in equal parts or as they say, and an execute's limit is for each of them") {
  Gpu gpu(std::vector<SimulatedDevice>{{.multiprocessors = 11}});
  const Work work(4096, 3);
  std::vector<mkrt_rank_desc> ranks = rank_descs({0, 0, 0});
  const auto shares = [&] {
    const auto mesh = make_mesh(gpu, ranks);
    std::vector<uint32_t> workers;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      mkrt_device_info info{};
      mesh->describe(rank, &info);
      workers.push_back(info.worker_count);
    }
    return workers;
  };
  CHECK(shares() == std::vector<uint32_t>{3, 3, 3});
  ranks[1].worker_count = 5;
  CHECK(shares() == std::vector<uint32_t>{3, 5, 3});
  {
    const OnGpu on(gpu, work, ranks);
    run(*on.session, request(entry_count));
    run(*on.session, request(entry_count, 1, MKRT_QUEUE_STATIC, 4));
    CHECK(gpu.launches()[0].grid == 11);
    CHECK(gpu.launches()[1].grid == 10);
  }
  ranks[0].worker_count = 6;
  const base::Failure none_left = failure_of([&] { make_mesh(gpu, ranks); });
  CHECK(none_left.status() == MKRT_ERROR_ARGUMENT);
  CHECK(none_left.message() ==
        "rank 2 (CUDA device 0, Simulated GPU) is one of 3 ranks of a device that has only 11 SMs for them");
  ranks[2].worker_count = 1;
  CHECK(failure_of([&] { make_mesh(gpu, ranks); }).status() == MKRT_ERROR_ARGUMENT);
}

TEST_CASE("devices without a path to each other are refused by name") {
  Gpu gpu({{.name = "First"}, {.name = "Second"}, {.name = "Third"}});
  const std::vector<mkrt_rank_desc> ranks = rank_descs({0, 2, 1});
  const auto refusal = [&] {
    const base::Failure failure = failure_of([&] { make_mesh(gpu, ranks); });
    CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
    CHECK(gpu.live_objects() == 0);
    return failure.message();
  };
  gpu.set_path(2, 1, false, false);
  CHECK(refusal() ==
        "rank 1 (CUDA device 2, Third) and rank 2 (CUDA device 1, Second) cannot be in one mesh: the first has no path "
        "to the second's memory");
  gpu.set_path(2, 1, true, false);
  CHECK(refusal().find("rank 1 (CUDA device 2, Third) and rank 2 (CUDA device 1, Second) cannot be in one mesh: the "
                       "path from the first to the second has no atomic additions") == 0);
  gpu.set_path(2, 1, true, true);
  make_mesh(gpu, ranks);
  gpu.forget("memory_map");
  CHECK(refusal() == "the CUDA driver lacks cuMemMap, which ranks on several devices need");
}

TEST_CASE("a device that cannot map memory runs ranks that share it, and no others") {
  Gpu gpu({{.name = "First"}, {.name = "Second", .virtual_memory = false}});
  const base::Failure apart = failure_of([&] { make_mesh(gpu, rank_descs({0, 1})); });
  CHECK(apart.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(apart.message() == "rank 1 (CUDA device 1, Second) cannot map memory of other devices");
  const Work work(4096, 2);
  const OnGpu on(gpu, work, rank_descs({1, 1}));
  const std::vector<uint32_t> begin = random_state(2);
  write_state(*on.session, work, begin);
  run(*on.session, request(entry_step, 3));
  CHECK(read_state(*on.session, work) == host_result(work, begin, 3));
}

TEST_CASE("the application's contexts and streams are used and left as they were, on several devices") {
  ThreeGpus gpu;
  const Work work(4096, 3);
  const Context contexts[] = {gpu.create_context(1), gpu.create_context(2)};
  const Stream streams[] = {gpu.create_stream(contexts[0]), gpu.create_stream(contexts[1])};
  std::vector<mkrt_rank_desc> ranks(3, rank_desc());
  for (size_t i = 0; i < 3; ++i) {
    ranks[i].context = contexts[i % 2];
    ranks[i].stream = streams[i % 2];
  }
  gpu.push(gpu.create_context(0));
  const std::vector<Context> before = gpu.context_stack();
  {
    const OnGpu on(gpu, work, ranks);
    CHECK(gpu.context_stack() == before);
    const std::vector<uint32_t> begin = random_state(3);
    write_state(*on.session, work, begin);
    on.session->trace(2);
    run(*on.session, request(entry_step, 3));
    CHECK(read_state(*on.session, work) == host_result(work, begin, 3));
    enqueue(*on.session, request(entry_stuck));
    on.session->cancel();
    CHECK(gpu.context_stack() == before);
  }
  CHECK(gpu.context_stack() == before);
  CHECK(gpu.live_objects() == 0);
  for (const Launch& launch : gpu.launches()) CHECK(std::count(streams, streams + 2, launch.stream) == 1);
  gpu.pop();

  // Ranks of one device are one launch.
  ranks[2].stream = gpu.create_stream(contexts[0]);
  const base::Failure stream = failure_of([&] { make_mesh(gpu, ranks); });
  CHECK(stream.status() == MKRT_ERROR_ARGUMENT);
  CHECK(stream.rank() == 2);
  CHECK(stream.message().find("shares its device with rank 0 and has another stream") != std::string::npos);
  ranks[2].stream = nullptr;
  ranks[2].context = gpu.create_context(1);
  const base::Failure context = failure_of([&] { make_mesh(gpu, ranks); });
  CHECK(context.status() == MKRT_ERROR_ARGUMENT);
  CHECK(context.message().find("shares its device with rank 0 and has another context") != std::string::npos);
}

TEST_CASE("an application's device memory serves ranks that share a device; on several devices it is refused") {
  ThreeGpus gpu;
  const Context context = gpu.create_context(0);
  struct Pool {
    DriverDouble& gpu;
    Context context;
    std::map<uint64_t, uint32_t> given;  // address to rank
  } pool{gpu, context, {}};
  mkrt_device_memory_extension extension{};
  extension.user_data = &pool;
  extension.allocate = [](void* user_data, uint32_t rank, uint64_t size, uint64_t) {
    Pool& mine = *static_cast<Pool*>(user_data);
    const uint64_t address = mine.gpu.allocate(mine.context, size);
    mine.given[address] = rank;
    return address;
  };
  extension.release = [](void* user_data, uint32_t rank, uint64_t address, uint64_t) {
    Pool& mine = *static_cast<Pool*>(user_data);
    CHECK(mine.given.at(address) == rank);
    mine.given.erase(address);
    mine.gpu.free(address);
  };
  std::vector<mkrt_rank_desc> ranks(2, rank_desc());
  ranks[0].context = ranks[1].context = context;
  const Work work(4096, 2);
  {
    const OnGpu on(gpu, work, ranks, {}, &extension);
    CHECK(pool.given.size() == 4);  // weights and session of each rank
    const std::vector<uint32_t> begin = random_state(2);
    write_state(*on.session, work, begin);
    run(*on.session, request(entry_step, 3));
    CHECK(read_state(*on.session, work) == host_result(work, begin, 3));
  }
  CHECK(pool.given.empty());
  const base::Failure apart = failure_of([&] { make_mesh(gpu, rank_descs({0, 1}), &extension); });
  CHECK(apart.status() == MKRT_ERROR_UNSUPPORTED);
  CHECK(apart.message().find("MKRT_EXTENSION_DEVICE_MEMORY") != std::string::npos);
  CHECK(gpu.live_objects() == 0);
}

TEST_CASE("the memory budget is each rank's, and what it bounds is whole pages of mapped memory") {
  ThreeGpus gpu;
  const Work work(100'000, 2);
  const auto mesh = make_mesh(gpu, rank_descs({0, 1}));
  CHECK(failure_of([&] { mesh->load(work.program, {.memory_budget = 150'000}); }).rank() == 0);
  constexpr uint64_t budget = 200'096 + 65'536 + 30'000;
  const auto executable = mesh->load(work.program, {.memory_budget = budget});
  {
    auto first = executable->create_session();
    const base::Failure second = failure_of([&] { executable->create_session(); });
    CHECK(second.status() == MKRT_ERROR_OUT_OF_MEMORY);
    CHECK(second.message() ==
          "65536 bytes are needed for a session, and 265632 of the 295632 bytes of the memory budget are in "
          "use");
    run(*first, request(entry_count));
    // Until memory is back at the driver it counts.
    int releases = 0;
    gpu.on_release([&] {
      ++releases;
      CHECK(failure_of([&] { executable->create_session(); }).status() == MKRT_ERROR_OUT_OF_MEMORY);
    });
    first.reset();
    gpu.on_release(nullptr);
    CHECK(releases == 2);
  }
  CHECK(executable->create_session() != nullptr);  // and what the first took is there again
  for (const int device : {0, 1}) CHECK(gpu.most_memory(device) <= budget);
  gpu.set_free_memory(1, 1000);
  const base::Failure full = failure_of([&] { executable->create_session(); });
  CHECK(full.status() == MKRT_ERROR_OUT_OF_MEMORY);
  CHECK(full.message() == "65536 bytes are needed for a session, and 1000 of the device's 1073741824 bytes are free");
  gpu.set_free_memory(1, SimulatedDevice{}.memory);
  CHECK(executable->create_session() != nullptr);  // what was refused does not count
}

TEST_CASE("a rank that waits in vain stops all, and the sentence names it and what it waited for") {
  for (const auto& ranks : placements) {
    ThreeGpus gpu;
    const Work work(4096, static_cast<uint32_t>(ranks.size()));
    const OnGpu on(gpu, work, ranks);
    device::Session& session = *on.session;
    enqueue(session, request(entry_count));
    const uint64_t apart = enqueue(session, request(entry_apart, 2, MKRT_QUEUE_DYNAMIC, 0, 250 * millisecond));
    uint64_t last = apart;
    session.execute(request(entry_count), &last, nullptr);  // refused, or dropped
    mkrt_error error = MKRT_ERROR_INIT;
    CHECK(session.wait(last, no_limit, &error) == MKRT_ERROR_DEADLINE);
    CHECK(error.rank == 1);
    CHECK(error.record == 1);
    CHECK(error.step == 0);
    CHECK(error.value_seen == 0);
    CHECK(error.value_wanted == 1);
    const std::string message = error.message;
    CHECK(message.find("rank 1, SM " + std::to_string(error.worker) +
                       ": record 1 \"await\", tile 0, step 0: waited ") == 0);
    CHECK(message.find("for counter \"came\"[0] to reach 1, saw 0") != std::string::npos);
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) CHECK(read_total(session, work, rank) == 1);
    check_works_after_reset(session, work);
    // A fault says more than the deadlines that follow from it.
    const uint64_t value = enqueue(session, request(entry_fault, 1));
    CHECK(session.wait(value, no_limit, &error) == MKRT_ERROR_FAULT);
    CHECK(error.record == 2);
    check_works_after_reset(session, work);
  }
}

TEST_CASE("a rank whose device is busy is waited for, and named by those who waited too long") {
  ThreeGpus gpu;
  const Work work(4096, 2);
  const Work other;
  std::vector<mkrt_rank_desc> ranks = rank_descs({0, 1});
  ranks[1].context = gpu.create_context(1);
  ranks[1].stream = gpu.create_stream(static_cast<Context>(ranks[1].context));
  const OnGpu alone(gpu, other, ranks[1]);
  const OnGpu on(gpu, work, ranks);
  mkrt_error error = MKRT_ERROR_INIT;
  {
    Hold holding;
    enqueue(*alone.session, request(entry_hold));
    holding.wait_until_held();
    const uint64_t value = enqueue(*on.session, request(entry_count, 1, MKRT_QUEUE_DYNAMIC, 0, 500 * millisecond));
    CHECK(on.session->reset(nullptr) == MKRT_ERROR_BUSY);
    CHECK(on.session->wait(value, 5 * millisecond, nullptr) == MKRT_ERROR_TIMEOUT);
    holding.release();
    CHECK(on.session->wait(value, no_limit, nullptr) == MKRT_OK);
  }
  CHECK(read_total(*on.session, work, 0) == 1);
  Hold holding;
  enqueue(*alone.session, request(entry_hold));
  holding.wait_until_held();
  const uint64_t value = enqueue(*on.session, request(entry_count, 1, MKRT_QUEUE_DYNAMIC, 0, 5 * millisecond));
  CHECK(on.session->wait(value, 30 * millisecond, &error) == MKRT_ERROR_TIMEOUT);  // rank 1 has yet to come and leave
  holding.release();
  CHECK(on.session->wait(value, no_limit, &error) == MKRT_ERROR_DEADLINE);
  CHECK(error.rank == 0);
  CHECK(error.record == -1);
  const std::string message = error.message;
  CHECK(message.find("rank 0: waited ") == 0);
  CHECK(message.find(" us for all ranks to begin the execute, 1 of 2 did") != std::string::npos);
  check_works_after_reset(*on.session, work);
}

TEST_CASE("a cancel stops all ranks, and what waits behind it") {
  for (const auto& ranks : placements) {
    ThreeGpus gpu;
    const Work work(4096, static_cast<uint32_t>(ranks.size()));
    const OnGpu on(gpu, work, ranks);
    enqueue(*on.session, request(entry_apart, 1000));
    const uint64_t value = enqueue(*on.session, request(entry_step, 1000));
    std::thread([&] { on.session->cancel(); }).join();
    mkrt_error error = MKRT_ERROR_INIT;
    CHECK(on.session->wait(value, no_limit, &error) == MKRT_ERROR_CANCELLED);
    check_works_after_reset(*on.session, work);
    enqueue(*on.session, request(entry_apart, 1000));  // and goes while it is in flight
  }
}

TEST_CASE("where one rank's launch fails, those before it leave, and the session says so until it is reset") {
  ThreeGpus gpu;
  const Work work(4096, 3);
  const OnGpu on(gpu, work, rank_descs({0, 1, 2}));
  device::Session& session = *on.session;
  run(session, request(entry_count));
  mkrt_error error = MKRT_ERROR_INIT;
  // Make a context current, launch, go back: the first device's failure leaves nothing behind.
  gpu.fail_call(2, 999);
  CHECK(session.execute(request(entry_count), nullptr, &error) == MKRT_ERROR_DRIVER);
  CHECK(gpu.failed_call() == "launch");
  CHECK(error.rank == 0);
  gpu.fail_none();
  run(session, request(entry_count));
  for (const uint32_t device : {1u, 2u}) {
    CAPTURE(device);
    const uint64_t before = enqueue(session, request(entry_step, 2));
    const auto begin = std::chrono::steady_clock::now();
    gpu.fail_call(2 + 3 * device, 999);
    uint64_t value = 4711;
    CHECK(session.execute(request(entry_count), &value, &error) == MKRT_ERROR_DRIVER);
    CHECK(value == 4711);
    CHECK(gpu.failed_call() == "launch");
    CHECK(error.rank == static_cast<int32_t>(device));
    CHECK(error.driver_code == 999);
    gpu.fail_none();
    CHECK(session.wait(before, no_limit, &error) == MKRT_ERROR_DRIVER);
    CHECK(error.rank == static_cast<int32_t>(device));
    check_works_after_reset(session, work);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));  // the deadline is 60
  }
}

TEST_CASE("a device that the driver gave up on stops the others") {
  ThreeGpus gpu;
  const Work work(4096, 2);
  const OnGpu on(gpu, work, rank_descs({0, 1}));
  gpu.break_next_launch(700);  // rank 0's
  const uint64_t value = enqueue(*on.session, request(entry_step));
  mkrt_error error = MKRT_ERROR_INIT;
  CHECK(on.session->wait(value, no_limit, &error) == MKRT_ERROR_DRIVER);
  CHECK(error.driver_code == 700);
  CHECK(error.rank == 0);
  uint64_t reached = 0;
  CHECK(on.session->query(&reached, nullptr) == MKRT_ERROR_DRIVER);
  CHECK(on.session->reset(&error) == MKRT_ERROR_DRIVER);  // the context is lost
}

TEST_CASE("launches of many sessions come in one order on all devices, so that no two wait for each other") {
  ThreeGpus gpu;
  const Work work(4096, 3);
  const OnGpu on(gpu, work, rank_descs({0, 1, 2}));
  constexpr uint32_t executes = 40;
  std::vector<std::unique_ptr<device::Session>> sessions;
  for (int i = 0; i < 3; ++i) sessions.push_back(on.executable->create_session());
  std::vector<mkrt_status> outcomes(sessions.size(), MKRT_OK);
  std::vector<mkrt_error> errors(sessions.size(), MKRT_ERROR_INIT);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sessions.size(); ++i) {
    threads.emplace_back([&, i] {
      // Far more than all of it takes, and the end of launches that wait for each other.
      const device::ExecuteRequest limited = request(entry_count, 1, MKRT_QUEUE_DYNAMIC, 0, 10'000 * millisecond);
      uint64_t value = 0;
      for (uint32_t n = 0; n < executes && outcomes[i] == MKRT_OK; ++n) {
        outcomes[i] = sessions[i]->execute(limited, &value, &errors[i]);
      }
      const mkrt_status ended = sessions[i]->wait(value, no_limit, &errors[i]);
      if (ended != MKRT_OK) outcomes[i] = ended;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < sessions.size(); ++i) CHECK_MESSAGE(outcomes[i] == MKRT_OK, errors[i].message);
  REQUIRE(std::all_of(outcomes.begin(), outcomes.end(), [](mkrt_status status) { return status == MKRT_OK; }));
  for (const auto& session : sessions) {
    for (uint32_t rank = 0; rank < 3; ++rank) CHECK(read_total(*session, work, rank) == executes);
  }
  std::map<Stream, std::vector<uint64_t>> orders;  // of launches on a device, by their control words
  for (const Launch& launch : gpu.launches()) {
    orders[launch.stream].push_back(launch.parameters.control);
  }
  CHECK(orders.size() == 3);
  // Where one device has two launches of one session in a row, all have.
  const std::vector<uint64_t>& first = orders.begin()->second;
  for (const auto& [stream, order] : orders) {
    REQUIRE(order.size() == 3 * executes);
    for (size_t i = 1; i < order.size(); ++i) CHECK((order[i] == order[i - 1]) == (first[i] == first[i - 1]));
  }
}

TEST_CASE("a trace has the workers of all ranks, one rank after the other") {
  for (const auto& ranks : {rank_descs({0, 0}), rank_descs({0, 1})}) {
    ThreeGpus gpu;
    const Work work(4096, 2);
    const OnGpu on(gpu, work, ranks);
    const uint32_t workers = ranks[1].ordinal == 0 ? 2 : 4;
    constexpr uint32_t room = 64;
    on.session->trace(room);
    run(*on.session, request(entry_step, 2));
    for (uint32_t rank = 0; rank < 2; ++rank) {
      std::set<std::tuple<uint32_t, uint32_t, uint64_t>> tiles;
      for (uint32_t worker = rank * workers; worker < (rank + 1) * workers; ++worker) {
        std::vector<mkrt_trace_tile> traced(room);
        REQUIRE(on.session->read_trace(worker, room, traced.data(), nullptr) == MKRT_OK);
        for (const mkrt_trace_tile& tile : traced) {
          if (tile.time[MKRT_TRACE_FETCHED] != 0) tiles.insert({tile.step, tile.record, tile.tile});
        }
      }
      CHECK(tiles.size() == 2 * 4 * width);
    }
    mkrt_trace_tile tile{};
    CHECK(on.session->read_trace(2 * workers, 1, &tile, nullptr) == MKRT_ERROR_ARGUMENT);
    on.session->trace(0);
    run(*on.session, request(entry_count));
  }
}
