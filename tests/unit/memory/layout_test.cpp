#include "memory/layout.hpp"

#include <doctest/doctest.h>

#include <random>

#include "base/failure.hpp"

using namespace mkrt;

namespace {

package::Tensor tensor_of(uint32_t kind, uint64_t size_bytes) {
  package::Tensor tensor;
  tensor.dtype = package::Dtype::u8;
  tensor.kind = kind;
  tensor.shape = {size_bytes};
  tensor.elements = tensor.size_bytes = size_bytes;
  return tensor;
}

package::Entry entry_with(uint32_t counters) {
  package::Entry entry;
  entry.counter_count = counters;
  return entry;
}

}  // namespace

TEST_CASE("tensors and counters are aligned, apart, inside the heap, and in the order of their kinds") {
  std::mt19937 random(std::random_device{}());
  package::Program program;
  uint64_t weight_bytes = 0;
  for (int i = 0; i < 40; ++i) {
    const uint32_t kind = MKRT_TENSOR_WEIGHT + random() % 5;
    const uint64_t size = 1 + random() % 2000;
    program.tensors.push_back(tensor_of(kind, size));
    if (kind == MKRT_TENSOR_WEIGHT) weight_bytes = (weight_bytes + 255) / 256 * 256 + size;
  }
  program.entries = {entry_with(5), entry_with(0), entry_with(9)};
  const memory::Layout layout = memory::plan_layout(program);

  CHECK(layout.weight_bytes == weight_bytes);
  CHECK(layout.session_bytes % 256 == 0);
  uint64_t end = 0;
  for (const uint32_t kind : {MKRT_TENSOR_STATE, MKRT_TENSOR_INPUT, MKRT_TENSOR_OUTPUT, MKRT_TENSOR_SCRATCH}) {
    for (size_t i = 0; i < program.tensors.size(); ++i) {
      if (program.tensors[i].kind != kind) continue;
      CHECK(layout.tensor_offsets[i] % 256 == 0);
      CHECK(layout.tensor_offsets[i] >= end);
      end = layout.tensor_offsets[i] + program.tensors[i].size_bytes;
    }
  }
  for (size_t e = 0; e < program.entries.size(); ++e) {
    CHECK(layout.counter_offsets[e] % 256 == 0);
    CHECK(layout.counter_offsets[e] >= end);
    end = layout.counter_offsets[e] + uint64_t{program.entries[e].counter_count} * MKRT_COUNTER_STRIDE;
  }
  CHECK(layout.session_bytes >= end);
  CHECK(layout.session_bytes < end + 256);
  for (size_t i = 0; i < program.tensors.size(); ++i) {
    if (program.tensors[i].kind == MKRT_TENSOR_WEIGHT) CHECK(layout.tensor_offsets[i] == memory::Layout::no_offset);
  }
}

TEST_CASE("a program without tensors and counters has a heap all the same") {
  package::Program program;
  program.entries = {entry_with(0)};
  const memory::Layout layout = memory::plan_layout(program);
  CHECK(layout.session_bytes == memory::heap_alignment);
  CHECK(layout.weight_bytes == 0);
}

TEST_CASE("sums beyond 63 bits are refused as out of memory") {
  for (const uint32_t kind : {MKRT_TENSOR_STATE, MKRT_TENSOR_WEIGHT}) {
    package::Program program;
    for (int i = 0; i < 3; ++i) program.tensors.push_back(tensor_of(kind, uint64_t{1} << 62));
    try {
      memory::plan_layout(program);
      FAIL("nothing was thrown");
    } catch (const base::Failure& failure) {
      CHECK(failure.status() == MKRT_ERROR_OUT_OF_MEMORY);
    }
  }
}
