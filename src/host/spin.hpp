// What a thread does while it waits for another one that will be done soon.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace mkrt::host {

// Tells the core that this is a spin, so that it saves power and leaves the pipeline to its sibling.
inline void cpu_pause() noexcept {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on most cores; `isb` takes about as long as x86's pause
#endif
}

// Monotonic time in nanoseconds; does not count while the machine sleeps.
inline uint64_t now_ns() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Looks for something again and again, and now and then offers its core to other threads: the one that it waits for may
// be queued behind it. On a machine whose cores were all busy otherwise, an execute's round trip took 106 us without
// the offers, as both threads spun away their time on one core.
class Spinner {
 public:
  // 0: offers the core after every round.
  explicit Spinner(uint64_t yield_interval_ns) noexcept : yield_interval_ns_(yield_interval_ns) {}

  // A round of looks: whether `done` held in one of them.
  template <class Done>
  bool look(const Done& done) noexcept {
    // The clock costs about as much as two pauses; 8 looks between two readings keep the look-out sharp.
    for (int i = 0; i < 8; ++i) {
      if (done()) return true;
      cpu_pause();
    }
    now_ = now_ns();
    if (now_ - last_yield_ >= yield_interval_ns_) {
      std::this_thread::yield();
      last_yield_ = now_ = now_ns();
    }
    return false;
  }

  // The clock at the end of the last round.
  uint64_t now() const noexcept { return now_; }

 private:
  const uint64_t yield_interval_ns_;
  uint64_t now_ = now_ns();
  uint64_t last_yield_ = now_;
};

// Looks at `done` until it holds or `limit_ns` have passed; returns whether it holds.
template <class Done>
bool spin_until(uint64_t limit_ns, uint64_t yield_interval_ns, const Done& done) noexcept {
  if (done()) return true;
  if (limit_ns == 0) return false;
  Spinner spinner(yield_interval_ns);
  const uint64_t start = spinner.now();
  do {
    if (spinner.look(done)) return true;
  } while (spinner.now() - start < limit_ns);
  return done();
}

}  // namespace mkrt::host
