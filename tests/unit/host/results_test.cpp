// What tiles compute, in which order, and by whom.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "host/session.hpp"
#include "test_schedule.hpp"

using namespace mkrt;
using namespace mkrt::host::test;

namespace {

constexpr uint32_t width = 13;  // tiles of a layer; shared by no worker count
constexpr uint32_t layers = 5;

// A network whose every value depends on all that came before it. One step, on each rank: a chain of layers, each tile
// of which hashes the whole layer before it; then every rank writes its last layer to all ranks, and all hash what
// arrived into the state, from which the next step begins. The state is never cleared, so steps of one execute and
// executes depend on each other.
struct Network {
  std::shared_ptr<const package::Program> program;
  uint32_t state = 0;
};

Network make_network(uint32_t ranks) {
  ScheduleBuilder builder(ranks);
  const uint32_t state = builder.tensor("state", width, MKRT_TENSOR_STATE);
  builder.entry("step");
  uint32_t input = state;
  uint32_t input_counter = builder.counter("state");
  const uint32_t state_counter = input_counter;
  for (uint32_t l = 0; l < layers; ++l) {
    const uint32_t output = builder.tensor("layer" + std::to_string(l), width);
    const uint32_t counter = builder.counter("layer" + std::to_string(l));
    package::Record& record = builder.record("layer" + std::to_string(l), op_mix, {width, 1, 1, 1});
    record.operands = {builder.slice(input, width), builder.slice(output, 1, 1)};
    record.parameters = {l};
    record.waits = {builder.wait(input_counter, 0, l == 0 ? -1 : 0)};
    record.signals = {builder.signal(counter)};
    input = output;
    input_counter = counter;
  }
  const mkrt_rank_selector all = {MKRT_RANK_ALL, 0xff, 0};
  const uint32_t arrived = builder.tensor("arrived", uint64_t{width} * ranks);
  const uint32_t arrived_counter = builder.counter("arrived");
  const uint32_t read_counter = builder.counter("read");
  package::Record& send = builder.record("send", op_mix, {width, 1, 1, 1});
  send.operands = {builder.slice(input, width), builder.slice(arrived, 1, 1)};
  send.operands[1]->rank_stride = width;
  send.operands[1]->rank = all;
  send.parameters = {100};
  // The peers must have read what this rank sent them in the step before.
  send.waits = {builder.wait(input_counter), builder.wait(read_counter, 0, -1)};
  send.signals = {builder.signal(arrived_counter, all)};
  package::Record& receive = builder.record("receive", op_mix, {width, 1, 1, 1});
  receive.operands = {builder.slice(arrived, uint64_t{width} * ranks), builder.slice(state, 1, 1)};
  receive.parameters = {101};
  receive.waits = {builder.wait(arrived_counter)};
  receive.signals = {builder.signal(state_counter), builder.signal(read_counter, all)};
  return {builder.finish(), state};
}

// The same in a plain loop.
std::vector<std::vector<uint32_t>> reference_steps(std::vector<std::vector<uint32_t>> states, uint64_t steps) {
  const size_t ranks = states.size();
  for (uint64_t step = 0; step < steps; ++step) {
    std::vector<uint32_t> arrived(width * ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      std::vector<uint32_t> values = states[rank];
      for (uint32_t l = 0; l <= layers; ++l) {
        std::vector<uint32_t> next(width);
        for (uint32_t i = 0; i < width; ++i) next[i] = mix(values.data(), width, l < layers ? l : 100, i);
        values = next;
      }
      std::copy(values.begin(), values.end(), arrived.begin() + static_cast<ptrdiff_t>(rank * width));
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      for (uint32_t i = 0; i < width; ++i) states[rank][i] = mix(arrived.data(), arrived.size(), 101, i);
    }
  }
  return states;
}

std::vector<std::vector<uint32_t>> random_states(uint32_t ranks) {
  std::mt19937 random(std::random_device{}());
  std::vector<std::vector<uint32_t>> states(ranks, std::vector<uint32_t>(width));
  for (auto& state : states) std::generate(state.begin(), state.end(), std::ref(random));
  return states;
}

void write_states(device::Session& session, uint32_t tensor, const std::vector<std::vector<uint32_t>>& states) {
  for (uint32_t rank = 0; rank < states.size(); ++rank) {
    REQUIRE(session.write(rank, tensor, 0, states[rank].data(), width * sizeof(uint32_t), nullptr) == MKRT_OK);
  }
}

std::vector<std::vector<uint32_t>> read_states(device::Session& session, uint32_t tensor, uint32_t ranks) {
  std::vector<std::vector<uint32_t>> states(ranks, std::vector<uint32_t>(width));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    REQUIRE(session.read(rank, tensor, 0, width * sizeof(uint32_t), states[rank].data(), nullptr) == MKRT_OK);
  }
  return states;
}

void run(device::Session& session, const device::ExecuteRequest& what) {
  mkrt_error error = make_error();
  uint64_t value = 0;
  REQUIRE_MESSAGE(session.execute(what, &value, &error) == MKRT_OK, error.message);
  REQUIRE_MESSAGE(session.wait(value, UINT64_MAX, &error) == MKRT_OK, error.message);
}

}  // namespace

TEST_CASE("results are those of a plain loop for every rank count, worker count and queue mode") {
  for (const uint32_t ranks : {1u, 2u, 3u, 4u}) {
    const Network network = make_network(ranks);
    for (const uint32_t workers : {1u, 2u, 3u, 5u, 8u, 16u}) {
      const auto mesh = make_mesh(ranks, workers);
      const auto executable = mesh->load(network.program, {});
      const auto session = executable->create_session();
      for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
        CAPTURE(ranks);
        CAPTURE(workers);
        CAPTURE(mode);
        const auto states = random_states(ranks);
        write_states(*session, network.state, states);
        run(*session, request(0, 20, mode));
        run(*session, request(0, 1, mode));
        CHECK(read_states(*session, network.state, ranks) == reference_steps(states, 21));
      }
    }
  }
}

TEST_CASE("a chain of executes continues where the last one stopped, whatever the mode and limit of each") {
  const Network network = make_network(2);
  const auto mesh = make_mesh(2, 3);
  const auto executable = mesh->load(network.program, {});
  const auto session = executable->create_session();
  const auto states = random_states(2);
  write_states(*session, network.state, states);
  uint64_t steps = 0;
  uint64_t value = 0;
  for (uint32_t i = 0; i < 60; ++i) {
    const uint32_t count = 1 + i % 4;
    const uint32_t mode = i % 3 == 0 ? MKRT_QUEUE_STATIC : MKRT_QUEUE_DYNAMIC;
    REQUIRE(session->execute(request(0, count, mode, i % 5), &value, nullptr) == MKRT_OK);
    steps += count;
  }
  CHECK(value == 60);
  REQUIRE(session->wait(value, UINT64_MAX, nullptr) == MKRT_OK);
  CHECK(read_states(*session, network.state, 2) == reference_steps(states, steps));
}

TEST_CASE("epochs and counters wrap around at 2^32 without a trace") {
  const Network network = make_network(2);
  const auto mesh = make_mesh(2, 2);
  const auto executable = mesh->load(network.program, {});
  const auto session = executable->create_session();
  // 13 or 26 signals a step: counters pass 2^32 at different steps. 0xffffffff - 20 lets the epoch itself pass it, the
  // others the counters of either total.
  for (const uint32_t epoch : {0xffffffffu - 20, 0xffffffffu / width - 20, 0xffffffffu / (2 * width) - 20, 0x80000000u,
                               0x7fffffffu / width - 20}) {
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      CAPTURE(epoch);
      REQUIRE(session->reset(nullptr) == MKRT_OK);
      run(*session, request(0, 1, mode, 0, 2'000'000'000));
      static_cast<host::Session&>(*session).start_at_epoch(epoch);
      const auto states = random_states(2);
      write_states(*session, network.state, states);
      for (int i = 0; i < 8; ++i) run(*session, request(0, 5, mode, 0, 2'000'000'000));
      CHECK(read_states(*session, network.state, 2) == reference_steps(states, 40));
    }
  }
}

TEST_CASE("entries of one session have counters of their own and share its tensors") {
  ScheduleBuilder builder;
  const uint32_t total = builder.tensor("total", 1, MKRT_TENSOR_STATE);
  for (const uint32_t tiles : {2u, 7u}) {
    builder.entry("count" + std::to_string(tiles));
    const uint32_t done = builder.counter("done", tiles);
    for (uint32_t i = 0; i < tiles; ++i) {  // each waits for the one before
      package::Record& record = builder.record("count", op_count);
      record.operands = {builder.slice(total, 1)};
      record.waits = {i > 0 ? builder.wait(done + i - 1) : builder.wait(done + tiles - 1, 0, -1)};
      record.signals = {builder.signal(done + i)};
    }
  }
  const auto mesh = make_mesh(1, 4);
  const auto executable = mesh->load(builder.finish(), {});
  const auto session = executable->create_session();
  for (int i = 0; i < 5; ++i) {
    run(*session, request(0, 3));
    run(*session, request(1, 2, MKRT_QUEUE_STATIC));
  }
  uint32_t value = 0;
  REQUIRE(session->read(0, total, 0, sizeof(value), &value, nullptr) == MKRT_OK);
  CHECK(value == 5 * (3 * 2 + 2 * 7));
}

TEST_CASE("tiles run once each, records in the order that waits ask for, with the step and indices that are theirs") {
  ScheduleBuilder builder(2);
  builder.entry("log");
  const uint32_t done = builder.counter("done", 3);
  for (uint32_t i = 0; i < 3; ++i) {
    package::Record& record = builder.record("log", op_log, {4, 1, 1, 1});
    // The first record follows the last one of the step before, so that no two records run at a time.
    record.waits = {i > 0 ? builder.wait(done + i - 1) : builder.wait(done + 2, 0, -1)};
    record.signals = {builder.signal(done + i)};
  }
  const auto mesh = make_mesh(2, 3);
  const auto executable = mesh->load(builder.finish(), {});
  const auto session = executable->create_session();
  for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
    log().take();
    run(*session, request(0, 6, mode));
    const std::vector<LogLine> lines = log().take();
    REQUIRE(lines.size() == 2 * 6 * 3 * 4);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      std::vector<LogLine> of_rank;
      std::copy_if(lines.begin(), lines.end(), std::back_inserter(of_rank),
                   [&](const LogLine& line) { return line.rank == rank; });
      REQUIRE(of_rank.size() == 6 * 3 * 4);
      for (size_t i = 0; i < of_rank.size(); i += 4) {
        std::set<uint64_t> tiles;
        for (size_t k = i; k < i + 4; ++k) {
          CHECK(of_rank[k].step == i / 12);
          CHECK(of_rank[k].record == i / 4 % 3);
          tiles.insert(of_rank[k].tile);
        }
        CHECK(tiles == std::set<uint64_t>{0, 1, 2, 3});
      }
    }
  }
}

TEST_CASE("static mode gives worker w the tiles w, w + workers, ..., and scratch that is its own") {
  ScheduleBuilder builder;
  builder.entry("log");
  builder.record("log", op_log, {10, 1, 1, 1});
  const auto mesh = make_mesh(1, 5);
  const auto executable = mesh->load(builder.finish(), {});
  const auto session = executable->create_session();
  for (const uint32_t limit : {1u, 3u, 4u, 5u, 100u, 0u}) {
    const uint32_t workers = limit == 0 ? 5 : std::min(limit, 5u);
    CAPTURE(limit);
    log().take();
    run(*session, request(0, 7, MKRT_QUEUE_STATIC, limit));
    std::map<const void*, std::set<uint64_t>> shares;  // worker: residues of its tile numbers
    for (const LogLine& line : log().take()) {
      CHECK(reinterpret_cast<uintptr_t>(line.scratch) % 64 == 0);
      shares[line.scratch].insert((line.step * 10 + line.tile) % workers);
    }
    CHECK(shares.size() == workers);
    for (const auto& [scratch, residues] : shares) CHECK(residues.size() == 1);
  }
}

TEST_CASE("workers' scratch takes no pages before instructions use it: it comes as the host gave it") {
  mkrt_runtime_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.allocate = [](void*, size_t size, size_t alignment) {
    return std::memset(std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment), 0xcd, size);
  };
  desc.release = [](void*, void* memory, size_t, size_t) { std::free(memory); };
  mkrt_rank_desc rank{};
  rank.struct_size = sizeof(rank);
  rank.kind = MKRT_DEVICE_HOST;
  rank.worker_count = 3;
  const std::vector<const mkrt_host_isa*> isas{&test_isa()};
  const auto mesh = std::make_unique<host::Mesh>(std::make_shared<base::Hooks>(&desc),
                                                 std::make_shared<device::ProcessGroup>(1), std::vector{rank}, isas);

  ScheduleBuilder builder;
  builder.entry("log");
  builder.record("log", op_log, {9, 1, 1, 1});
  const auto executable = mesh->load(builder.finish(), {});
  const auto session = executable->create_session();
  log().take();
  run(*session, request(0, 1, MKRT_QUEUE_STATIC));
  const std::vector<LogLine> lines = log().take();
  REQUIRE(lines.size() == 9);
  for (const LogLine& line : lines) {
    const auto* bytes = static_cast<const unsigned char*>(line.scratch);
    CHECK(std::all_of(bytes, bytes + test_isa().scratch_size, [](unsigned char byte) { return byte == 0xcd; }));
  }
}

TEST_CASE("dynamic mode uses no more workers than the limit allows") {
  ScheduleBuilder builder;
  builder.entry("log");
  builder.record("log", op_log, {50, 1, 1, 1});
  const auto mesh = make_mesh(1, 6);
  const auto executable = mesh->load(builder.finish(), {});
  const auto session = executable->create_session();
  for (const uint32_t limit : {1u, 2u, 6u}) {
    log().take();
    for (int i = 0; i < 10; ++i) run(*session, request(0, 4, MKRT_QUEUE_DYNAMIC, limit));
    std::set<const void*> workers;
    for (const LogLine& line : log().take()) workers.insert(line.scratch);
    CHECK(workers.size() >= 1);
    CHECK(workers.size() <= limit);
  }
}

TEST_CASE("signals reach the rank that their selector names") {
  constexpr uint32_t ranks = 3;
  ScheduleBuilder builder(ranks);
  builder.entry("ring");
  const uint32_t from_left = builder.counter("from_left");
  const uint32_t at_one = builder.counter("at_one");
  const uint32_t scattered = builder.counter("scattered", 2);
  const uint32_t sent = builder.counter("sent");
  package::Record& send = builder.record("send", op_log, {6, 1, 1, 1});
  send.signals = {builder.signal(from_left, {MKRT_RANK_RELATIVE, 0xff, 1}),
                  builder.signal(at_one, {MKRT_RANK_FIXED, 0xff, 1}),
                  builder.signal(scattered, {MKRT_RANK_RELATIVE, 0, 2}), builder.signal(sent)};
  send.waits = {builder.wait(sent, 0, -1)};  // or counts of two steps would be mixed up
  // Tile i goes to rank (own + 2 + i) % 3, tiles 0 to 2 to the first counter, 3 to 5 to the second: each rank gets one
  // from each rank in each.
  send.signals[2].strides[0] = 1;
  send.signals[2].divide[0] = 3;
  package::Record& receive = builder.record("receive", op_log);
  receive.waits = {builder.wait(from_left), builder.wait(scattered)};
  receive.waits[1].count = 2;
  const auto program = builder.finish();
  const auto mesh = make_mesh(ranks, 2);
  const auto executable = mesh->load(program, {});
  const auto session = executable->create_session();
  for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
    log().take();
    run(*session, request(0, 4, mode, 0, 2'000'000'000));
    // In each step, a rank's "receive" comes after its left neighbour's six tiles.
    const std::vector<LogLine> lines = log().take();
    CHECK(lines.size() == ranks * 4 * 7);
    for (size_t i = 0; i < lines.size(); ++i) {
      if (lines[i].record != 1) continue;
      const uint32_t left = (lines[i].rank + ranks - 1) % ranks;
      CHECK(std::count_if(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(i), [&](const LogLine& line) {
              return line.rank == left && line.record == 0 && line.step == lines[i].step;
            }) == 6);
    }
  }
}
