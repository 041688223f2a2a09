// Operands as an instruction sees them: what may be read, and where results go.
//
// Nothing here trusts an address to be aligned (weights are used where a file has them) or a row to be as long as the
// instruction set says (a limit may cut it). What a limit cuts off reads as zero and is not written.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "mkrt/host_isa.h"

namespace mkrt::host::llm {

template <class T>
T load(const std::byte* address) noexcept {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

// Rows of elements, read only.
struct Slice {
  uintptr_t address = 0;    // of row 0; 0: the operand is absent
  uint64_t count = 0;       // elements of a row
  uint64_t row_stride = 0;  // bytes

  bool present() const noexcept { return address != 0; }
  const std::byte* row(uint64_t number) const noexcept {
    return reinterpret_cast<const std::byte*>(address + number * row_stride);
  }
};

// Operand `number` with elements of `element_size` bytes, on the rank that it names. An operand at every rank, which
// only writes may be, reads as the own rank's.
inline Slice read_slice(const mkrt_host_tile* tile, uint32_t number, uint32_t element_size) noexcept {
  const uintptr_t address = reinterpret_cast<uintptr_t>(mkrt_host_operand(tile, number));
  if (address == 0) return {};
  uint32_t rank = tile->rank;
  uint32_t ranks = 1;
  if (tile->record->operand[number].rank.mode != MKRT_RANK_ALL) mkrt_host_operand_ranks(tile, number, &rank, &ranks);
  return {address + static_cast<uintptr_t>(tile->rank_delta[rank]), mkrt_host_operand_size(tile, number) / element_size,
          tile->record->operand[number].row_stride};
}

// Element `index` of row `row` of a slice of T; zero where there is none.
template <class T>
T element(const Slice& slice, uint64_t row, uint64_t index) noexcept {
  return slice.present() && index < slice.count ? load<T>(slice.row(row) + index * sizeof(T)) : T{};
}

// Rows of elements that a tile writes, at one rank or at all.
class Destination {
 public:
  Destination(const mkrt_host_tile* tile, uint32_t number, uint32_t element_size) noexcept
      : tile_(tile),
        address_(reinterpret_cast<uintptr_t>(mkrt_host_operand(tile, number))),
        element_size_(element_size),
        row_stride_(tile->record->operand[number].row_stride) {
    if (address_ == 0) return;
    count_ = mkrt_host_operand_size(tile, number) / element_size;
    mkrt_host_operand_ranks(tile, number, &first_rank_, &rank_count_);
  }

  bool present() const noexcept { return address_ != 0; }
  uint64_t count() const noexcept { return count_; }

  // Writes elements [first, first + count) of a row, as far as there are any.
  template <class T>
  void store(uint64_t row, uint64_t first, const T* values, uint64_t count) const noexcept {
    if (first >= count_) return;
    const uint64_t bytes = std::min(count, count_ - first) * sizeof(T);
    const uintptr_t own = address_ + row * row_stride_ + first * element_size_;
    for (uint32_t i = 0; i < rank_count_; ++i) {
      const uint32_t rank = (first_rank_ + i) % tile_->rank_count;
      std::memcpy(reinterpret_cast<void*>(own + static_cast<uintptr_t>(tile_->rank_delta[rank])), values, bytes);
    }
  }

 private:
  const mkrt_host_tile* tile_;
  uintptr_t address_;
  uint32_t element_size_;
  uint64_t row_stride_;
  uint64_t count_ = 0;
  uint32_t first_rank_ = 0;
  uint32_t rank_count_ = 0;
};

inline uint32_t parameter_u32(const mkrt_host_tile* tile, uint32_t number) noexcept {
  return tile->record->parameter[number];
}
inline float parameter_f32(const mkrt_host_tile* tile, uint32_t number) noexcept {
  return std::bit_cast<float>(tile->record->parameter[number]);
}

// The tile's number in its record, the last dimension counting fastest.
inline uint64_t tile_number(const mkrt_host_tile* tile) noexcept {
  uint64_t number = 0;
  for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) number = number * tile->record->grid[d] + tile->index[d];
  return number;
}

}  // namespace mkrt::host::llm
