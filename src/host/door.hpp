// Who may still join a rank's part of a turn, and who is the last to leave it.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>

#include "mkrt/mkrt.h"

namespace mkrt::host {

// The scheduler opens a door for each turn; workers enter, run tiles until there are none left, and leave. A worker
// leaves only when every tile of the rank has been taken (or the turn was aborted), so the one that leaves an empty
// room knows that the rank is done and closes the door behind it. Workers that wake up later stay outside: nobody waits
// for a thread that has nothing to do.
//
// In static mode each worker has tiles of its own and must come: the door opens with all of them counted already.
class Door {
 public:
  static constexpr uint32_t most_workers = MKRT_MAX_HOST_WORKERS;

  // Called while the door is closed. `workers` from 0 to workers - 1 may enter.
  void open(uint32_t workers, bool all_must_come) noexcept {
    assert(workers >= 1 && workers <= most_workers);
    const uint64_t closed = word_.load(std::memory_order_relaxed);
    assert((closed & open_bit) == 0);
    const uint64_t turn = (closed >> turn_shift) + 1;
    const uint64_t counted = all_must_come ? expected_bit | workers : 0;
    // Release: who enters sees everything that the scheduler wrote for this turn. Pairs with `enter`.
    word_.store(turn << turn_shift | uint64_t{workers} << limit_shift | open_bit | counted, std::memory_order_release);
  }

  // True once for each turn that the worker may join; `last_turn` is the worker's own memory of the last one, at first
  // 0. After true, the worker must leave.
  bool enter(uint32_t worker, uint32_t& last_turn) noexcept {
    uint64_t word = word_.load(std::memory_order_acquire);  // pairs with `open`
    for (;;) {
      const uint32_t turn = static_cast<uint32_t>(word >> turn_shift);
      if ((word & open_bit) == 0 || turn == last_turn || worker >= ((word >> limit_shift) & field)) return false;
      // Expected workers are counted already, and the door cannot close before this one leaves.
      if ((word & expected_bit) != 0 ||
          word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire, std::memory_order_acquire)) {
        last_turn = turn;
        return true;
      }
    }
  }

  // True for the worker that leaves last; the door is then closed.
  bool leave() noexcept {
    uint64_t word = word_.load(std::memory_order_relaxed);
    uint64_t next;
    do {
      next = word - 1;
      if ((next & field) == 0) next &= ~open_bit;
      // Release: the last to leave sees what all others did. Acquire: this may be the last. Pairs with itself.
    } while (!word_.compare_exchange_weak(word, next, std::memory_order_acq_rel, std::memory_order_relaxed));
    return (next & field) == 0;
  }

 private:
  // From bit 0: workers inside, workers allowed, open, expected; the turn's number from bit 32.
  static constexpr int limit_shift = 12;
  static constexpr uint64_t field = (1u << limit_shift) - 1;
  static_assert(most_workers <= field);
  static constexpr uint64_t open_bit = uint64_t{1} << 24;
  static constexpr uint64_t expected_bit = uint64_t{1} << 25;
  static constexpr int turn_shift = 32;

  std::atomic<uint64_t> word_{0};
};

}  // namespace mkrt::host
