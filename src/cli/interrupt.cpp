#include "cli/interrupt.hpp"

#include <pthread.h>
#include <unistd.h>

namespace mkrt::cli {
namespace {

constexpr int kWake = SIGUSR1;         // ends the thread's wait when the object is destroyed
constexpr int kExitInterrupted = 130;  // what shells report for a program that SIGINT ended

}  // namespace

Interrupt::Interrupt() {
  sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, kWake}) sigaddset(&signals_, signal);
  pthread_sigmask(SIG_BLOCK, &signals_, &old_mask_);
  thread_ = std::thread([this] { listen(); });
}

Interrupt::~Interrupt() {
  closing_ = true;
  pthread_kill(thread_.native_handle(), kWake);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void Interrupt::watch(const Session* session) {
  const std::lock_guard lock(mutex_);
  session_ = session;
}

void Interrupt::listen() {
  while (!closing_) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0 || signal == kWake) continue;
    const std::lock_guard lock(mutex_);
    if (session_ == nullptr || requested_.exchange(true)) _exit(kExitInterrupted);
    mkrt_session_cancel(session_->get(), nullptr);
  }
}

}  // namespace mkrt::cli
