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

// Looks at `done` until it holds or `limit_ns` have passed; returns whether it holds.
template <class Done>
bool spin_until(uint64_t limit_ns, const Done& done) noexcept {
  if (done()) return true;
  if (limit_ns == 0) return false;
  const uint64_t start = now_ns();
  do {
    // The clock costs about as much as 1 to 2 pauses; 8 looks between two readings keep the look-out sharp.
    for (int i = 0; i < 8; ++i) {
      if (done()) return true;
      cpu_pause();
    }
  } while (now_ns() - start < limit_ns);
  return done();
}

}  // namespace mkrt::host
