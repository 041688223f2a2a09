// How the processes of a mesh begin and end an execute together.
#pragma once

#include <cstdint>

#include "host/turn.hpp"

namespace mkrt::host {

// Looks whether a process of the mesh is lost, not more often than it is worth. One for each thread that waits.
class LossWatch {
 public:
  // True where the turn has failed on its account.
  bool look(Turn& turn, uint64_t now) noexcept;

 private:
  uint64_t next_ = 0;
};

// Returns when all processes have begun the turn's execute; false where the turn has failed. Every worker calls it.
bool begin_together(Turn& turn) noexcept;

// Called by the worker of this process that leaves the turn last. Returns when all have ended the execute, or the turn
// has failed and its reason is known.
void end_together(Turn& turn) noexcept;

}  // namespace mkrt::host
