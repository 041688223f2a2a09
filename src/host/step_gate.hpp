// Up to which step the workers of a turn may go.
#pragma once

#include <atomic>
#include <cstdint>

namespace mkrt::host {

// All ranks must run the same steps of a turn, or tiles would wait for peers that have stopped. So a step is either
// admitted for everybody or for nobody: whoever wants the next one decides, in one atomic word. The gate carries no
// data, only the decision, so relaxed order is enough: all changes of one atomic are seen in one order.
class StepGate {
 public:
  void reset() noexcept { word_.store(0, std::memory_order_relaxed); }

  // Whether step `step` is run in this turn. `close` says whether the turn should end here if the step was not admitted
  // by another worker before.
  template <class Close>
  bool admit(uint64_t step, const Close& close) noexcept {
    uint64_t word = word_.load(std::memory_order_relaxed);
    for (;;) {
      if (step < admitted(word)) return true;
      if ((word & closed_bit) != 0) return false;
      // At least one step a turn, or a session might never come on.
      const bool closing = admitted(word) > 0 && close();
      const uint64_t next = closing ? word | closed_bit : (step + 1) << 1;
      if (word_.compare_exchange_weak(word, next, std::memory_order_relaxed)) return !closing;
    }
  }

  // Steps that were admitted so far; after the turn: those that it ran.
  uint64_t admitted() const noexcept { return admitted(word_.load(std::memory_order_relaxed)); }

 private:
  static constexpr uint64_t closed_bit = 1;
  static constexpr uint64_t admitted(uint64_t word) noexcept { return word >> 1; }

  std::atomic<uint64_t> word_{0};
};

}  // namespace mkrt::host
