// The sentences of a tile that gives up, the same for every kind of device. They allocate nothing: memory may be what
// is short.
#pragma once

#include <cstdint>

#include "mkrt/mkrt.h"
#include "package/program.hpp"

namespace mkrt::device {

// Which tile, and who ran it.
struct TilePlace {
  uint32_t rank;
  uint32_t worker;
  const char* worker_kind;  // "SM" or "worker"
  uint32_t record;          // in its entry
  uint64_t tile;            // number inside the record
  uint64_t step;            // of the execute
};

// What it waited for.
struct MissedCounter {
  uint32_t counter;  // in the entry's numbering
  uint32_t seen;
  uint32_t wanted;
  uint64_t waited_ns;
};

void fill_deadline(const package::Entry& entry, const TilePlace& place, const MissedCounter& missed,
                   mkrt_error* out_error) noexcept;

// A rank that waited in vain for the others, to begin an execute or to end it.
struct MissedRanks {
  uint32_t rank;
  bool end;
  uint32_t come, rank_count;
  uint64_t waited_ns;
};
void fill_rank_deadline(const MissedRanks& missed, mkrt_error* out_error) noexcept;

void fill_fault(const package::IsaDefinition& isa, const package::Entry& entry, const TilePlace& place, uint32_t fault,
                mkrt_error* out_error) noexcept;

}  // namespace mkrt::device
