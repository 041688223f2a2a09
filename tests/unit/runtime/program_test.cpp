#include "runtime/program.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "base/failure.hpp"

namespace {

using mkrt::package::Operand;
using mkrt::package::Record;
using mkrt::package::Tensor;

Tensor make_tensor(std::string name, uint32_t kind, mkrt::package::Dtype dtype, uint64_t elements) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.kind = kind;
  tensor.dtype = dtype;
  tensor.shape = {elements};
  tensor.elements = elements;
  tensor.size_bytes = elements * mkrt::package::dtype_size(dtype);
  return tensor;
}

// A program of one entry with one record, whose operands are given.
mkrt::package::Program make_package(Record record) {
  mkrt::package::Program package;
  package.isa.name = "test";
  package.isa.opcodes.emplace_back().name = "read";
  package.tensors.push_back(make_tensor("weight", MKRT_TENSOR_WEIGHT, mkrt::package::Dtype::bf16, 1 << 20));
  package.tensors.push_back(make_tensor("input", MKRT_TENSOR_INPUT, mkrt::package::Dtype::f32, 1 << 20));
  record.tile_count = 1;
  for (const uint32_t extent : record.grid) record.tile_count *= extent;
  package.entries.emplace_back().name = "entry";
  package.entries[0].tile_count = record.tile_count;
  package.entries[0].records.push_back(std::move(record));
  return package;
}

std::shared_ptr<mkrt::runtime::Program> make_program(mkrt::package::Program package) {
  auto runtime = mkrt::runtime::create_runtime(nullptr, {});
  return std::make_shared<mkrt::runtime::Program>(std::move(runtime),
                                                  std::make_shared<const mkrt::package::Program>(std::move(package)));
}

// What the tiles declare to read, counted one by one.
uint64_t count_elements(const Record& record, const Operand& operand) {
  uint64_t sum = 0;
  std::array<uint32_t, 4> i{};
  for (i[0] = 0; i[0] < record.grid[0]; ++i[0]) {
    for (i[1] = 0; i[1] < record.grid[1]; ++i[1]) {
      for (i[2] = 0; i[2] < record.grid[2]; ++i[2]) {
        for (i[3] = 0; i[3] < record.grid[3]; ++i[3]) {
          uint64_t start = 0;
          for (int d = 0; d < 4; ++d) start += i[d] * operand.strides[d];
          sum += std::min(operand.size, operand.limit - start) * operand.rows;
        }
      }
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("the weight bytes that a record reads are those of a count over its tiles, with and without a limit") {
  std::mt19937 generator(std::random_device{}());
  const auto pick = [&](uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(generator);
  };
  for (int round = 0; round < 2000; ++round) {
    Record record;
    Operand operand;
    uint64_t largest_start = 0;
    for (int d = 0; d < 4; ++d) {
      record.grid[d] = static_cast<uint32_t>(pick(1, 7));
      operand.strides[d] = pick(0, 3) == 0 ? 0 : pick(1, 100);
      largest_start += (record.grid[d] - 1) * operand.strides[d];
    }
    operand.size = pick(1, 200);
    operand.rows = static_cast<uint32_t>(pick(1, 3));
    // Every tile starts below the limit, which cuts some, all or none.
    operand.limit = pick(0, 1) == 0 ? largest_start + operand.size : largest_start + pick(1, operand.size);
    record.operands = {operand};
    const uint64_t expected = count_elements(record, operand) * 2;
    Operand activation = operand;  // not a weight: not counted
    activation.tensor = 1;
    record.operands.emplace_back(activation);
    record.operands.emplace_back(std::nullopt);
    REQUIRE(make_program(make_package(record))->record_info(0, 0).bytes_read == expected);
  }
}

TEST_CASE("bytes that do not fit in 64 bits become the largest number that does") {
  Record record;
  record.grid = {1u << 30, 1, 1, 1};
  Operand operand;
  operand.size = uint64_t{1} << 62;
  operand.limit = operand.size;
  record.operands = {operand};
  CHECK(make_program(make_package(record))->record_info(0, 0).bytes_read == UINT64_MAX);
}

TEST_CASE("tensors are found by name, whatever their order") {
  mkrt::package::Program package = make_package({});
  std::vector<std::string> names;
  for (int i = 0; i < 500; ++i) names.push_back("tensor " + std::to_string(i * 7919 % 500));
  package.tensors.clear();
  for (const std::string& name : names) {
    package.tensors.push_back(make_tensor(name, MKRT_TENSOR_STATE, mkrt::package::Dtype::f32, 4));
  }
  package.entries[0].records.clear();
  const auto program = make_program(std::move(package));
  for (uint32_t i = 0; i < names.size(); ++i) CHECK(program->find_tensor(names[i]) == i);
  for (const char* missing : {"", "tensor", "tensor 500", "tensor 0 "}) {
    CHECK_THROWS_AS(program->find_tensor(missing), mkrt::base::Failure);
  }
}
