// Data movement between ranks on the host device, and what the load and the instructions refuse.
#include "moves.hpp"

#include "faults.hpp"

namespace {

using namespace mkrt::test;
namespace tools = mkrt::tools;
using nlohmann::ordered_json;

Target host_ranks(uint32_t ranks) {
  mkrt::RankOptions rank;
  rank.kind = MKRT_DEVICE_HOST;
  rank.worker_count = 2;
  return {rank, ways_with({1, 2}), {}, ranks};
}

// A program of one all-reduce of 64 elements a rank on two ranks, out of place unless said otherwise.
struct Spoiled {
  explicit Spoiled(const Move& move, uint32_t ranks = 2) : schedule(move_schedule(host_ranks(ranks))) {
    schedule.tensor("a", "f32", 128);
    schedule.tensor("b", "f32", 128);
    tools::add_alone(schedule, "all", move);
  }
  ordered_json& record() { return schedule.program()["entries"][0]["records"][0]; }
  // The status of loading it, with the sentence in `message`.
  mkrt_status load() {
    try {
      schedule.write(folder.path());
      const mkrt::Runtime runtime;
      const mkrt::Program program(runtime, folder.path());
    } catch (const mkrt::Error& error) {
      message = error.what();
      return error.status();
    }
    return MKRT_OK;
  }
  bool says(const std::string& part) const { return message.find(part) != std::string::npos; }

  MoveSchedule schedule;
  TemporaryFolder folder;
  std::string message;
};

Move f32_sum(const char* in, const char* out) { return {"reduce_f32", in, out, 4, 64, 4}; }

}  // namespace

TEST_CASE("copies, gathers and sums are right on 1, 2, 3, 4 and 8 ranks, for every type, size and number of SMs") {
  for (const uint32_t ranks : {1, 2, 3, 4, 8}) check_moves(host_ranks(ranks), 1024);
}

TEST_CASE("records that move data follow each other across ranks and steps as counters say") {
  for (const uint32_t ranks : {1, 2, 3, 4, 8}) check_move_chain(host_ranks(ranks), 37, 200);
}

TEST_CASE("the SMs of a record are its tiles") {
  Spoiled program(tools::all_reduce(f32_sum("a", "b")));
  REQUIRE(program.load() == MKRT_OK);
  for (const uint32_t sms : {0, 3, 5}) {
    program.record()["parameters"]["sms"] = sms;
    CHECK(program.load() == MKRT_ERROR_SCHEDULE);
    CHECK(program.says("grid.0 * grid.1 * grid.2 * grid.3 == sms"));
  }
  program.record()["parameters"]["sms"] = 4;
  program.record()["tiles"] = {2, 2};
  for (const char* operand : {"in", "out"}) program.record()["operands"][operand]["strides"] = {32, 16};
  CHECK(program.load() == MKRT_OK);
  program.record()["tiles"] = {0};
  CHECK(program.load() == MKRT_ERROR_FORMAT);
}

TEST_CASE("slices that leave their tensor on any rank are refused") {
  for (const char* operand : {"in", "out"}) {
    Spoiled program(tools::all_reduce(f32_sum("a", "b")));
    program.record()["operands"][operand]["rank_stride"] = 65;
    CHECK(program.load() == MKRT_ERROR_SCHEDULE);
    CHECK(program.says("the tensor has 128"));
  }
  Spoiled program(tools::all_reduce(f32_sum("a", "b")));
  program.record()["operands"]["in"]["size"] = 8;
  CHECK(program.load() == MKRT_ERROR_SCHEDULE);
  CHECK(program.says("in.size == out.size"));
}

TEST_CASE("what races is refused") {
  // In place each rank needs a part of its own.
  CHECK(Spoiled(tools::all_reduce(f32_sum("a", "a"))).load() == MKRT_OK);
  Spoiled everything(tools::reduce_everything(f32_sum("a", "a")));
  CHECK(everything.load() == MKRT_ERROR_SCHEDULE);
  CHECK(everything.says("no counter orders the two"));

  // Every rank writes all of every rank's output.
  Spoiled no_parts(tools::all_reduce(f32_sum("a", "b")));
  no_parts.record()["operands"]["out"]["rank_stride"] = 0;
  CHECK(no_parts.load() == MKRT_ERROR_SCHEDULE);

  // Tiles that read what others write.
  Spoiled shifted(tools::all_reduce(f32_sum("a", "a")));
  shifted.record()["operands"]["out"]["rank_stride"] = 48;
  CHECK(shifted.load() == MKRT_ERROR_SCHEDULE);

  // The next step's sums may come before a slow rank has read its own.
  for (const char* member : {"wait", "signal"}) {
    Spoiled unordered(tools::all_reduce(f32_sum("a", "a")));
    unordered.record()[member] = ordered_json::array();
    if (std::string(member) == "signal") unordered.record()["wait"] = ordered_json::array();
    CHECK(unordered.load() == MKRT_ERROR_SCHEDULE);
    CHECK(unordered.says("of the step before"));
  }

  // Peers that are not told.
  for (const size_t record : {0, 1}) {
    TemporaryFolder folder;
    MoveSchedule chain = move_chain(host_ranks(2), 64);
    chain.program()["entries"][0]["records"][record]["signal"][0]["rank"] = "self";
    chain.write(folder.path());
    const mkrt::Runtime runtime;
    CHECK_THROWS_WITH_AS(mkrt::Program(runtime, folder.path()), doctest::Contains("no counter orders the two"),
                         mkrt::Error);
  }
}

TEST_CASE("only sums read from all ranks, and only of their own type") {
  Spoiled copy({"copy", "a", "b", 4, 64, 4});
  CHECK(copy.load() == MKRT_OK);
  copy.record()["operands"]["in"]["rank"] = "all";
  CHECK(copy.load() == MKRT_ERROR_FORMAT);
  CHECK(copy.says("reads from \"all\" ranks"));
  Spoiled sum(tools::all_reduce(f32_sum("a", "b")));
  sum.record()["op"] = "reduce_bf16";
  CHECK(sum.load() == MKRT_ERROR_FORMAT);
  CHECK(sum.says("has dtype f32"));
  Spoiled way({"copy", "a", "b", 4, 64, 4});
  way.record()["parameters"]["registers"] = 2;
  CHECK(way.load() == MKRT_ERROR_SCHEDULE);
}

TEST_CASE("a tile whose output overlaps its input is a fault, and nothing was written") {
  Move move{"copy", "a", "a", 4, 64, 1};
  move.out_offset = 63;
  for (const char* opcode : {"copy", "reduce_f32"}) {
    move.opcode = opcode;
    Spoiled program(move, 1);
    REQUIRE(program.load() == MKRT_OK);
    const mkrt::Runtime runtime;
    const mkrt::Program loaded(runtime, program.folder.path());
    const mkrt::Mesh mesh(runtime, host_ranks(1).rank_options());
    const mkrt::Executable executable(loaded, mesh);
    mkrt::Session session(executable);
    std::vector<float> values(128);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
    session.write<float>(loaded.find_tensor("a"), values);
    mkrt_error error = MKRT_ERROR_INIT;
    CHECK(mkrt_session_wait(session.get(), session.execute(), UINT64_MAX, &error) == MKRT_ERROR_FAULT);
    CHECK(std::string(error.message).find("overlap") != std::string::npos);
    std::vector<float> after(128);
    session.read<float>(loaded.find_tensor("a"), after);
    CHECK(after == values);
  }
}

TEST_CASE("a fault of one of two tiles ends the execute and says which, and a reset session works") {
  check_fault_before_another_tile(host_ranks(1));
}
