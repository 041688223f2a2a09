#include "memory/fingerprint.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

using namespace mkrt;

namespace {

// Two ranks, two weights and a scratch tensor, one record.
package::Program make_program() {
  package::Program program;
  program.rank_count = 2;
  program.isa.name = "an.isa";
  program.isa.fingerprint = 77;
  for (const uint32_t kind : {MKRT_TENSOR_WEIGHT, MKRT_TENSOR_WEIGHT, MKRT_TENSOR_SCRATCH}) {
    package::Tensor tensor;
    tensor.name = "t" + std::to_string(program.tensors.size());
    tensor.kind = kind;
    tensor.shape = {4, 8};
    tensor.elements = 32;
    tensor.size_bytes = 128;
    program.tensors.push_back(tensor);
  }
  package::Entry entry;
  entry.name = "decode";
  entry.counters = {{"done", 0, 4}};
  entry.counter_count = 4;
  package::Record record;
  record.parameters = {5};
  package::Operand operand;
  operand.size = 8;
  operand.limit = 32;
  record.operands = {operand};
  package::Wait wait;
  wait.step_total = 1;
  record.waits = {wait};
  record.signals = {package::Signal{}};
  entry.records = {record};
  program.entries = {entry};
  return program;
}

package::Record& record_of(package::Program& program) { return program.entries[0].records[0]; }

}  // namespace

TEST_CASE("a program has one fingerprint, wherever its package and its weights lie") {
  const package::Program program = make_program();
  package::Program elsewhere = make_program();
  elsewhere.path = "/another/folder";
  const std::vector<std::byte> bytes(128);
  elsewhere.tensors[0].sources.assign(2, {"F32", {4, 8}, bytes});
  CHECK(memory::program_fingerprint(program) == memory::program_fingerprint(elsewhere));
}

TEST_CASE("whatever decides how a program runs or lies in memory changes its fingerprint") {
  using Change = std::function<void(package::Program&)>;
  const Change changes[] = {
      [](auto& p) { p.rank_count = 3; },
      [](auto& p) { p.isa.name = "another.isa"; },
      [](auto& p) { p.isa.fingerprint = 78; },
      [](auto& p) { p.tensors[1].name = "t"; },
      [](auto& p) { p.tensors[1].dtype = package::Dtype::i32; },
      [](auto& p) {
        p.tensors[1].shape = {8, 4};
      },
      [](auto& p) { p.tensors[2].kind = MKRT_TENSOR_STATE; },
      [](auto& p) { p.tensors.push_back(p.tensors[2]); },
      [](auto& p) { p.entries[0].name = "prefill"; },
      [](auto& p) { p.entries[0].counter_count = 5; },
      [](auto& p) { p.entries.push_back(p.entries[0]); },
      [](auto& p) { record_of(p).opcode = 1; },
      [](auto& p) {
        record_of(p).grid = {2, 1, 1, 1};
      },
      [](auto& p) { record_of(p).parameters = {6}; },
      [](auto& p) { record_of(p).operands[0]->tensor = 1; },
      [](auto& p) { record_of(p).operands[0]->offset = 8; },
      [](auto& p) { record_of(p).operands[0]->rank_stride = 8; },
      [](auto& p) {
        record_of(p).operands[0]->rank = {MKRT_RANK_ALL, 0xff, 0};
      },
      [](auto& p) { record_of(p).operands[0].reset(); },
      [](auto& p) { record_of(p).waits[0].value = 3; },
      [](auto& p) { record_of(p).signals[0].counter = 2; },
      [](auto& p) {
        record_of(p).signals[0].rank = {MKRT_RANK_FIXED, 0xff, 1};
      },
  };
  std::vector<uint64_t> seen{memory::program_fingerprint(make_program())};
  for (const Change& change : changes) {
    CAPTURE(seen.size());
    package::Program program = make_program();
    change(program);
    const uint64_t fingerprint = memory::program_fingerprint(program);
    CHECK(std::find(seen.begin(), seen.end(), fingerprint) == seen.end());
    seen.push_back(fingerprint);
  }
}
