// What the workers of all ranks share while they run steps of one execute.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "host/door.hpp"
#include "host/step_gate.hpp"
#include "mkrt/device/table.h"
#include "mkrt/host_isa.h"
#include "mkrt/mkrt.h"
#include "package/program.hpp"

namespace mkrt::host {

// Distance between things that different threads write: two cache lines, as x86 prefetches them in pairs.
inline constexpr size_t separation = 128;

class SharedSession;

// An entry's encoded table on one rank.
struct RankTable {
  const mkrt_record* records = nullptr;  // nullptr: the rank is another process's
  std::byte* counters = nullptr;         // counter k is at counters + k * MKRT_COUNTER_STRIDE
};

// An entry as one session runs it.
struct EntryTable {
  const package::Entry* definition = nullptr;
  std::vector<RankTable> ranks;
  uint32_t epoch = 0;  // steps of this entry that the session has run, modulo 2^32
};

// Everything of a session that workers need; the session owns what it points to.
struct SessionTables {
  const package::Program* program = nullptr;
  const mkrt_host_isa* isa = nullptr;
  std::vector<EntryTable> entries;
  std::vector<int64_t> rank_deltas;  // heap of rank t minus heap of rank r, at r * ranks + t
  std::vector<std::byte*> scratch;   // of the first worker of each rank of this process
  size_t scratch_stride = 0;         // from one worker's scratch to the next
  SharedSession* shared = nullptr;   // with other processes; nullptr: there are none
};

struct Turn {
  // One rank's share.
  struct Rank {
    alignas(separation) Door door;
    alignas(separation) std::atomic<uint64_t> next_tile{0};  // dynamic mode: the queue
    alignas(separation) uint32_t workers = 0;                // that take part
  };

  // Written by the scheduler while every door is closed, constant while one is open.
  const SessionTables* tables = nullptr;
  const EntryTable* entry = nullptr;
  uint32_t rank_count = 0;  // of the mesh
  uint32_t first_rank = 0;  // of this process
  bool dynamic_queue = true;
  uint32_t epoch = 0;       // of the turn's first step
  uint64_t first_step = 0;  // of the execute
  uint64_t step_count = 0;  // that are left to run; the gate may end the turn earlier
  uint64_t wait_limit_ns = 0;
  uint64_t execute_serial = 0;
  uint64_t start_ns = 0;
  uint64_t yield_interval_ns = 0;  // of waits for counters; see Spinner
  std::unique_ptr<Rank[]> ranks;   // those of this process

  // The longest time between two looks at the clock that counts as waiting. A process that was stopped, by a debugger
  // or a suspended container, finds a gap there, not a deadline missed.
  static constexpr uint64_t longest_gap_ns = 100'000'000;

  // Where a tile stands in the queues: the step in the upper half, the tile's number in the step in the lower.
  struct Place {
    uint64_t number = 0;
    uint32_t rank = 0;
    bool operator<(const Place& other) const noexcept {
      return number != other.number ? number < other.number : rank < other.rank;
    }
  };
  static constexpr uint64_t no_end = UINT64_MAX;

  // Shared. `end` and `contended` are looked at for every tile and hardly ever written.
  // Tiles from this number on are not run any more: `no_end`, until the turn fails. It only falls.
  alignas(separation) std::atomic<uint64_t> end{no_end};
  std::atomic<bool> contended{false};  // another session waits for its turn
  StepGate gate;
  alignas(separation) std::atomic<uint32_t> ranks_running{0};
  // Why the turn fails, and the tile that says so. Guarded by the mutex, and constant when the last worker has left.
  std::mutex failure_mutex;
  mkrt_error failure{};
  Place failure_place;

  bool failed() const noexcept { return end.load(std::memory_order_relaxed) != no_end; }

  // Makes the turn fail: tiles from `new_end` on are not run; where that is 0, none in any process. Of several reports
  // that of the earliest tile stays, as that is what the others wait for. `fill` gets the error to fill.
  template <class Fill>
  void fail(Place place, uint64_t new_end, const Fill& fill) noexcept {
    const std::lock_guard lock(failure_mutex);
    const uint64_t old_end = end.load(std::memory_order_relaxed);
    if (old_end != no_end && !(place < failure_place)) return;
    failure_place = place;
    fill(failure);
    end.store(std::min(old_end, new_end), std::memory_order_relaxed);  // nobody reads `failure` on its account
    if (new_end == 0 && tables->shared != nullptr) abort_others();
  }
  void abort_others() const noexcept;
};

// Runs tiles of `rank`, a rank of this process, as its worker number `worker` until there are none left or the turn
// stops.
void run_tiles(Turn& turn, uint32_t rank, uint32_t worker) noexcept;

}  // namespace mkrt::host
