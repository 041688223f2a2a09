// How often one step's tiles touch each counter: what verify/ checks waits against and memory/ encodes as step_total.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "package/program.hpp"

namespace mkrt::package {

// Largest value of the sum of (i[d] / divide[d]) * strides[d] over the tiles of a grid; UINT64_MAX where it is larger.
inline uint64_t largest_counter_offset(const Record& record, const std::array<uint32_t, MKRT_TILE_DIMENSIONS>& strides,
                                       const std::array<uint32_t, MKRT_TILE_DIMENSIONS>& divide) noexcept {
  uint64_t largest = 0;
  for (uint32_t d = 0; d < MKRT_TILE_DIMENSIONS; ++d) {
    const uint64_t part = uint64_t{(record.grid[d] - 1) / divide[d]} * strides[d];  // fits: two factors of 32 bits
    largest = part > UINT64_MAX - largest ? UINT64_MAX : largest + part;
  }
  return largest;
}

// tiles[k]: how many tiles of the record have sum of (i[d] / divide[d]) * strides[d] = k. The caller has checked that
// the largest offset is small enough for an array of that size. Time and memory grow with that offset, not with the
// tiles: each dimension is a sliding sum over what the dimensions before it gave.
inline std::vector<uint64_t> tiles_at_counters(const Record& record,
                                               const std::array<uint32_t, MKRT_TILE_DIMENSIONS>& strides,
                                               const std::array<uint32_t, MKRT_TILE_DIMENSIONS>& divide) {
  std::vector<uint64_t> tiles(largest_counter_offset(record, strides, divide) + 1);
  tiles[0] = 1;
  for (uint32_t d = 0; d < MKRT_TILE_DIMENSIONS; ++d) {
    const uint64_t stride = strides[d];
    const uint64_t last = (record.grid[d] - 1) / divide[d];  // largest quotient
    if (stride == 0 || last == 0) {
      for (uint64_t& count : tiles) count *= record.grid[d];
      continue;
    }
    // Quotients 0 to last - 1 occur divide[d] times each, the last one as often as is left.
    const uint64_t last_times = record.grid[d] - last * divide[d];
    std::vector<uint64_t> window(tiles.size());  // window[k] = sum over q < last of tiles[k - q * stride]
    std::vector<uint64_t> next(tiles.size());
    for (uint64_t k = 0; k < tiles.size(); ++k) {
      const uint64_t leaving = k >= last * stride ? tiles[k - last * stride] : 0;
      window[k] = (k >= stride ? window[k - stride] : 0) + tiles[k] - leaving;
      next[k] = window[k] * divide[d] + leaving * last_times;
    }
    tiles = std::move(next);
  }
  return tiles;
}

// What the tiles of one step, on all ranks together, add to each counter: totals[rank * entry.counter_count + counter].
// Every signal must name existing counters and ranks.
inline std::vector<uint64_t> counter_totals(const Entry& entry, uint32_t rank_count) {
  std::vector<uint64_t> totals(uint64_t{rank_count} * entry.counter_count);
  for (const Record& record : entry.records) {
    for (const Signal& signal : record.signals) {
      const std::vector<uint64_t> tiles = tiles_at_counters(record, signal.strides, signal.divide);
      assert(signal.counter + tiles.size() <= entry.counter_count);
      // Every rank runs the record. A relative selector hits each rank once for each tile, from some rank.
      const bool fixed = signal.rank.mode == MKRT_RANK_FIXED;
      assert(!fixed || signal.rank.offset < rank_count);
      const bool once = signal.rank.mode == MKRT_RANK_SELF || signal.rank.mode == MKRT_RANK_RELATIVE;
      const uint32_t first_rank = fixed ? signal.rank.offset : 0;
      const uint32_t end_rank = fixed ? first_rank + 1 : rank_count;
      for (uint32_t rank = first_rank; rank < end_rank; ++rank) {
        uint64_t* counters = totals.data() + uint64_t{rank} * entry.counter_count + signal.counter;
        for (size_t k = 0; k < tiles.size(); ++k) counters[k] += tiles[k] * (once ? 1 : rank_count);
      }
    }
  }
  return totals;
}

}  // namespace mkrt::package
