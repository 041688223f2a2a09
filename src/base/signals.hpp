// Signals and the threads that the library starts.
#pragma once

#include <initializer_list>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif

namespace mkrt::base {

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

}  // namespace mkrt::base
