// What the tests of mkrt.llm share: tensors between guards, records, and runs of all their tiles on every vector
// target.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "host/llm/llm.hpp"

namespace mkrt::test {

// Fresh numbers in every run; the seed is printed, and MKRT_TEST_SEED repeats one.
std::mt19937_64& random_engine();

inline double random_normal() { return std::normal_distribution<double>()(random_engine()); }
inline uint64_t random_below(uint64_t bound) {
  return std::uniform_int_distribution<uint64_t>(0, bound - 1)(random_engine());
}

// NaN for floats of any size, a number that no test uses for integers.
template <class T>
T poison() {
  if constexpr (std::is_same_v<T, float>) return std::numeric_limits<float>::quiet_NaN();
  if constexpr (std::is_same_v<T, uint16_t>) return uint16_t{0x7fff};  // NaN as bf16 and as f16
  return static_cast<T>(0x5a5a5a5a);
}

// The instance of a tensor on each of `ranks` ranks (one: on the own rank, whichever that is), one after the other in
// one allocation that ends with its last byte, so that the address sanitizer sees the first byte beyond. Starts
// poisoned. `shift` moves it by as many bytes from where its type would be aligned.
template <class T>
class Tensor {
 public:
  explicit Tensor(size_t count, uint32_t ranks = 1, size_t shift = 0)
      : count_(count), ranks_(ranks), shift_(shift), bytes_(new std::byte[shift + count * ranks * sizeof(T)]) {
    for (size_t i = 0; i < count * ranks; ++i) write(i, poison<T>());
  }
  Tensor(std::initializer_list<T> values) : Tensor(values.size()) {
    size_t i = 0;
    for (T v : values) write(i++, v);
  }

  uint32_t ranks() const { return ranks_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  std::byte* address(uint32_t rank = 0) const { return bytes_.get() + shift_ + rank * bytes(); }
  T at(size_t index, uint32_t rank = 0) const {
    T value;
    std::memcpy(&value, address(rank) + index * sizeof(T), sizeof value);
    return value;
  }
  void set(size_t index, T value, uint32_t rank = 0) { write(rank * count_ + index, value); }
  // Whether the element still holds what the constructor wrote.
  bool untouched(size_t index, uint32_t rank = 0) const {
    const T was = poison<T>();
    const T is = at(index, rank);
    return std::memcmp(&was, &is, sizeof(T)) == 0;
  }
  std::vector<T> values(uint32_t rank = 0) const {
    std::vector<T> out(count_);
    std::memcpy(out.data(), address(rank), bytes());
    return out;
  }

 private:
  void write(size_t index, T value) { std::memcpy(address() + index * sizeof(T), &value, sizeof(T)); }

  size_t count_;
  uint32_t ranks_;
  size_t shift_;
  std::unique_ptr<std::byte[]> bytes_;
};

// A slice as a schedule states it, in elements.
struct SliceOf {
  size_t offset = 0;
  size_t size = 0;  // 0: the whole tensor
  std::array<size_t, 4> strides{};
  size_t limit = SIZE_MAX;
  uint32_t rows = 1;
  size_t row_stride = 0;
  mkrt_rank_selector rank{MKRT_RANK_SELF, 0xff, 0};
};

// A record for one rank (`rank` of `ranks`), whose tensors are Tensors of as many ranks.
class Record {
 public:
  Record(uint32_t opcode, std::initializer_list<uint32_t> grid, uint32_t rank = 0, uint32_t ranks = 1);

  template <class T>
  Record& operand(uint32_t number, const Tensor<T>& tensor, SliceOf slice = {}) {
    if (slice.size == 0) slice.size = tensor.size() - slice.offset;
    mkrt_operand& o = record_.operand[number];
    o.address = reinterpret_cast<uintptr_t>(tensor.address(tensor.ranks() == 1 ? 0 : rank_)) + slice.offset * sizeof(T);
    for (size_t d = 0; d < 4; ++d) o.stride[d] = slice.strides[d] * sizeof(T);
    o.size = slice.size * sizeof(T);
    o.limit = slice.limit == SIZE_MAX ? uint64_t{1} << 62 : slice.limit * sizeof(T);
    o.row_stride = slice.row_stride * sizeof(T);
    o.rows = slice.rows;
    o.rank = slice.rank;
    return *this;
  }
  Record& parameter(uint32_t number, uint32_t value) {
    record_.parameter[number] = value;
    return *this;
  }
  Record& parameter(uint32_t number, float value) { return parameter(number, std::bit_cast<uint32_t>(value)); }

  mkrt_record& get() { return record_; }

  // Tests with several ranks give all tensors one size, so that one delta leads from rank to rank.
  void use_rank_distance(size_t bytes) { rank_distance_ = bytes; }

 private:
  friend class Worker;
  mkrt_record record_{};
  size_t rank_distance_ = 0;
  uint32_t rank_;
  uint32_t ranks_;
};

// A worker with scratch memory that starts full of poison and that survives from run to run.
class Worker {
 public:
  explicit Worker(const mkrt_host_isa& isa);

  // Runs all tiles in a random order; returns the first fault, or 0.
  uint32_t run(Record& record);
  // Runs the tile with these indices.
  uint32_t run_tile(Record& record, std::array<uint32_t, 4> index);

  void next_execute() { ++execute_serial_; }
  void next_step() { ++step_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
  };
  const mkrt_host_isa& isa_;
  std::unique_ptr<std::byte[], Free> scratch_;
  uint64_t execute_serial_ = 1;
  uint64_t step_ = 0;
};

// bf16 and f16 by their definitions, through double.
double number_of_bf16(uint16_t bits);
double number_of_f16(uint16_t bits);
// A bf16 or f16 near a normally distributed number.
uint16_t random_bf16(double scale = 1);
uint16_t random_f16(double scale = 1);

// A matrix as plain numbers and as packed weights.
struct Matrix {
  size_t rows;
  size_t columns;
  std::vector<uint16_t> values;  // bf16, row after row

  double at(size_t row, size_t column) const { return number_of_bf16(values[row * columns + column]); }
};
Matrix random_matrix(size_t rows, size_t columns);
size_t packed_index(size_t row, size_t column, size_t columns);
// `row_multiple` is the tile's rows.
size_t packed_size(size_t rows, size_t columns, size_t row_multiple);
void pack(const Matrix& matrix, size_t row_multiple, Tensor<uint16_t>& out);

void fill_random(Tensor<float>& tensor, double scale = 1);

}  // namespace mkrt::test
