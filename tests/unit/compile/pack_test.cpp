#include "compile/pack.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "package/safetensors.hpp"
#include "temporary_folder.hpp"

using namespace mkrt::compile;

namespace {

// Rows x columns of random values in one of the source dtypes, at an odd address: files align nothing.
struct Source {
  Source(uint64_t source_rows, uint64_t source_columns, SourceDtype source_dtype, uint32_t seed)
      : rows(source_rows), columns(source_columns), dtype(source_dtype) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    bytes.resize(1 + rows * columns * dtype_bytes(dtype));
    for (uint64_t i = 0; i < rows * columns; ++i) {
      uint32_t bits = std::bit_cast<uint32_t>(normal(random));
      if (dtype == SourceDtype::bf16) bits >>= 16;
      if (dtype == SourceDtype::f16) bits = random() % 0x7c00 | (random() & 0x8000);
      std::memcpy(bytes.data() + 1 + i * dtype_bytes(dtype), &bits, dtype_bytes(dtype));
    }
  }
  SourceTensor tensor() const { return {dtype, std::span(bytes).subspan(1)}; }

  // The element as bf16, without the code under test: the nearer of the two neighbours, the even one if both are.
  uint16_t expected(uint64_t row, uint64_t column) const {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + 1 + (row * columns + column) * dtype_bytes(dtype), dtype_bytes(dtype));
    if (dtype == SourceDtype::bf16) return static_cast<uint16_t>(bits);
    double value = std::bit_cast<float>(bits);
    if (dtype == SourceDtype::f16) {
      const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
      value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      if (bits >> 15) value = -value;
    }
    const uint32_t single = std::bit_cast<uint32_t>(static_cast<float>(value));
    const auto below = static_cast<uint16_t>(single >> 16);  // towards zero
    const double low = std::bit_cast<float>(uint32_t{below} << 16);
    const double high = std::bit_cast<float>((uint32_t{below} + 1) << 16);
    const double to_low = std::abs(value - low), to_high = std::abs(high - value);
    if (to_low == to_high) return below % 2 == 0 ? below : below + 1;
    return to_low < to_high ? below : below + 1;
  }

  uint64_t rows, columns;
  SourceDtype dtype;
  std::vector<std::byte> bytes;
};

// Element (n, k) of the packed order, as isa/README.md gives it.
uint64_t packed_place(uint64_t n, uint64_t k, uint64_t padded_columns) {
  return ((n / 8) * (padded_columns / 32) + k / 32) * 256 + (n % 8) * 32 + k % 32;
}

BoundWeight bind_all(const Weight& weight, const std::vector<Source>& sources) {
  BoundWeight bound{&weight, {}};
  for (const Source& source : sources) bound.sources.push_back(source.tensor());
  return bound;
}

std::vector<uint16_t> packed(const BoundWeight& bound) {
  const Weight& weight = *bound.weight;
  std::vector<uint16_t> out(weight.padded_rows() * weight.padded_columns(), 0xdead);
  pack_blocks(bound, 0, weight.padded_rows() / 8, out.data());
  return out;
}

Weight make_weight(Weight::Layout layout, const std::vector<Source>& sources, uint64_t tile_rows) {
  Weight weight{"w", layout, {}, sources[0].columns, whole(sources[0].columns), tile_rows};
  for (const Source& source : sources) weight.sources.push_back({"source", source.rows, whole(source.rows)});
  return weight;
}

}  // namespace

TEST_CASE("a matrix of any size is packed element by element as the instruction set says") {
  for (const auto dtype : {SourceDtype::bf16, SourceDtype::f16, SourceDtype::f32}) {
    for (const auto& [rows, columns, tile_rows] :
         {std::array<uint64_t, 3>{1, 1, 16}, {172, 172, 16}, {33, 576, 32}, {48, 64, 16}, {7, 895, 8}, {100, 31, 48}}) {
      CAPTURE(rows);
      CAPTURE(columns);
      const std::vector<Source> sources{{rows, columns, dtype, 1}};
      const Weight weight = make_weight(Weight::Layout::matrix, sources, tile_rows);
      const std::vector<uint16_t> out = packed(bind_all(weight, sources));
      REQUIRE(weight.padded_rows() % tile_rows == 0);
      REQUIRE(weight.padded_rows() - rows < tile_rows);
      size_t wrong = 0;
      for (uint64_t n = 0; n < weight.padded_rows(); ++n) {
        for (uint64_t k = 0; k < weight.padded_columns(); ++k) {
          const uint16_t expected = n < rows && k < columns ? sources[0].expected(n, k) : 0;
          wrong += out[packed_place(n, k, weight.padded_columns())] != expected;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("fused rows follow each other without padding between the parts") {
  const std::vector<Source> sources{
      {52, 100, SourceDtype::bf16, 1}, {13, 100, SourceDtype::f32, 2}, {13, 100, SourceDtype::f16, 3}};
  const Weight weight = make_weight(Weight::Layout::matrix, sources, 16);
  const std::vector<uint16_t> out = packed(bind_all(weight, sources));
  size_t wrong = 0;
  for (uint64_t n = 0; n < 78; ++n) {
    const size_t part = n < 52 ? 0 : n < 65 ? 1 : 2;
    const uint64_t row = n - std::array<uint64_t, 3>{0, 52, 65}[part];
    for (uint64_t k = 0; k < 100; ++k) wrong += out[packed_place(n, k, 128)] != sources[part].expected(row, k);
  }
  CHECK(wrong == 0);
}

TEST_CASE("gate and up alternate in eights and each is padded on its own") {
  const std::vector<Source> sources{{203, 96, SourceDtype::bf16, 1}, {203, 96, SourceDtype::bf16, 2}};
  const Weight weight = make_weight(Weight::Layout::interleaved, sources, 32);
  CHECK(weight.padded_rows() == 416);
  const std::vector<uint16_t> out = packed(bind_all(weight, sources));
  size_t wrong = 0;
  for (uint64_t n = 0; n < 416; ++n) {
    const uint64_t row = n / 16 * 8 + n % 8;
    for (uint64_t k = 0; k < 96; ++k) {
      const uint16_t expected = row < 203 ? sources[n / 8 % 2].expected(row, k) : 0;
      wrong += out[packed_place(n, k, 96)] != expected;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("any range of block rows can be packed alone") {
  const std::vector<Source> sources{{60, 70, SourceDtype::bf16, 5}};
  const Weight weight = make_weight(Weight::Layout::matrix, sources, 16);
  const BoundWeight bound = bind_all(weight, sources);
  const std::vector<uint16_t> whole = packed(bound);
  std::vector<uint16_t> part(3 * 8 * 96, 0xdead);
  pack_blocks(bound, 2, 3, part.data());
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 2 * 8 * 96));
}

TEST_CASE("bf16 rounds to nearest even, keeps signs and never makes infinity of NaN") {
  CHECK(round_to_bf16(1.0f) == 0x3f80);
  CHECK(round_to_bf16(std::bit_cast<float>(0x3f808000u)) == 0x3f80);  // halfway, down to even
  CHECK(round_to_bf16(std::bit_cast<float>(0x3f818000u)) == 0x3f82);  // halfway, up to even
  CHECK(round_to_bf16(std::bit_cast<float>(0x3f808001u)) == 0x3f81);
  CHECK(round_to_bf16(-0.0f) == 0x8000);
  CHECK(round_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(round_to_bf16(-std::numeric_limits<float>::infinity()) == 0xff80);
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
    CHECK(std::isnan(widen_bf16(round_to_bf16(std::bit_cast<float>(bits)))));
  }
}

TEST_CASE("every f16 widens to its exact value") {
  size_t wrong = 0;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
    const float widened = widen_f16(static_cast<uint16_t>(bits));
    if (exponent == 31 && fraction != 0) {
      wrong += !std::isnan(widened);
      continue;
    }
    double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) value = std::numeric_limits<double>::infinity();
    if (bits >> 15) value = -value;
    wrong += widened != value || std::signbit(widened) != std::signbit(value);
  }
  CHECK(wrong == 0);
}

TEST_CASE("shares of rows and columns are packed, and zeros where a share ends before its size") {
  const std::vector<Source> sources{{40, 100, SourceDtype::bf16, 1}, {30, 100, SourceDtype::f32, 2}};
  Weight weight = make_weight(Weight::Layout::matrix, sources, 16);
  weight.sources[0].taken = {7, 5, 11};
  weight.sources[1].taken = {20, 10, 10};
  weight.taken_columns = {33, 40, 70};
  REQUIRE(weight.padded_rows() == 32);
  REQUIRE(weight.padded_columns() == 96);
  const auto check = [&](const std::function<uint16_t(uint64_t row)>& source_row_and_part) {
    const std::vector<uint16_t> out = packed(bind_all(weight, sources));
    size_t wrong = 0;
    for (uint64_t n = 0; n < 32; ++n) {
      for (uint64_t k = 0; k < 96; ++k) {
        const uint16_t code = source_row_and_part(n);
        const bool zero = code == 0xffff || k >= 40;
        const uint16_t expected = zero ? 0 : sources[code >> 8].expected(code & 0xff, 33 + k);
        wrong += out[packed_place(n, k, 96)] != expected;
      }
    }
    CHECK(wrong == 0);
  };
  // The part in the upper byte, the row in the lower.
  check([](uint64_t n) -> uint16_t {
    if (n < 5) return static_cast<uint16_t>(7 + n);
    if (n >= 11 && n < 21) return static_cast<uint16_t>(0x100 + 20 + n - 11);
    return 0xffff;
  });
  weight.layout = Weight::Layout::interleaved;
  weight.sources[1].taken = {20, 9, 11};
  check([](uint64_t n) -> uint16_t {
    const uint64_t row = n / 16 * 8 + n % 8;
    if (n % 16 < 8) return row < 5 ? static_cast<uint16_t>(7 + row) : 0xffff;
    return row < 9 ? static_cast<uint16_t>(0x100 + 20 + row) : 0xffff;
  });

  const std::vector<Source> biases{{9, 1, SourceDtype::bf16, 3}, {6, 1, SourceDtype::bf16, 4}};
  Weight bias = make_weight(Weight::Layout::vector, biases, 1);
  bias.sources[0].taken = {4, 3, 5};
  bias.sources[1].taken = {0, 0, 2};
  REQUIRE(bias.padded_rows() == 7);
  std::vector<float> values(7, NAN);
  pack_vector(bind_all(bias, biases), values.data());
  for (uint64_t i = 0; i < 7; ++i) CHECK(values[i] == (i < 3 ? widen_bf16(biases[0].expected(4 + i, 0)) : 0.0f));
}

TEST_CASE("a weight file reads back with every tensor in its place, and reports its progress") {
  // The first matrix is larger than a piece, so that pieces of one tensor have to join.
  const std::vector<Source> large{{1500, 2100, SourceDtype::bf16, 1}}, small{{9, 40, SourceDtype::f32, 2}};
  const std::vector<Source> bias{{5, 1, SourceDtype::f16, 3}, {2, 1, SourceDtype::bf16, 4}};
  Weight first = make_weight(Weight::Layout::matrix, large, 32);
  Weight second = make_weight(Weight::Layout::matrix, small, 16);
  Weight third = make_weight(Weight::Layout::vector, bias, 1);
  Weight fourth{"constants", Weight::Layout::values, {}, 1, whole(1), 1, {0.5f, 0.25f}};
  first.name = "first", second.name = "second", third.name = "third";

  const mkrt::test::TemporaryFolder folder;
  uint64_t last = 0, all = 0;
  write_weights({bind_all(first, large), bind_all(second, small), bind_all(third, bias), {&fourth, {}}},
                folder.path("w.safetensors"), [&](uint64_t done, uint64_t total) {
                  CHECK(done >= last);
                  last = done, all = total;
                });
  CHECK(last == all);
  CHECK(all == first.size_bytes() + second.size_bytes() + third.size_bytes() + fourth.size_bytes());

  const mkrt::package::SafetensorsFile file(folder.path("w.safetensors"));
  const auto* matrix = file.find("first");
  REQUIRE(matrix);
  CHECK(matrix->shape == std::vector<uint64_t>{188, 66, 8, 32});
  CHECK(matrix->dtype == "BF16");
  const std::vector<uint16_t> expected = packed(bind_all(first, large));
  REQUIRE(matrix->bytes.size() == expected.size() * 2);
  CHECK(std::memcmp(matrix->bytes.data(), expected.data(), matrix->bytes.size()) == 0);

  const auto* vector = file.find("third");
  REQUIRE(vector);
  CHECK(vector->dtype == "F32");
  CHECK(vector->shape == std::vector<uint64_t>{7});
  std::array<float, 7> values{};
  REQUIRE(vector->bytes.size() == sizeof values);
  std::memcpy(values.data(), vector->bytes.data(), sizeof values);
  uint16_t bits = 0;
  std::memcpy(&bits, bias[0].bytes.data() + 1 + 2 * 2, 2);
  CHECK(values[2] == widen_f16(bits));
  CHECK(values[6] == widen_bf16(bias[1].expected(1, 0)));
  REQUIRE(file.find("constants"));
}
