// package/counters.hpp: how often a step touches each counter, against counting tile by tile.
#include "package/counters.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace mkrt;

namespace {

using Indices = std::array<uint32_t, MKRT_TILE_DIMENSIONS>;

template <class Visit>
void for_each_tile(const package::Record& record, const Visit& visit) {
  Indices i{};
  for (i[0] = 0; i[0] < record.grid[0]; ++i[0]) {
    for (i[1] = 0; i[1] < record.grid[1]; ++i[1]) {
      for (i[2] = 0; i[2] < record.grid[2]; ++i[2]) {
        for (i[3] = 0; i[3] < record.grid[3]; ++i[3]) visit(i);
      }
    }
  }
}

uint64_t offset_of(const Indices& index, const Indices& strides, const Indices& divide) {
  uint64_t offset = 0;
  for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) offset += uint64_t{index[d] / divide[d]} * strides[d];
  return offset;
}

class Random {
 public:
  uint32_t below(uint32_t end) { return std::uniform_int_distribution<uint32_t>(0, end - 1)(engine_); }

  package::Record record() {
    package::Record record;
    for (uint32_t& size : record.grid) size = 1 + below(6);
    return record;
  }
  package::Signal signal(uint32_t ranks) {
    package::Signal signal;
    for (uint32_t& stride : signal.strides) stride = below(4);
    for (uint32_t& divide : signal.divide) divide = 1 + below(7);
    signal.rank = {static_cast<uint8_t>(below(4)), static_cast<uint8_t>(below(2) == 0 ? 0xff : below(4)),
                   static_cast<uint16_t>(below(ranks))};
    return signal;
  }

 private:
  std::mt19937 engine_{std::random_device{}()};
};

}  // namespace

TEST_CASE("tiles at counters are those of a count over all tiles") {
  Random random;
  for (int round = 0; round < 300; ++round) {
    const package::Record record = random.record();
    const package::Signal signal = random.signal(1);
    std::vector<uint64_t> expected(package::largest_counter_offset(record, signal.strides, signal.divide) + 1);
    for_each_tile(record, [&](const Indices& i) { ++expected.at(offset_of(i, signal.strides, signal.divide)); });
    CHECK(expected.back() > 0);  // the largest offset is reached
    CHECK(package::tiles_at_counters(record, signal.strides, signal.divide) == expected);
  }
}

TEST_CASE("totals are what the signals of all ranks add up to, for every rank selector") {
  Random random;
  for (int round = 0; round < 100; ++round) {
    const uint32_t ranks = 1 + random.below(5);
    package::Entry entry;
    for (int i = 0; i < 3; ++i) {
      package::Record record = random.record();
      for (int k = 0; k < 2; ++k) record.signals.push_back(random.signal(ranks));
      entry.records.push_back(record);
    }
    entry.counter_count = 200;  // the largest offset is 4 * 5 * 3
    std::vector<uint64_t> expected(uint64_t{ranks} * entry.counter_count);
    for (uint32_t own = 0; own < ranks; ++own) {
      for (package::Record& record : entry.records) {
        for (package::Signal& signal : record.signals) {
          signal.counter = 10 * static_cast<uint32_t>(&signal - record.signals.data());
          for_each_tile(record, [&](const Indices& i) {
            for (uint32_t target = 0; target < ranks; ++target) {
              const mkrt_rank_selector selector = signal.rank;
              const uint32_t index = selector.dimension == 0xff ? 0 : i[selector.dimension];
              const bool hit =
                  selector.mode == MKRT_RANK_ALL || (selector.mode == MKRT_RANK_SELF && target == own) ||
                  (selector.mode == MKRT_RANK_FIXED && target == selector.offset) ||
                  (selector.mode == MKRT_RANK_RELATIVE && target == (own + selector.offset + index) % ranks);
              const uint64_t counter = signal.counter + offset_of(i, signal.strides, signal.divide);
              if (hit) ++expected[target * entry.counter_count + counter];
            }
          });
        }
      }
    }
    CHECK(package::counter_totals(entry, ranks) == expected);
  }
}

TEST_CASE("the largest offset saturates where it does not fit in 64 bits") {
  package::Record record;
  record.grid = {UINT32_MAX, UINT32_MAX, UINT32_MAX, 1};
  const Indices strides = {UINT32_MAX, UINT32_MAX, UINT32_MAX, 1};
  CHECK(package::largest_counter_offset(record, strides, {1, 1, 1, 1}) == UINT64_MAX);
  CHECK(package::largest_counter_offset(record, {0, 0, 7, 0}, {1, 1, UINT32_MAX, 1}) == 0);
}
