// Turns an entry into the table that workers read, with every address of one rank resolved.
#pragma once

#include <cstdint>
#include <span>

#include "memory/layout.hpp"
#include "mkrt/device/table.h"
#include "package/program.hpp"

namespace mkrt::memory {

// What a device knows about one rank.
struct RankAddresses {
  uint32_t rank = 0;
  uint64_t heap = 0;                  // address of the session's heap on this rank
  std::span<const uint64_t> weights;  // address of each tensor that is a weight on this rank; others are not read
};

// Fills `out_records`, one for each record of the entry. The program has passed verify/, which filled in what a step
// adds to the counters of each wait.
void encode_entry(const package::Program& program, const package::Entry& entry, const Layout& layout,
                  const RankAddresses& addresses, std::span<mkrt_record> out_records);

}  // namespace mkrt::memory
