// A record's tiles in groups: boxes of its grid whose tiles wait for the same counters, signal the same counters, and
// mean the same ranks. The order of tiles is found for groups; a record with one wait and one signal for all its tiles
// is one group, however many tiles it has.
#pragma once

#include <vector>

#include "verify/effort.hpp"
#include "verify/report.hpp"

namespace mkrt::verify {

// Tiles with first[d] <= i[d] < first[d] + count[d].
struct Box {
  Indices first{};
  Indices count{1, 1, 1, 1};

  uint64_t tile_count() const { return uint64_t{count[0]} * count[1] * count[2] * count[3]; }
};

struct Group {
  Box box;
  std::array<uint32_t, MKRT_RECORD_WAITS> wait{};      // first counter of each of the record's waits
  std::array<uint32_t, MKRT_RECORD_SIGNALS> signal{};  // counter of each of the record's signals
  uint32_t signal_class = 0;  // groups of a record with equal ones signal the same counters of the same ranks
};

struct RecordGroups {
  std::vector<Group> groups;           // in the order of their first tiles
  std::vector<uint32_t> class_member;  // a group of each signal class
};

// Ranks [first, first + count) modulo the rank count.
struct Ranks {
  uint32_t first = 0;
  uint32_t count = 1;

  bool contains(uint32_t rank, uint32_t rank_count) const { return (rank + rank_count - first) % rank_count < count; }
};

// Whose instance a tile with `indices` on rank `own` means.
Ranks selected_ranks(const mkrt_rank_selector& selector, uint32_t own, const Indices& indices, uint32_t rank_count);

// Refuses a selector of a rank or dimension that does not exist; `what` names its owner.
void check_rank_selector(const Context& context, uint32_t record, const mkrt_rank_selector& selector,
                         const std::string& what);

// The groups of every record. The counters of all waits and signals must be in range (counters.hpp).
std::vector<RecordGroups> group_tiles(const Context& context, Effort& effort);

}  // namespace mkrt::verify
