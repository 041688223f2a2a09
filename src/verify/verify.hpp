// Checks what a schedule must keep (src/package/README.md): what passes can neither deadlock nor race nor leave its
// tensors, on any number of workers, in any queue mode. README.md has the argument.
#pragma once

#include <cstdint>
#include <vector>

#include "package/program.hpp"

namespace mkrt::verify {

// What mkrt_wait needs beyond package::Wait. The same on every rank.
struct ResolvedWait {
  uint32_t value = 0;       // what the counters must have got since the step began, 1 to step_total
  uint32_t step_total = 0;  // what all tiles of one step add to each of the counters, 1 to 2^30
};

struct CheckedRecord {
  std::vector<ResolvedWait> waits;  // one for each of the record's waits
};

struct CheckedEntry {
  std::vector<CheckedRecord> records;  // one for each of the entry's records
};

struct Schedule {
  std::vector<CheckedEntry> entries;  // one for each of the program's entries
};

// Throws base::Failure (MKRT_ERROR_SCHEDULE) that names entry, record, tile and rank and says what is wrong.
Schedule check(const package::Program& program);

}  // namespace mkrt::verify
