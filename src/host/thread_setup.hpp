// What a thread inside somebody else's process should have.
#pragma once

#include <cfenv>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif

namespace mkrt::host {

// While it lives, threads that this thread starts block the signals that are sent to a process, so that the
// application's handlers run on the application's threads. Signals that a thread raises itself, by a fault or for a
// profiler, stay: a crash in an instruction must reach the application's crash handler.
class SignalsBlocked {
 public:
#if defined(__unix__) || defined(__APPLE__)
  SignalsBlocked() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF}) sigdelset(&blocked, own);
    pthread_sigmask(SIG_SETMASK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;

 public:
#else
  SignalsBlocked() noexcept = default;
#endif
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
};

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
