// SIGINT and SIGTERM, taken by a thread that waits for them: what it does then needs no care about signal handlers.
#pragma once

#include <atomic>
#include <csignal>
#include <exception>
#include <mutex>
#include <thread>

#include "mkrt/mkrt.hpp"

namespace mkrt::cli {

// The user stopped the tool.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "interrupted"; }
};

// While one exists, the two signals cancel what the watched session has in flight. Without a watched session, and when
// they come a second time, they end the process at once. At most one may exist, made before any other thread: threads
// inherit that the signals are blocked.
class Interrupt {
 public:
  Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt();

  // NULL: none. The session must live until another one, or none, is watched.
  void watch(const Session* session);
  bool requested() const { return requested_.load(); }

 private:
  void listen();

  sigset_t signals_;
  sigset_t old_mask_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> requested_ = false;
  std::mutex mutex_;
  const Session* session_ = nullptr;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace mkrt::cli
