// Makes programs without files: each record brings an opcode of its own whose operands are what the record uses.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "package/program.hpp"
#include "verify/verify.hpp"

namespace mkrt::verify::test {

using package::Access;

constexpr mkrt_rank_selector kSelf{MKRT_RANK_SELF, 0xff, 0};
constexpr mkrt_rank_selector kAll{MKRT_RANK_ALL, 0xff, 0};
constexpr mkrt_rank_selector fixed_rank(uint16_t rank) { return {MKRT_RANK_FIXED, 0xff, rank}; }
constexpr mkrt_rank_selector relative_rank(uint16_t offset, uint8_t dimension = 0xff) {
  return {MKRT_RANK_RELATIVE, dimension, offset};
}

// A slice as the file writes it; zeros mean left out.
struct Slice {
  uint32_t tensor = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::array<uint64_t, 4> strides{};
  uint32_t rows = 1;
  uint64_t row_stride = 0;
  uint64_t limit = 0;
  uint64_t rank_stride = 0;
  mkrt_rank_selector rank = kSelf;
};

struct Target {
  uint32_t counter = 0;  // number of the array
  uint32_t offset = 0;
  uint32_t count = 1;  // waits only
  std::array<uint32_t, 4> strides{};
  std::array<uint32_t, 4> divide{1, 1, 1, 1};
  uint32_t value = 0;               // waits only
  int32_t step = 0;                 // waits only
  mkrt_rank_selector rank = kSelf;  // signals only
};

class Builder {
 public:
  explicit Builder(uint32_t ranks = 1) {
    program_.rank_count = ranks;
    program_.entries.emplace_back().name = "decode";
  }

  uint32_t tensor(const std::string& name, uint64_t elements, uint32_t kind = MKRT_TENSOR_SCRATCH) {
    package::Tensor tensor;
    tensor.name = name;
    tensor.shape = {elements};
    tensor.elements = elements;
    tensor.size_bytes = elements * 4;
    tensor.kind = kind;
    program_.tensors.push_back(tensor);
    return static_cast<uint32_t>(program_.tensors.size() - 1);
  }

  uint32_t counter(const std::string& name, uint32_t size = 1) {
    package::Entry& entry = program_.entries.back();
    entry.counters.push_back({name, entry.counter_count, size});
    entry.counter_count += size;
    return static_cast<uint32_t>(entry.counters.size() - 1);
  }

  // The calls that follow belong to this record.
  Builder& record(const std::string& label, const std::vector<uint32_t>& grid = {1}) {
    package::Entry& entry = program_.entries.back();
    package::Record record;
    record.label = label;
    record.opcode = static_cast<uint32_t>(program_.isa.opcodes.size());
    record.dimensions = static_cast<uint32_t>(grid.size());
    for (size_t d = 0; d < grid.size(); ++d) {
      record.grid[d] = grid[d];
      record.tile_count *= grid[d];
    }
    record.first_tile = entry.tile_count;
    entry.tile_count += record.tile_count;
    entry.records.push_back(record);
    program_.isa.opcodes.emplace_back().name = label;
    return *this;
  }

  Builder& operand(Access access, const Slice& slice, const std::string& name = "") {
    package::Record& record = program_.entries.back().records.back();
    package::OpcodeDefinition& opcode = program_.isa.opcodes.back();
    package::OperandDefinition definition;
    definition.name = name.empty() ? "operand" + std::to_string(opcode.operands.size()) : name;
    definition.access = access;
    definition.dtypes = {package::Dtype::f32};
    opcode.operands.push_back(definition);
    package::Operand operand;
    operand.tensor = slice.tensor;
    operand.offset = slice.offset;
    operand.rank_stride = slice.rank_stride;
    operand.strides = slice.strides;
    operand.size = slice.size != 0 ? slice.size : program_.tensors[slice.tensor].elements;
    operand.rows = slice.rows;
    operand.row_stride = slice.row_stride;
    operand.rank = slice.rank;
    operand.limit = operand.size;
    for (size_t d = 0; d < 4; ++d) operand.limit += (record.grid[d] - 1) * slice.strides[d];
    if (slice.limit != 0) operand.limit = slice.limit;
    record.operands.emplace_back(operand);
    return *this;
  }
  Builder& read(const Slice& slice, const std::string& name = "") { return operand(Access::read, slice, name); }
  Builder& write(const Slice& slice, const std::string& name = "") { return operand(Access::write, slice, name); }
  // `shared_dimensions` as in the operand's definition.
  Builder& append(const Slice& slice, const std::vector<uint32_t>& shared_dimensions, const std::string& name = "") {
    operand(Access::append, slice, name);
    program_.isa.opcodes.back().operands.back().shared_dimensions = shared_dimensions;
    return *this;
  }

  Builder& absent_operand(const std::string& name) {
    package::OperandDefinition definition;
    definition.name = name;
    definition.dtypes = {package::Dtype::f32};
    definition.optional = true;
    program_.isa.opcodes.back().operands.push_back(definition);
    program_.entries.back().records.back().operands.emplace_back(std::nullopt);
    return *this;
  }

  Builder& wait(const Target& target) {
    package::Entry& entry = program_.entries.back();
    package::Wait wait;
    wait.array = target.counter;
    wait.counter = entry.counters[target.counter].first + target.offset;
    wait.count = target.count;
    wait.strides = target.strides;
    wait.divide = target.divide;
    wait.value = target.value;
    wait.step_offset = target.step;
    entry.records.back().waits.push_back(wait);
    return *this;
  }

  Builder& signal(const Target& target) {
    package::Entry& entry = program_.entries.back();
    package::Signal signal;
    signal.array = target.counter;
    signal.counter = entry.counters[target.counter].first + target.offset;
    signal.strides = target.strides;
    signal.divide = target.divide;
    signal.rank = target.rank;
    entry.records.back().signals.push_back(signal);
    return *this;
  }

  Builder& parameter(const std::string& name, uint32_t value) {
    program_.isa.opcodes.back().parameters.push_back({name, package::ParameterType::u32});
    program_.entries.back().records.back().parameters.push_back(value);
    return *this;
  }

  Builder& constraint(const package::Constraint& constraint) {
    program_.isa.opcodes.back().constraints.push_back(constraint);
    return *this;
  }

  package::Program& program() { return program_; }
  package::Entry& entry() { return program_.entries.back(); }
  package::Record& last_record() { return program_.entries.back().records.back(); }
  package::OpcodeDefinition& last_definition() { return program_.isa.opcodes.back(); }

 private:
  package::Program program_;
};

struct Refusal {
  int32_t record = -1;
  uint64_t tile = 0;
  int32_t rank = -1;
  std::string message;
};

// The failure of a program that must be refused.
inline Refusal refusal(package::Program& program) {
  try {
    check(program);
  } catch (const base::Failure& failure) {
    CHECK(failure.status() == MKRT_ERROR_SCHEDULE);
    return {failure.record(), failure.tile(), failure.rank(), failure.message()};
  }
  FAIL("the program was accepted");
  return {};
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Checks place and words of the failure of a program that must be refused.
inline void check_refused(package::Program& program, int32_t record, uint64_t tile, int32_t rank,
                          const std::vector<std::string>& words) {
  const Refusal found = refusal(program);
  INFO(found.message);
  CHECK(found.record == record);
  CHECK(found.tile == tile);
  CHECK(found.rank == rank);
  for (const std::string& word : words) CHECK_MESSAGE(contains(found.message, word), word);
}

}  // namespace mkrt::verify::test
