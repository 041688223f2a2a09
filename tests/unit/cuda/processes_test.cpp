// Ranks of simulated GPUs in several processes, each of which is a thread with its own contexts on the double.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/report.hpp"
#include "fixture.hpp"
#include "meeting.hpp"

using namespace mkrt;
using namespace mkrt::cuda;
using namespace mkrt::cuda::test;
using host::test::request;

namespace {

// The ordinals of each process's ranks.
using Division = std::vector<std::vector<uint32_t>>;

// GPUs, and for each process the ranks that it makes, on contexts of its own.
struct World {
  explicit World(const Division& division, std::vector<SimulatedDevice> devices = std::vector<SimulatedDevice>(3),
                 bool passes_descriptors = true)
      : gpu(std::move(devices)), meeting(static_cast<uint32_t>(division.size()), passes_descriptors) {
    for (const auto& ordinals : division) {
      std::vector<Context> own(8, nullptr);
      auto& ranks = descs.emplace_back();
      for (const uint32_t ordinal : ordinals) {
        if (own[ordinal] == nullptr) own[ordinal] = gpu.create_context(static_cast<int>(ordinal));
        ranks.push_back(rank_desc());
        ranks.back().context = own[ordinal];
        ++rank_count;
      }
      first.push_back(rank_count - static_cast<uint32_t>(ordinals.size()));
    }
  }
  Context context(uint32_t process) { return static_cast<Context>(descs[process].front().context); }

  Gpu gpu;
  Meeting meeting;
  std::vector<std::vector<mkrt_rank_desc>> descs;  // by process
  std::vector<uint32_t> first;                     // rank of each process
  uint32_t rank_count = 0;
};

// What a process has.
struct Member {
  std::shared_ptr<device::ProcessGroup> group;
  std::unique_ptr<device::Mesh> mesh;
  std::unique_ptr<device::Executable> executable;
  std::unique_ptr<device::Session> session;

  Member(World& world, uint32_t process, const mkrt_device_memory_extension* device_memory = nullptr) {
    const auto& ranks = world.descs[process];
    const mkrt_process_extension extension = world.meeting.extension(process);
    group = std::make_shared<device::ProcessGroup>(extension, static_cast<uint32_t>(ranks.size()), nullptr);
    group->agree("mkrt_mesh_create", [&] {
      mesh = create_mesh(std::make_shared<base::Hooks>(nullptr), world.gpu.driver(), ranks, device_memory, group);
    });
    mesh->connect();
  }
  Member(World& world, uint32_t process, const Work& work) : Member(world, process) {
    group->agree("mkrt_executable_create", [&] { executable = mesh->load(work.program, {}); });
    session = executable->create_session();
  }

  mkrt_status write(const Work& work, const std::vector<uint32_t>& state, mkrt_error* error = nullptr) const {
    mkrt_status status = MKRT_OK;
    for (uint32_t n = 0; n < group->local_rank_count() && status == MKRT_OK; ++n) {
      const uint32_t rank = group->first_rank() + n;
      status = session->write(rank, work.state, 0, &state[size_t{rank} * width], width * sizeof(uint32_t), error);
    }
    return status;
  }
  // Whether this process's ranks have their parts of `state`.
  bool has(const Work& work, const std::vector<uint32_t>& state) const {
    for (uint32_t n = 0; n < group->local_rank_count(); ++n) {
      const uint32_t rank = group->first_rank() + n;
      uint32_t found[width] = {};
      if (session->read(rank, work.state, 0, sizeof(found), found, nullptr) != MKRT_OK) return false;
      if (std::memcmp(found, &state[size_t{rank} * width], sizeof(found)) != 0) return false;
    }
    return true;
  }
};

struct Outcome {
  bool made = true;  // all that can execute
  mkrt_status status = MKRT_OK;
  mkrt_error error = MKRT_ERROR_INIT;
  std::string message() const { return error.message; }
  bool has(const std::string& words) const { return message().find(words) != std::string::npos; }
};

Outcome run_to_end(device::Session& session, const device::ExecuteRequest& what) {
  Outcome outcome;
  uint64_t value = 0;
  outcome.status = session.execute(what, &value, &outcome.error);
  if (outcome.status == MKRT_OK) outcome.status = session.wait(value, no_limit, &outcome.error);
  return outcome;
}

// The failure that making something throws, in each process.
std::vector<base::Failure> failures_of(World& world, const std::function<void(uint32_t)>& make) {
  std::vector<base::Failure> failures(world.descs.size(), base::Failure(MKRT_OK, ""));
  world.meeting.run([&](uint32_t process) {
    try {
      make(process);
    } catch (const base::Failure& failure) {
      failures[process] = failure;
    }
  });
  CHECK(world.gpu.live_objects() == 0);
  return failures;
}

const Division two = {{0}, {1}};
const std::vector<Division> divisions = {{{0}, {0}}, {{0}, {1}}, {{0, 0}, {1}}, {{2}, {0, 1}}, {{0}, {0}, {1}}};

device::ExecuteRequest endless(uint64_t limit_ns) {
  return request(entry_step, 100'000'000, MKRT_QUEUE_DYNAMIC, 0, limit_ns);
}

// Every process decodes, `fail` comes to an end in each, and after a reset all decode again. How it ended in each.
std::vector<Outcome> check_recovery(World& world, const Work& work,
                                    const std::function<Outcome(uint32_t, Member&)>& fail) {
  std::vector<Outcome> outcomes(world.descs.size());
  const std::vector<uint32_t> begin = random_state(world.rank_count);
  const std::vector<uint32_t> expected = host_result(work, begin, 3);
  world.meeting.run([&](uint32_t process) {
    Member member(world, process, work);
    CHECK(member.write(work, begin) == MKRT_OK);
    CHECK(run_to_end(*member.session, request(entry_step, 3)).status == MKRT_OK);
    outcomes[process] = fail(process, member);
    CHECK(member.session->execute(request(entry_count), nullptr, nullptr) == MKRT_ERROR_SESSION_FAILED);
    mkrt_error error = MKRT_ERROR_INIT;
    const mkrt_status reset = member.session->reset(&error);
    CHECK_MESSAGE(reset == MKRT_OK, error.message);
    CHECK(member.write(work, begin) == MKRT_OK);
    const Outcome again = run_to_end(*member.session, request(entry_step, 3));
    CHECK_MESSAGE(again.status == MKRT_OK, again.message());
    CHECK(member.has(work, expected));
  });
  CHECK(world.gpu.live_objects() == 0);
  return outcomes;
}

// A process ends: its work is gone without a word.
void end(World& world, uint32_t process) {
  for (const mkrt_rank_desc& rank : world.descs[process]) world.gpu.lose(static_cast<Context>(rank.context), 999);
  for (const mkrt_rank_desc& rank : world.descs[process]) world.gpu.wait_for(static_cast<Context>(rank.context));
  world.meeting.end(process);
}

}  // namespace

TEST_CASE(
    "ranks in several processes give the host device's results, sharing a GPU or not, with either kind of handle") {
  for (const Division& division : divisions) {
    for (const bool fabric : {false, true}) {
      CAPTURE(division.size());
      CAPTURE(fabric);
      const SimulatedDevice device{.posix_handles = !fabric, .fabric_handles = true};
      World world(division, std::vector<SimulatedDevice>(3, device), !fabric);
      const Work work(4096, world.rank_count);
      const std::vector<uint32_t> begin = random_state(world.rank_count);
      const std::vector<uint32_t> expected = host_result(work, begin, 8);
      world.meeting.run([&](uint32_t process) {
        Member member(world, process, work);
        for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
          CHECK(member.write(work, begin) == MKRT_OK);
          for (const uint32_t steps : {5u, 1u}) enqueue(*member.session, request(entry_step, steps, mode, steps % 2));
          CHECK(run_to_end(*member.session, request(entry_step, 2, mode)).status == MKRT_OK);
          CHECK(member.has(work, expected));
          CHECK(member.session->reset(nullptr) == MKRT_OK);
          CHECK(member.has(work, std::vector<uint32_t>(begin.size(), 0)));
        }
        for (uint32_t n = 0; n < 3; ++n) CHECK(run_to_end(*member.session, request(entry_count)).status == MKRT_OK);
        CHECK(read_total(*member.session, work, member.group->first_rank()) == 3);
      });
      CHECK(world.gpu.live_objects() == 0);
    }
  }
}

TEST_CASE("processes agree on the distance between ranks, whatever each of them would take") {
  // The first would have smaller parts, in two ways.
  const std::vector<SimulatedDevice> devices = {{.granularity = 4096}, {.multiprocessors = 16, .granularity = 8192}};
  World world({{0}, std::vector<uint32_t>(15, 1)}, devices);
  const Work work(4096, world.rank_count);
  const std::vector<uint32_t> begin = random_state(world.rank_count);
  const std::vector<uint32_t> expected = host_result(work, begin, 2);
  world.meeting.run([&](uint32_t process) {
    Member member(world, process, work);
    CHECK(member.write(work, begin) == MKRT_OK);
    CHECK(run_to_end(*member.session, request(entry_step, 2)).status == MKRT_OK);
    CHECK(member.has(work, expected));
  });
  CHECK(world.gpu.live_objects() == 0);
}

TEST_CASE("sessions of several processes run in the order in which all execute them, and trace their own ranks") {
  World world({{0}, {0, 1}});
  const Work work(4096, 3);
  world.meeting.run([&](uint32_t process) {
    Member member(world, process, work);
    auto other = member.executable->create_session();
    member.session->trace(8);
    uint64_t values[2] = {};
    for (int i = 0; i < 20; ++i) {
      values[0] = enqueue(*member.session, request(entry_count));
      if (i % 3 == 0) values[1] = enqueue(*other, request(entry_step));
      if (i % 7 == static_cast<int>(process)) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    CHECK(member.session->wait(values[0], no_limit, nullptr) == MKRT_OK);
    CHECK(other->wait(values[1], no_limit, nullptr) == MKRT_OK);
    for (uint32_t n = 0; n < member.group->local_rank_count(); ++n) {
      CHECK(read_total(*member.session, work, member.group->first_rank() + n) == 20);
    }
    mkrt_device_info info{};
    member.mesh->describe(member.group->first_rank(), &info);
    mkrt_trace_tile tile{};
    CHECK(member.session->read_trace(0, 1, &tile, nullptr) == MKRT_OK);
    CHECK(tile.time[MKRT_TRACE_FETCHED] != 0);
  });
  CHECK(world.gpu.live_objects() == 0);
}

TEST_CASE("ranks of several processes divide the SMs of a GPU that they share") {
  {
    World world({{0}, {0, 1}, {0}}, std::vector<SimulatedDevice>(2, SimulatedDevice{.multiprocessors = 12}));
    world.descs[2][0].worker_count = 2;
    std::vector<std::vector<uint32_t>> workers(3);
    const auto make = [&](uint32_t process) {
      const Member member(world, process);
      for (uint32_t n = 0; n < member.group->local_rank_count(); ++n) {
        mkrt_device_info info{};
        member.mesh->describe(member.group->first_rank() + n, &info);
        workers[process].push_back(info.worker_count);
      }
    };
    world.meeting.run(make);
    CHECK(workers == std::vector<std::vector<uint32_t>>{{5}, {5, 12}, {2}});
  }

  World full(Division{{0}, {0}});
  for (auto& ranks : full.descs) ranks[0].worker_count = 3;  // of 4
  for (const base::Failure& failure : failures_of(full, [&](uint32_t process) { Member(full, process); })) {
    CHECK(failure.status() == MKRT_ERROR_ARGUMENT);
    CHECK(failure.message().find("is one of 2 ranks of a device that has only 4 SMs for them") != std::string::npos);
  }
}

TEST_CASE("what keeps processes from each other's memory is refused in all of them, and the sentence says what it is") {
  const auto refusals = [](World& world, const std::string& words,
                           const mkrt_device_memory_extension* memory = nullptr) {
    for (const base::Failure& failure : failures_of(world, [&](uint32_t process) { Member(world, process, memory); })) {
      CAPTURE(failure.message());
      CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
      CHECK(failure.message().find(words) != std::string::npos);
    }
  };
  for (const char* function : {"memory_export", "memory_import"}) {
    World world(two);
    world.gpu.forget(function);
    refusals(world, std::string("the CUDA driver lacks cuMem") + (function[7] == 'e' ? "ExportTo" : "ImportFrom") +
                        "ShareableHandle, which ranks in several processes need");
  }
  {
    World world(two, {{}, {.virtual_memory = false}});
    refusals(world, "cannot map memory of other processes");
  }
  {
    World world(two, {{.posix_handles = false, .fabric_handles = true}, {}});
    refusals(world, "have no kind of handle in common");
  }
  {
    World world(two, {{.fabric_handles = true}, {}}, false);
    refusals(world, "the exchange between the processes passes no file descriptors");
  }
  {
    World world(two);
    world.gpu.set_path(1, 0, true, false);
    refusals(
        world,
        "rank 1 (CUDA device 1, Simulated GPU) and rank 0 (CUDA device 0, Simulated GPU) of process 0 cannot be in "
        "one mesh: the path from the first to the second has no atomic additions");
  }
  {
    World world(two);
    const mkrt_device_memory_extension memory{};
    refusals(world, "MKRT_EXTENSION_DEVICE_MEMORY", &memory);
  }
}

TEST_CASE("a cancel in one process ends the execute in all, whether the others have begun it or not") {
  for (const Division& division : divisions) {
    const auto last = static_cast<uint32_t>(division.size() - 1);
    for (const uint32_t canceller : {0u, last}) {
      for (const bool late : {false, true}) {
        World world(division);
        const Work work(4096, world.rank_count);
        std::atomic<bool> cancelled{false};
        const auto outcomes = check_recovery(world, work, [&](uint32_t process, Member& member) {
          while (late && process != canceller && !cancelled) std::this_thread::yield();
          const uint64_t value = enqueue(*member.session, endless(10'000 * millisecond));
          if (process == canceller) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            member.session->cancel();
            cancelled = true;
          }
          Outcome outcome;
          outcome.status = member.session->wait(value, no_limit, &outcome.error);
          return outcome;
        });
        for (uint32_t process = 0; process < outcomes.size(); ++process) {
          CAPTURE(process);
          CHECK(outcomes[process].status == MKRT_ERROR_CANCELLED);
          CHECK(outcomes[process].message() ==
                (process == canceller ? "the execute was cancelled"
                                      : base::text("process ", canceller, " of the mesh cancelled the execute")));
        }
      }
    }
  }
}

TEST_CASE("a cancel reaches the other processes while the canceller's own launch waits for its turn") {
  World world(two);
  const Work work(4096, 2);
  const Work alone;
  world.descs[1][0].stream = world.gpu.create_stream(world.context(1));
  const auto before = make_mesh(world.gpu, world.descs[1][0]);
  const auto executable = before->load(alone.program, {});
  const auto busy = executable->create_session();
  Hold holding;
  enqueue(*busy, request(entry_hold));
  holding.wait_until_held();
  std::atomic<bool> ended{false};
  world.meeting.run([&](uint32_t process) {
    // What is made on the stream waits for what is there.
    if (process == 1) holding.release();
    Member member(world, process, work);
    if (process == 1) {
      CHECK(busy->wait(1, no_limit, nullptr) == MKRT_OK);
      Hold again;
      enqueue(*busy, request(entry_hold));
      again.wait_until_held();
      const uint64_t value = enqueue(*member.session, endless(10'000 * millisecond));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      member.session->cancel();
      while (!ended) std::this_thread::yield();
      again.release();
      CHECK(member.session->wait(value, no_limit, nullptr) == MKRT_ERROR_CANCELLED);
    } else {
      Outcome outcome = run_to_end(*member.session, endless(5'000 * millisecond));
      CHECK(outcome.status == MKRT_ERROR_CANCELLED);
      CHECK(outcome.message() == "process 1 of the mesh cancelled the execute");
      ended = true;
    }
  });
}

TEST_CASE("a cancel that reaches the canceller's own ranks only is passed on by these") {
  World world(two);
  const Work work(4096, 2);
  const auto outcomes = check_recovery(world, work, [&](uint32_t process, Member& member) {
    const uint64_t value = enqueue(*member.session, endless(10'000 * millisecond));
    if (process == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      world.gpu.fail_call_of_this_thread(3, 999);  // after making the context current and telling the own rank
      member.session->cancel();
      CHECK(world.gpu.failed_call() == "copy_to_device");
      world.gpu.fail_none();
    }
    Outcome outcome;
    outcome.status = member.session->wait(value, no_limit, &outcome.error);
    return outcome;
  });
  CHECK(outcomes[0].status == MKRT_ERROR_CANCELLED);
  CHECK(outcomes[0].message() == "process 1 of the mesh cancelled the execute");
}

TEST_CASE("a tile that waits in vain, and a fault, are reported by all processes, with their place") {
  for (const Division& division : divisions) {
    const uint32_t ranks = World(division).rank_count;
    const Work work(4096, ranks);
    std::optional<World> world(division);
    auto outcomes = check_recovery(*world, work, [&](uint32_t, Member& member) {
      return run_to_end(*member.session, request(entry_apart, 2, MKRT_QUEUE_DYNAMIC, 0, 250 * millisecond));
    });
    for (const Outcome& outcome : outcomes) {
      CAPTURE(outcome.message());
      CHECK(outcome.status == MKRT_ERROR_DEADLINE);
      CHECK(outcome.error.rank >= 1);
      CHECK(outcome.error.record == 1);
      CHECK(outcome.has(": record 1 \"await\", tile 0, step 0: waited "));
    }
    world.reset();
    world.emplace(division);
    outcomes = check_recovery(*world, work, [&](uint32_t process, Member& member) {
      if (process != 0) return run_to_end(*member.session, endless(10'000 * millisecond));
      return run_to_end(*member.session, request(entry_fault));
    });
    for (const Outcome& outcome : outcomes) {
      CAPTURE(outcome.message());
      CHECK(outcome.status == MKRT_ERROR_FAULT);
      CHECK(outcome.error.rank < static_cast<int32_t>(division[0].size()));
    }
  }
}

TEST_CASE("a process that does not execute is missed by the others, and both go on after a reset") {
  World world(two);
  const Work work(4096, 2);
  const auto outcomes = check_recovery(world, work, [&](uint32_t process, Member& member) {
    if (process == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return run_to_end(*member.session, request(entry_step, 1, MKRT_QUEUE_DYNAMIC, 0, 20 * millisecond));
  });
  CHECK(outcomes[0].status == MKRT_ERROR_DEADLINE);
  CHECK(outcomes[0].has("rank 0: waited "));
  CHECK(outcomes[0].has("for all ranks to begin the execute, 1 of 2 did"));
  CHECK(outcomes[1].status == MKRT_ERROR_DEADLINE);
}

TEST_CASE("a process that ends in the middle of an execute is a status on the others, and nothing waits for it") {
  for (const Division& division : divisions) {
    for (const bool watched : {true, false}) {
      World world(division, std::vector<SimulatedDevice>(3, SimulatedDevice{.fabric_handles = true}), watched);
      const Work work(4096, world.rank_count);
      const auto victim = static_cast<uint32_t>(division.size() - 1);
      std::vector<std::atomic<bool>> running(division.size());
      std::atomic<bool> killed{false};
      world.meeting.run([&](uint32_t process) {
        Member member(world, process, work);
        const uint64_t limit = (watched ? 10'000 : 100) * millisecond;
        const uint64_t value = enqueue(*member.session, endless(limit));
        running[process] = true;
        Outcome outcome;
        if (process == victim) {
          while (!std::all_of(running.begin(), running.end(), [](const auto& one) { return one.load(); })) {
            std::this_thread::yield();
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
          end(world, process);
          killed = true;
          return;
        }
        outcome.status = member.session->wait(value, no_limit, &outcome.error);
        CAPTURE(outcome.message());
        CHECK(killed);
        if (!watched) {
          CHECK(outcome.status == MKRT_ERROR_DEADLINE);
          return;
        }
        CHECK(outcome.status == MKRT_ERROR_PEER);
        CHECK(outcome.has(base::text("process ", victim, " (system process ")));
        CHECK(outcome.error.rank == static_cast<int32_t>(world.first[victim]));
        CHECK(member.session->reset(&outcome.error) == MKRT_ERROR_PEER);
        CHECK(outcome.has("has ended"));
        CHECK(run_to_end(*member.session, request(entry_count)).status == MKRT_ERROR_SESSION_FAILED);
        CHECK(read_total(*member.session, work, member.group->first_rank()) == 0);
      });
      CHECK(world.gpu.live_objects() == 0);
    }
  }
}

TEST_CASE("whoever only queries learns that another process has ended") {
  World world(two);
  const Work work(4096, 2);
  std::atomic<bool> running{false};
  world.meeting.run([&](uint32_t process) {
    Member member(world, process, work);
    enqueue(*member.session, endless(3'600'000 * millisecond));  // longer than a test may take
    if (process == 1) {
      while (!running) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return end(world, process);
    }
    running = true;
    Outcome outcome;
    uint64_t reached = 0;
    while ((outcome.status = member.session->query(&reached, &outcome.error)) == MKRT_OK) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(outcome.status == MKRT_ERROR_PEER);
    CHECK(outcome.has("process 1 (system process "));
    CHECK(outcome.error.rank == 1);
  });
  CHECK(world.gpu.live_objects() == 0);
}

TEST_CASE("processes that execute different entries or numbers of steps miss a deadline, and go on after a reset") {
  for (const bool entries : {false, true}) {
    CAPTURE(entries);
    World world(two);
    const Work work(4096, 2);
    const auto outcomes = check_recovery(world, work, [&](uint32_t process, Member& member) {
      const bool odd = process == 1;
      const uint32_t entry = entries && odd ? entry_count : entry_step;
      const uint32_t steps = !entries && odd ? 3 : 2;
      return run_to_end(*member.session, request(entry, steps, MKRT_QUEUE_DYNAMIC, 0, 100 * millisecond));
    });
    for (const Outcome& outcome : outcomes) {
      CAPTURE(outcome.message());
      CHECK(outcome.status == MKRT_ERROR_DEADLINE);
      CHECK(outcome.has("waited "));
    }
  }
}

TEST_CASE("a process that ends when it has done its part is not missed") {
  const Work work(4096, 2);
  for (int round = 0; round < 20; ++round) {
    World world(two);
    world.meeting.run([&](uint32_t process) {
      Member member(world, process, work);
      uint64_t value = 0;
      for (int i = 0; i < 10; ++i) value = enqueue(*member.session, request(entry_step, 3));
      Outcome outcome;
      outcome.status = member.session->wait(value, no_limit, &outcome.error);
      CHECK_MESSAGE(outcome.status == MKRT_OK, outcome.message());
      if (process == 1) world.meeting.end(process);
    });
  }
}

TEST_CASE(
    "a process that destroys a session ends what others execute on it, and is missed by what they execute later") {
  World world(two);
  const Work work(4096, 2);
  std::atomic<bool> running{false};
  world.meeting.run([&](uint32_t process) {
    Member member(world, process, work);
    const auto other = member.executable->create_session();
    if (process == 1) {
      enqueue(*member.session, endless(10'000 * millisecond));
      while (!running) std::this_thread::yield();
      member.session.reset();
    } else {
      const uint64_t value = enqueue(*member.session, endless(10'000 * millisecond));
      running = true;
      Outcome outcome;
      outcome.status = member.session->wait(value, no_limit, &outcome.error);
      CHECK(outcome.status == MKRT_ERROR_CANCELLED);
      CHECK(outcome.message() == "process 1 of the mesh cancelled the execute");
    }
    CHECK(run_to_end(*other, request(entry_step, 2)).status == MKRT_OK);
    if (process == 1) return;
    const Outcome late = run_to_end(*other, request(entry_step, 1, MKRT_QUEUE_DYNAMIC, 0, 30 * millisecond));
    CHECK(late.status == MKRT_ERROR_DEADLINE);
  });
  CHECK(world.gpu.live_objects() == 0);
}

TEST_CASE("a reset is everybody's or nobody's") {
  World world(two);
  const Work work(4096, 2);
  const std::vector<uint32_t> begin = random_state(2);
  Hold holding;
  std::atomic<uint32_t> tried{0};
  world.meeting.run([&](uint32_t process) {
    Member member(world, process, work);
    const auto other = member.executable->create_session();
    const auto reset = [&](device::Session& session) {
      Outcome outcome;
      outcome.status = session.reset(&outcome.error);
      return outcome;
    };
    CHECK(member.write(work, begin) == MKRT_OK);
    // Sessions that are not the same one.
    Outcome outcome = reset(process == 0 ? *member.session : *other);
    CHECK(outcome.status == MKRT_ERROR_PEER);
    CHECK(outcome.message() == "processes 0 and 1 reset different sessions");
    CHECK(member.has(work, begin));
    // One of them still runs. Both are in the execute, and one has only asked too early.
    const uint64_t value = enqueue(*member.session, request(entry_hold));
    outcome = reset(*member.session);
    CHECK(outcome.status == MKRT_ERROR_BUSY);
    if (++tried == 2) holding.release();
    CHECK(member.session->wait(value, no_limit, nullptr) == MKRT_OK);
    CHECK(member.has(work, begin));
    // One cannot make its memory zero: nobody goes on before all have tried again.
    if (process == 1) world.gpu.fail_call_of_this_thread(5, 999);
    outcome = reset(*member.session);
    CHECK(outcome.status == MKRT_ERROR_DRIVER);
    if (process == 1) {
      CHECK(world.gpu.failed_call() == "fill_bytes");
    } else {
      CHECK(outcome.has("process 1 could not do its part of mkrt_session_reset: could not reset the session"));
    }
    CHECK(member.session->execute(request(entry_count), nullptr, nullptr) == MKRT_ERROR_SESSION_FAILED);
    uint64_t reached = 0;
    CHECK(member.session->query(&reached, &outcome.error) == MKRT_ERROR_PEER);
    CHECK(outcome.has("a reset of the session was not completed by all processes"));
    CHECK(reset(*member.session).status == MKRT_OK);
    CHECK(member.write(work, begin) == MKRT_OK);
    CHECK(run_to_end(*member.session, request(entry_step, 2)).status == MKRT_OK);
    CHECK(member.has(work, host_result(work, begin, 2)));
  });
  world.gpu.fail_none();
  CHECK(world.gpu.live_objects() == 0);
}

TEST_CASE("processes that create sessions of different executables are told so, and sessions of one can be reset") {
  World world(two);
  const Work work(4096, 2);
  world.meeting.run([&](uint32_t process) {
    Member member(world, process, work);
    std::unique_ptr<device::Executable> other;
    member.group->agree("mkrt_executable_create", [&] { other = member.mesh->load(work.program, {}); });
    const auto message_of = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const base::Failure& failure) {
        return failure.message();
      }
      return std::string();
    };
    CHECK(message_of([&] { (process == 0 ? *other : *member.executable).create_session(); }) ==
          "processes 0 and 1 create sessions of different executables");
    // The first is one ahead of the second in making sessions.
    const std::string differ = message_of([&] {
      if (process == 0) member.executable->create_session();
      if (process == 1) member.group->agree("mkrt_executable_create", [] {});
    });
    CHECK(differ.find("processes differ in their collective calls") != std::string::npos);
    const auto session = other->create_session();
    mkrt_error error = MKRT_ERROR_INIT;
    const mkrt_status reset = session->reset(&error);
    CHECK_MESSAGE(reset == MKRT_OK, error.message);
  });
  CHECK(world.gpu.live_objects() == 0);
}

TEST_CASE("collective calls of two threads do not mix their all-gathers") {
  World world(two);
  const Work work(4096, 2);
  world.meeting.run([&](uint32_t process) {
    Member member(world, process, work);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (int n = 0; n < 5; ++n) CHECK_NOTHROW(member.executable->create_session());
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(run_to_end(*member.session, request(entry_step)).status == MKRT_OK);
  });
  CHECK(world.gpu.live_objects() == 0);
}

TEST_CASE("a report in another process's memory that is half written or nonsense is not shown") {
  mkrt_control sound{};
  sound.report.status = MKRT_ERROR_FAULT;
  sound.report.rank = 1;
  sound.report.record = 2;
  sound.report.fault = 1;
  sound.report.timeline_value = 1;
  std::vector<mkrt_control> written(7, sound);  // the first as it is
  written[1].report.fault = 0;
  written[2].report.rank = 0;  // where another rank writes
  written[3].report.rank = 1000;
  written[4].report.record = UINT32_MAX;
  written[5].report.status = MKRT_ERROR_FILE;
  written[6].report_lock = 1;
  const Work work(4096, 2);
  for (const mkrt_control& control : written) {
    CAPTURE(&control - written.data());
    World world(two);
    std::atomic<bool> ready{false}, ended{false};
    world.meeting.run([&](uint32_t process) {
      Member member(world, process, work);
      CHECK(run_to_end(*member.session, request(entry_fault)).status == MKRT_ERROR_FAULT);  // value 1 is of this entry
      CHECK(member.session->reset(nullptr) == MKRT_OK);
      if (process == 0) {
        while (!ready) std::this_thread::yield();
        const auto limited = request(entry_step, 1, MKRT_QUEUE_DYNAMIC, 0, 20 * millisecond);
        const Outcome outcome = run_to_end(*member.session, limited);
        CAPTURE(outcome.message());
        CHECK(outcome.status == (&control == written.data() ? MKRT_ERROR_FAULT : MKRT_ERROR_DEADLINE));
        CHECK(outcome.error.rank == (&control == written.data() ? 1 : 0));
        ended = true;
        return;
      }
      const auto launches = world.gpu.launches();
      const auto own = std::find_if(launches.begin(), launches.end(),
                                    [](const Launch& launch) { return launch.parameters.rank == 1; });
      const Context context = world.context(1);
      const Stream stream = world.gpu.create_stream(context);
      world.gpu.push(context);
      const auto driver = world.gpu.driver();
      const auto write = [&](size_t offset, size_t bytes) {
        const auto* from = reinterpret_cast<const std::byte*>(&control) + offset;
        CHECK(driver->copy_to_device(own->parameters.control + offset, from, bytes, stream) == result_success);
      };
      write(offsetof(mkrt_control, report), sizeof(control.report));
      write(offsetof(mkrt_control, report_lock), sizeof(control.report_lock));
      CHECK(driver->stream_synchronize(stream) == result_success);
      world.gpu.pop();
      ready = true;
      while (!ended) std::this_thread::yield();
    });
    CHECK(world.gpu.live_objects() == 0);
  }
}

namespace {

// A whole life in each process, in which call number `number` of process 0 fails, and with `all_after` all that follow.
// How it ended in each: the first call that did not work. Executes have `limit_ns`.
std::vector<Outcome> live(World& world, const Work& work, uint64_t number, bool all_after, uint64_t limit_ns) {
  std::vector<Outcome> outcomes(world.descs.size());
  const std::vector<uint32_t> begin = random_state(world.rank_count);
  const std::vector<uint32_t> expected = host_result(work, begin, 2);
  const auto life = [&](uint32_t process) {
    Outcome outcome;
    Member member(world, process, work);
    const auto step = [&] {
      const auto limited = request(entry_step, 2, MKRT_QUEUE_DYNAMIC, 0, limit_ns);
      if ((outcome.status = member.write(work, begin, &outcome.error)) != MKRT_OK) return;
      outcome = run_to_end(*member.session, limited);
      if (outcome.status == MKRT_OK && process != 0) CHECK(member.has(work, expected));
    };
    step();
    if (outcome.status == MKRT_OK) outcome.status = member.session->reset(&outcome.error);
    if (outcome.status == MKRT_OK) step();
    return outcome;
  };
  world.meeting.run([&](uint32_t process) {
    if (process == 0) world.gpu.fail_call_of_this_thread(number, 999, all_after);
    try {
      outcomes[process] = life(process);
    } catch (const base::Failure& failure) {
      outcomes[process].made = false;
      outcomes[process].status = failure.status();
      base::report(&outcomes[process].error, failure);
    }
  });
  return outcomes;
}

}  // namespace

TEST_CASE("whichever call fails in one process, the others end with a status as well, and nothing is lost anywhere") {
  for (const Division& division : {Division{{0}, {0}}, Division{{0, 1}, {1}}}) {
    const uint32_t ranks = World(division).rank_count;
    const Work work(4096, ranks);
    for (const bool all_after : {false, true}) {
      std::set<std::string> failed_calls;
      uint64_t number = 1;
      for (;; ++number) {
        CAPTURE(number);
        CAPTURE(all_after);
        std::vector<Outcome> outcomes;
        std::string call;
        // Where a failure is only noticed by the deadline that is waited for, and a loaded machine may miss a short
        // one: then once more with a long one.
        for (const uint64_t limit_ns : {100 * millisecond, 20'000 * millisecond}) {
          World world(division);
          outcomes = live(world, work, number, all_after, limit_ns);
          call = world.gpu.failed_call();
          CHECK(world.gpu.live_objects() == 0);
          if (outcomes[0].status != MKRT_ERROR_DEADLINE && (!call.empty() || outcomes[1].status == MKRT_OK)) break;
        }
        CAPTURE(call);
        CAPTURE(outcomes[0].message());
        CAPTURE(outcomes[1].message());
        if (call.empty()) {
          for (const Outcome& outcome : outcomes) CHECK(outcome.status == MKRT_OK);
          break;
        }
        failed_calls.insert(call);
        if (outcomes[0].status == MKRT_OK) continue;  // all that was left was to give back
        CHECK(outcomes[0].status == MKRT_ERROR_DRIVER);
        CHECK(outcomes[1].made == outcomes[0].made);
        // By process 0 itself, not by an exchange that broke or took too long.
        if (!outcomes[0].made) CHECK(outcomes[1].has("process 0 could not do its part of mkrt_"));
        // It may have been done, or not even have seen that process 0 had a failure.
        if (outcomes[1].status != MKRT_OK) CHECK(!outcomes[1].message().empty());
      }
      CHECK(number > 100);
      for (const char* call :
           {"memory_export", "memory_import", "memory_map", "memory_set_access", "address_reserve"}) {
        CHECK(failed_calls.count(call) == 1);
      }
    }
  }
}
