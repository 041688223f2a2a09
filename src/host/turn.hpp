// What the workers of all ranks share while they run steps of one execute.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
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

// An entry's encoded table on one rank.
struct RankTable {
  const mkrt_record* records = nullptr;
  std::byte* counters = nullptr;  // counter k is at counters + k * MKRT_COUNTER_STRIDE
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
  std::vector<std::byte*> scratch;   // of each rank's first worker
  size_t scratch_stride = 0;         // from one worker's scratch to the next
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
  uint32_t rank_count = 0;
  bool dynamic_queue = true;
  uint32_t epoch = 0;       // of the turn's first step
  uint64_t first_step = 0;  // of the execute
  uint64_t step_count = 0;  // that are left to run; the gate may end the turn earlier
  uint64_t wait_limit_ns = 0;
  uint64_t execute_serial = 0;
  uint64_t start_ns = 0;
  uint64_t yield_interval_ns = 0;  // of waits for counters; see Spinner
  std::unique_ptr<Rank[]> ranks;

  // Shared. `stop` and `contended` are looked at for every tile and hardly ever written.
  alignas(separation) std::atomic<uint32_t> stop{0};  // not 0: all workers leave
  std::atomic<bool> contended{false};                 // another session waits for its turn
  StepGate gate;
  alignas(separation) std::atomic<uint32_t> ranks_running{0};
  mkrt_error failure{};  // of who set `stop`; read when all have left

  // The first to call this says why the turn fails: true for it alone, and it fills `failure`. No order is needed here:
  // who reads `failure` comes after the last worker has left, or holds the scheduler's mutex.
  bool claim_failure() noexcept { return stop.exchange(1, std::memory_order_relaxed) == 0; }
};

// Runs tiles of `rank` as its worker number `worker` until there are none left or the turn stops.
void run_tiles(Turn& turn, uint32_t rank, uint32_t worker) noexcept;

}  // namespace mkrt::host
