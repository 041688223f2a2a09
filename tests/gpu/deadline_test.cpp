// A schedule that waits for ever. The check at load refuses each of them, so this one is made behind its back: read
// from a package, broken in memory, and given to the CUDA device directly.
#include <chrono>

#include "base/hooks.hpp"
#include "cuda/cuda.hpp"
#include "gpu.hpp"
#include "package/reader.hpp"
#include "verify/verify.hpp"

namespace {

using namespace mkrt;
using namespace mkrt::test;

// novelist with a second entry, a copy of the first in which one record waits for one count more than ever comes.
struct Broken {
  std::shared_ptr<package::Program> program;
  uint32_t record;   // that waits
  uint32_t counter;  // for which
  uint32_t total;    // what it gets
};
Broken break_program(const std::string& package) {
  Broken broken{std::make_shared<package::Program>(package::read_package(package)), 0, 0, 0};
  verify::check(*broken.program);
  package::Entry entry = broken.program->entries.front();
  entry.name = "endless";
  broken.record = static_cast<uint32_t>(entry.records.size() / 2);
  package::Wait& wait = entry.records[broken.record].waits.at(0);
  REQUIRE(wait.step_offset == 0);
  broken.counter = wait.counter;
  broken.total = wait.step_total;
  wait.value = broken.total + 1;
  broken.program->entries.push_back(entry);
  return broken;
}

uint32_t find_tensor(const package::Program& program, const std::string& name) {
  for (uint32_t i = 0; i < program.tensors.size(); ++i) {
    if (program.tensors[i].name == name) return i;
  }
  FAIL("no tensor " << name);
  return 0;
}

// Starts a golden case in sequence 0 of every rank.
void start(device::Session& session, const package::Program& program, const Golden& golden) {
  const auto write = [&](const char* name, const std::vector<int32_t>& values) {
    mkrt_error error = MKRT_ERROR_INIT;
    for (uint32_t rank = 0; rank < program.rank_count; ++rank) {
      REQUIRE(session.write(rank, find_tensor(program, name), 0, values.data(), values.size() * 4, &error) == MKRT_OK);
    }
  };
  write("tokens", golden.prompt_ids);
  write("prompt_length", {static_cast<int32_t>(golden.prompt_ids.size())});
  write("active", {1});
}

void check_endless_wait(uint32_t ranks) {
  CAPTURE(ranks);
  const Target target = gpu_ranks(ranks);
  const Novelist novelist(target);
  const Golden golden = read_golden().front();
  const Broken broken = break_program(novelist.package());
  package::Program refused = *broken.program;
  CHECK_THROWS(verify::check(refused));  // it would not have been loaded

  mkrt_rank_desc rank{};
  rank.struct_size = sizeof(rank);
  rank.kind = MKRT_DEVICE_CUDA;
  const auto mesh = cuda::create_mesh(std::make_shared<base::Hooks>(nullptr), cuda::open_driver(),
                                      std::vector<mkrt_rank_desc>(ranks, rank), nullptr,
                                      std::make_shared<device::ProcessGroup>(ranks));
  const auto executable = mesh->load(broken.program, {});
  const auto session = executable->create_session();
  constexpr auto limit = std::chrono::milliseconds(50);
  for (const Way& way : target.ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    mkrt_error error = MKRT_ERROR_INIT;
    device::ExecuteRequest request;
    request.entry = 1;
    request.queue_mode = way.queue_mode;
    request.worker_limit = way.workers;
    request.step_count = 3;
    request.wait_limit_ns = std::chrono::nanoseconds(limit).count();
    start(*session, *broken.program, golden);
    uint64_t value = 0;
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(session->execute(request, &value, &error) == MKRT_OK);
    REQUIRE(session->wait(value, UINT64_MAX, &error) == MKRT_ERROR_DEADLINE);
    const auto elapsed = std::chrono::steady_clock::now() - begin;
    MESSAGE(std::string(error.message));
    CHECK(elapsed >= limit);
    CHECK(elapsed < limit + std::chrono::milliseconds(200));

    const package::Entry& entry = broken.program->entries[1];
    CHECK(error.status == MKRT_ERROR_DEADLINE);
    CHECK(error.rank >= 0);
    CHECK(error.rank < static_cast<int32_t>(ranks));
    CHECK(error.worker >= 0);
    CHECK(error.record == static_cast<int32_t>(broken.record));
    CHECK(error.tile < entry.records[broken.record].tile_count);
    CHECK(error.step == 0);
    CHECK(error.counter == static_cast<int32_t>(broken.counter));
    CHECK(error.value_seen == broken.total);
    CHECK(error.value_wanted == broken.total + 1);
    const std::string sentence = error.message;
    CHECK(contains(sentence, "rank " + std::to_string(error.rank) + ", SM " + std::to_string(error.worker)));
    CHECK(contains(sentence, "record " + std::to_string(broken.record) + " \"" + entry.records[broken.record].label));
    CHECK(contains(sentence, "tile " + std::to_string(error.tile)));
    CHECK(contains(sentence, "counter \""));
    CHECK(contains(sentence, "reach " + std::to_string(broken.total + 1)));
    CHECK(contains(sentence, "saw " + std::to_string(broken.total)));
    CHECK(session->execute(request, &value, &error) == MKRT_ERROR_SESSION_FAILED);

    // The entry that was left whole, on the same session.
    REQUIRE(session->reset(&error) == MKRT_OK);
    start(*session, *broken.program, golden);
    request.entry = 0;
    request.step_count = 30;
    request.wait_limit_ns = 1'000'000'000;
    REQUIRE(session->execute(request, &value, &error) == MKRT_OK);
    const mkrt_status status = session->wait(value, UINT64_MAX, &error);
    INFO(std::string(error.message));
    CHECK(status == MKRT_OK);
    std::vector<int32_t> tokens(31);
    CHECK(session->read(0, find_tensor(*broken.program, "tokens"), 0, tokens.size() * 4, tokens.data(), &error) ==
          MKRT_OK);
    Model model(novelist.package(), target);
    model.start(0, golden.prompt_ids);
    model.step({MKRT_QUEUE_DYNAMIC, 0}, 30);
    for (size_t i = 0; i < tokens.size(); ++i) CHECK(tokens[i] == model.token(0, i));
    REQUIRE(session->reset(&error) == MKRT_OK);
  }
}

}  // namespace

TEST_CASE("a schedule that waits for ever ends by its deadline and says who waited for what; a reset session works") {
  check_endless_wait(1);
}

TEST_CASE("on 2 ranks that share a GPU all end by the deadline, and the sentence names the rank") {
  check_endless_wait(2);
}
