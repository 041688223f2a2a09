// What a thread inside somebody else's process should have.
#pragma once

#include <cfenv>
#include <cstdint>
#include <cstdio>

#if defined(__linux__)
#include <pthread.h>
#endif

namespace mkrt::host {

// Names the thread for debuggers, and gives it the default floating-point environment: threads inherit that of their
// creator, and an application that flushes denormals to zero would get other results than one that does not.
inline void set_up_worker_thread(uint32_t rank, uint32_t worker) noexcept {
  std::fesetenv(FE_DFL_ENV);
#if defined(__linux__)
  char name[16];  // the system's limit, zero included
  std::snprintf(name, sizeof(name), "mkrt r%u w%u", static_cast<unsigned>(rank), static_cast<unsigned>(worker));
  pthread_setname_np(pthread_self(), name);
#else
  static_cast<void>(rank);
  static_cast<void>(worker);
#endif
}

}  // namespace mkrt::host
