#include "memory/encode.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace mkrt;

namespace {

// Two ranks; tensor 0 is a bf16 weight, tensor 1 an f32 scratch tensor. Record 0 signals a counter for each pair of its
// 6 tiles, record 1 waits for two of these.
package::Program make_program() {
  package::Program program;
  program.rank_count = 2;
  program.tensors.resize(2);
  program.tensors[0].dtype = package::Dtype::bf16;
  program.tensors[0].kind = MKRT_TENSOR_WEIGHT;
  program.tensors[0].size_bytes = 2 * 6000;
  program.tensors[1].dtype = package::Dtype::f32;
  program.tensors[1].kind = MKRT_TENSOR_SCRATCH;
  program.tensors[1].size_bytes = 4 * 1000;

  package::Entry entry;
  entry.counters = {{"other", 0, 1}, {"pairs", 1, 3}};
  entry.counter_count = 4;
  package::Record produce;
  produce.opcode = 3;
  produce.grid = {6, 1, 1, 1};
  produce.tile_count = 6;
  produce.parameters = {7, 8};
  package::Operand weight;
  weight.tensor = 0;
  weight.offset = 10;
  weight.strides = {1000, 0, 0, 0};
  weight.size = 900;
  weight.limit = 5950;
  package::Operand out;
  out.tensor = 1;
  out.offset = 5;
  out.rank_stride = 100;
  out.strides = {20, 0, 0, 0};
  out.size = 20;
  out.limit = 120;
  out.rows = 3;
  out.row_stride = 200;
  out.rank = {MKRT_RANK_ALL, 0xff, 0};
  produce.operands = {weight, std::nullopt, out};
  package::Signal signal;
  signal.counter = 1;
  signal.strides = {1, 0, 0, 0};
  signal.divide = {2, 1, 1, 1};
  signal.rank = {MKRT_RANK_ALL, 0xff, 0};
  produce.signals = {signal};

  package::Record consume;
  consume.label = "consume";
  consume.first_tile = 6;
  consume.grid = {2, 1, 1, 1};
  consume.tile_count = 2;
  package::Wait wait;
  wait.counter = 1;
  wait.count = 2;
  wait.strides = {1, 0, 0, 0};
  wait.step_total = 4;  // two tiles of each of two ranks
  package::Wait before = wait;
  before.value = 1;
  before.step_offset = -1;
  consume.waits = {wait, before};

  entry.records = {produce, consume};
  entry.tile_count = 8;
  program.entries = {entry};
  return program;
}

std::vector<mkrt_record> encode(const package::Program& program, uint32_t rank) {
  const package::Entry& entry = program.entries[0];
  const std::vector<uint64_t> weights = {0x10000, 0};
  // Poisoned, as every field must be written.
  std::vector<mkrt_record> records(entry.records.size());
  std::fill_n(reinterpret_cast<unsigned char*>(records.data()), records.size() * sizeof(mkrt_record), 0xcd);
  memory::encode_entry(program, entry, memory::plan_layout(program), {rank, 0x900000, weights}, records);
  return records;
}

}  // namespace

TEST_CASE("operands get the rank's addresses, in bytes") {
  const package::Program program = make_program();
  for (const uint32_t rank : {0u, 1u}) {
    const mkrt_record record = encode(program, rank)[0];
    CHECK(record.opcode == 3);
    CHECK(record.index == 0);
    CHECK(record.first_tile == 0);
    CHECK(record.tile_count == 6);
    CHECK(record.grid[0] == 6);
    CHECK(record.grid[3] == 1);
    CHECK(record.operand_count == 3);
    CHECK(record.parameter[1] == 8);
    CHECK(record.parameter[2] == 0);
    CHECK(record.operand[0].address == 0x10000 + 10 * 2);
    CHECK(record.operand[0].stride[0] == 2000);
    CHECK(record.operand[0].size == 1800);
    CHECK(record.operand[0].limit == 11900);
    CHECK(record.operand[0].rank.mode == MKRT_RANK_SELF);
    CHECK(record.operand[1].address == 0);
    CHECK(record.operand[2].address == 0x900000 + (5 + rank * 100) * 4);
    CHECK(record.operand[2].stride[0] == 80);
    CHECK(record.operand[2].limit == 480);
    CHECK(record.operand[2].rows == 3);
    CHECK(record.operand[2].row_stride == 800);
    CHECK(record.operand[2].rank.mode == MKRT_RANK_ALL);
    CHECK(record.operand[3].address == 0);
    CHECK(record.padding == 0);
  }
}

TEST_CASE("waits get what a step adds, and that as their value where it was left out") {
  const std::vector<mkrt_record> records = encode(make_program(), 1);
  REQUIRE(records[1].wait_count == 2);
  CHECK(records[1].index == 1);
  CHECK(records[1].first_tile == 6);
  const mkrt_wait& full = records[1].wait[0];
  CHECK(full.first == 1);
  CHECK(full.count == 2);
  CHECK(full.stride[0] == 1);
  CHECK(full.divide[0] == 1);
  CHECK(full.step_total == 4);
  CHECK(full.value == 4);
  CHECK(full.step_offset == 0);
  const mkrt_wait& before = records[1].wait[1];
  CHECK(before.step_total == 4);
  CHECK(before.value == 1);
  CHECK(before.step_offset == -1);
  REQUIRE(records[0].signal_count == 1);
  const mkrt_signal& signal = records[0].signal[0];
  CHECK(signal.first == 1);
  CHECK(signal.stride[0] == 1);
  CHECK(signal.divide[0] == 2);
  CHECK(signal.rank.mode == MKRT_RANK_ALL);
}

TEST_CASE("order between ranks is asked for at counters where ranks signal each other, and only there") {
  for (const uint8_t mode : {MKRT_RANK_SELF, MKRT_RANK_ALL, MKRT_RANK_FIXED, MKRT_RANK_RELATIVE}) {
    for (const uint32_t ranks : {1u, 2u}) {
      CAPTURE(int{mode});
      CAPTURE(ranks);
      package::Program program = make_program();
      program.rank_count = ranks;
      std::vector<package::Record>& encoded = program.entries.front().records;
      // Two records signal the first array, each from its own rank; one of them also the second, by `mode`.
      package::Signal own = encoded[0].signals[0];
      own.counter = own.array = 0;
      own.strides = {};
      own.rank = {MKRT_RANK_SELF, 0xff, 0};
      package::Signal other = encoded[0].signals[0];
      other.array = 1;
      other.rank.mode = mode;
      package::Signal same_array = other;
      same_array.rank = {MKRT_RANK_SELF, 0xff, 0};
      encoded[0].signals = {own, other};
      encoded[1].signals = {own, same_array};
      encoded[1].waits[0].counter = encoded[1].waits[0].array = 0;
      encoded[1].waits[1].counter = encoded[1].waits[1].array = 1;
      const std::vector<mkrt_record> records = encode(program, 0);
      const uint32_t across = mode != MKRT_RANK_SELF && ranks > 1 ? 1 : 0;
      CHECK(records[0].signal[0].across_ranks == 0);
      CHECK(records[1].signal[0].across_ranks == 0);
      CHECK(records[1].wait[0].across_ranks == 0);
      CHECK(records[0].signal[1].across_ranks == across);
      CHECK(records[1].signal[1].across_ranks == across);  // one word, so all additions to it
      CHECK(records[1].wait[1].across_ranks == across);
    }
  }
}
