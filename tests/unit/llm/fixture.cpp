#include "fixture.hpp"

#include <cstdio>
#include <cstdlib>

namespace mkrt::test {

std::mt19937_64& random_engine() {
  static std::mt19937_64 engine([] {
    const char* wanted = std::getenv("MKRT_TEST_SEED");
    const uint64_t seed = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
    std::printf("MKRT_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
    return seed;
  }());
  return engine;
}

Record::Record(uint32_t opcode, std::initializer_list<uint32_t> grid, uint32_t rank, uint32_t ranks)
    : rank_(rank), ranks_(ranks) {
  record_.opcode = opcode;
  record_.tile_count = 1;
  std::fill(std::begin(record_.grid), std::end(record_.grid), 1u);
  size_t d = 0;
  for (uint32_t n : grid) {
    record_.grid[d++] = n;
    record_.tile_count *= n;
  }
}

Worker::Worker(const mkrt_host_isa& isa)
    : isa_(isa), scratch_(static_cast<std::byte*>(::operator new[](isa.scratch_size, std::align_val_t(64)))) {
  std::memset(scratch_.get(), 0xff, isa.scratch_size);
}

uint32_t Worker::run(Record& record) {
  std::vector<uint64_t> order(record.record_.tile_count);
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::shuffle(order.begin(), order.end(), random_engine());
  for (uint64_t number : order) {
    std::array<uint32_t, 4> index{};
    for (size_t d = 4; d-- > 0;) {
      index[d] = static_cast<uint32_t>(number % record.record_.grid[d]);
      number /= record.record_.grid[d];
    }
    if (const uint32_t fault = run_tile(record, index)) return fault;
  }
  return 0;
}

uint32_t Worker::run_tile(Record& record, std::array<uint32_t, 4> index) {
  std::vector<int64_t> delta(record.ranks_);
  for (uint32_t r = 0; r < record.ranks_; ++r) {
    delta[r] = (int64_t{r} - int64_t{record.rank_}) * static_cast<int64_t>(record.rank_distance_);
  }
  mkrt_host_tile tile{};
  tile.record = &record.record_;
  std::copy(index.begin(), index.end(), tile.index);
  tile.rank = record.rank_;
  tile.rank_count = record.ranks_;
  tile.step = step_;
  tile.rank_delta = delta.data();
  tile.scratch = scratch_.get();
  tile.scratch_size = isa_.scratch_size;
  tile.execute_serial = execute_serial_;
  return isa_.instructions[record.record_.opcode](&tile);
}

double number_of_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

double number_of_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  double magnitude = std::ldexp(mantissa + (exponent > 0 ? 1024 : 0), std::max(exponent, 1) - 25);
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

uint16_t random_bf16(double scale) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(random_normal() * scale)) >> 16);
}

uint16_t random_f16(double scale) {
  const double wanted = std::min(std::abs(random_normal() * scale), 60000.0);
  uint16_t bits = 0;
  for (int bit = 14; bit >= 0; --bit) {
    const auto candidate = static_cast<uint16_t>(bits | 1 << bit);
    if (candidate < 0x7c00 && number_of_f16(candidate) <= wanted) bits = candidate;
  }
  return static_cast<uint16_t>(bits | (random_below(2) << 15));
}

Matrix random_matrix(size_t rows, size_t columns) {
  Matrix matrix{rows, columns, std::vector<uint16_t>(rows * columns)};
  for (uint16_t& v : matrix.values) v = random_bf16();
  return matrix;
}

size_t packed_index(size_t row, size_t column, size_t columns) {
  return ((row / 8) * ((columns + 31) / 32) + column / 32) * 256 + (row % 8) * 32 + column % 32;
}

size_t packed_size(size_t rows, size_t columns, size_t row_multiple) {
  return (rows + row_multiple - 1) / row_multiple * row_multiple * ((columns + 31) / 32 * 32);
}

void pack(const Matrix& matrix, size_t row_multiple, Tensor<uint16_t>& out) {
  const size_t size = packed_size(matrix.rows, matrix.columns, row_multiple);
  for (size_t i = 0; i < size; ++i) out.set(i, 0);
  for (size_t r = 0; r < matrix.rows; ++r) {
    for (size_t c = 0; c < matrix.columns; ++c) {
      out.set(packed_index(r, c, matrix.columns), matrix.values[r * matrix.columns + c]);
    }
  }
}

void fill_random(Tensor<float>& tensor, double scale) {
  for (size_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<float>(random_normal() * scale));
}

}  // namespace mkrt::test
