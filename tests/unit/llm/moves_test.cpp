// copy and reduce_f32, reduce_f16, reduce_bf16, written from isa/README.md: single tiles, bits and rounding. Between
// ranks, through schedules, they are tested in tests/conformance.
#include <doctest/doctest.h>

#include "fixture.hpp"
#include "mkrt_isa/llm.hpp"

namespace {

using namespace mkrt::test;
namespace llm = mkrt::isa::llm;

constexpr mkrt_rank_selector all_ranks{MKRT_RANK_ALL, 0xff, 0};

// Runs the only tile of a record of rank 0 of as many ranks as `in` has.
template <class T>
uint32_t run(uint32_t opcode, const Tensor<T>& in, const SliceOf& from, const Tensor<T>& out, const SliceOf& to) {
  Record record(opcode, {1}, 0, in.ranks());
  record.operand(llm::copy::in, in, from).operand(llm::copy::out, out, to);
  record.parameter(llm::copy::sms, 1u);
  record.use_rank_distance(in.bytes());
  return Worker(mkrt::host::llm_isa).run(record);
}

// The 16 bits of a type whose number, by `number_of`, is nearest to `value`; those that are even of two.
uint16_t nearest(double value, uint16_t infinity, double (*number_of)(uint16_t)) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value)) return infinity + 1;
  const double magnitude = std::abs(value);
  uint16_t below = 0;  // the largest that is not above
  for (uint16_t bit = 0x4000; bit != 0; bit /= 2) {
    const auto candidate = static_cast<uint16_t>(below | bit);
    if (candidate < infinity && number_of(candidate) <= magnitude) below = candidate;
  }
  const auto above = static_cast<uint16_t>(below + 1);
  // Infinity stands where the next number would.
  const double step = number_of(below) - number_of(static_cast<uint16_t>(below - 1));
  const double next = above == infinity ? number_of(below) + step : number_of(above);
  const double middle = number_of(below) + (next - number_of(below)) / 2;
  const bool up = magnitude > middle || (magnitude == middle && below % 2 == 1);
  return static_cast<uint16_t>(sign | (up ? above : below));
}

void check_rounding(uint32_t opcode, uint16_t infinity, double (*number_of)(uint16_t)) {
  constexpr size_t count = 20'000;
  Tensor<uint16_t> in(count, 2), out(count, 2);
  for (size_t i = 0; i < count; ++i) {
    // Any bits, and often two that are close to each other, so that sums lie half way between numbers.
    const auto first = static_cast<uint16_t>(random_below(0x10000));
    const auto second = static_cast<uint16_t>(i % 2 == 0 ? random_below(0x10000) : first - random_below(3 << 10));
    in.set(i, first, 0);
    in.set(i, second, 1);
  }
  REQUIRE(run(opcode, in, {.rank = all_ranks}, out, {.rank = all_ranks}) == 0);
  for (size_t i = 0; i < count; ++i) {
    const double first = number_of(in.at(i, 0)), second = number_of(in.at(i, 1));
    const double sum = static_cast<float>(first + second);  // a double holds the sum of both exactly, or more than f32
    CAPTURE(first);
    CAPTURE(second);
    for (uint32_t rank : {0u, 1u}) {
      if (std::isnan(sum)) {
        CHECK((out.at(i, rank) & 0x7fff) > infinity);
      } else if (std::isinf(sum)) {
        CHECK(out.at(i, rank) == (infinity | (sum < 0 ? 0x8000 : 0)));
      } else {
        CHECK(out.at(i, rank) == nearest(sum, infinity, number_of));
      }
    }
  }
}

double number_of_any_bf16(uint16_t bits) { return number_of_bf16(bits); }

}  // namespace

TEST_CASE("sums of f16 and bf16 are added in f32 and rounded to the nearest, with infinities, NaN and tiny numbers") {
  check_rounding(llm::opcode_reduce_f16, 0x7c00, number_of_f16);
  check_rounding(llm::opcode_reduce_bf16, 0x7f80, number_of_any_bf16);
}

TEST_CASE("sums of f32 are added in the order of ranks") {
  Tensor<float> in(3, 3), out(3, 3);
  // (1e8 + 1) - 1e8 is 0 in f32, 1e8 - 1e8 + 1 is 1.
  const float values[3][3] = {{1e8f, 1e8f, 1}, {1, -1e8f, 1e8f}, {-1e8f, 1, -1e8f}};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (size_t i = 0; i < 3; ++i) in.set(i, values[rank][i], rank);
  }
  REQUIRE(run(llm::opcode_reduce_f32, in, {.rank = all_ranks}, out, {}) == 0);
  CHECK(out.values(0) == std::vector<float>{0, 1, 0});
  for (size_t i = 0; i < 3; ++i) CHECK(out.untouched(i, 1));
}

TEST_CASE("what a limit cuts off either slice is not moved") {
  for (const auto& [from, to] : {std::pair<size_t, size_t>{5, 9}, {9, 5}, {7, 7}}) {
    for (const uint32_t opcode : {uint32_t{llm::opcode_copy}, uint32_t{llm::opcode_reduce_f32}}) {
      Tensor<float> in(9), out(9);
      fill_random(in);
      REQUIRE(run(opcode, in, {.limit = from}, out, {.limit = to}) == 0);
      for (size_t i = 0; i < 9; ++i) {
        if (i < std::min(from, to)) {
          CHECK(out.at(i) == in.at(i));
        } else {
          CHECK(out.untouched(i));
        }
      }
    }
  }
}

TEST_CASE("bytes are copied from and to any address") {
  for (size_t shift = 0; shift < 4; ++shift) {
    Tensor<uint8_t> in(101, 1, shift), out(101, 1, 3 - shift);
    for (size_t i = 0; i < in.size(); ++i) in.set(i, static_cast<uint8_t>(random_below(256)));
    REQUIRE(run(llm::opcode_copy, in, {}, out, {}) == 0);
    CHECK(out.values() == in.values());
  }
}

TEST_CASE("an output that is the input is allowed, one that overlaps it is a fault") {
  for (const uint32_t opcode : {uint32_t{llm::opcode_copy}, uint32_t{llm::opcode_reduce_f32}}) {
    Tensor<float> t(20);
    fill_random(t);
    const std::vector<float> before = t.values();
    const auto move = [&](size_t from, size_t to) {
      return run(opcode, t, {.offset = from, .size = 8}, t, {.offset = to, .size = 8});
    };
    CHECK(move(4, 4) == 0);
    CHECK(t.values() == before);
    for (const size_t to : {3, 5, 11}) {
      CHECK(move(4, to) == llm::copy::fault_input_and_output_overlap_without_being_same);
    }
    CHECK(t.values() == before);
    CHECK(move(4, 12) == 0);
    for (size_t i = 0; i < 8; ++i) CHECK(t.at(12 + i) == before[4 + i]);
  }
}
