// Worker threads, and whose turn it is on them.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "device/device.hpp"
#include "host/turn.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::host {

// A session as the scheduler sees it: a bounded list of executes and how far they are. Guarded by the scheduler's
// mutex; the atomics are written under it and may be read without.
struct Stream {
  static constexpr uint64_t most_in_flight = 64;  // promised by mkrt_execute

  explicit Stream(SessionTables& session_tables) : tables(session_tables) {}

  struct Execute {
    device::ExecuteRequest request;
    uint64_t serial = 0;
    uint64_t steps_done = 0;
  };

  SessionTables& tables;
  std::array<Execute, most_in_flight> executes;  // that with timeline value v is at v % most_in_flight
  std::atomic<uint64_t> submitted{0};            // the last value given out
  // The value that the timeline has reached. Written with release after the status, read with acquire: who sees it sees
  // the execute's results and whether it failed.
  std::atomic<uint64_t> reached{0};
  std::atomic<mkrt_status> status{MKRT_OK};
  mkrt_error error{};  // the sentence of a status that is not MKRT_OK
  std::condition_variable progress;
  uint32_t waiters = 0;          // threads that sleep on `progress`
  Stream* next_ready = nullptr;  // in the scheduler's list

  bool in_flight() const noexcept {
    return reached.load(std::memory_order_acquire) != submitted.load(std::memory_order_relaxed);
  }
};

// Runs the executes of all streams of a mesh, one turn at a time, on all of its workers. Streams take turns round
// robin: a turn ends with its execute, or earlier, between two steps, when another stream has been waiting and the turn
// has lasted for a millisecond. In a mesh of several processes turns are whole executes in the order in which they were
// submitted, so that all processes have the same turns. There is no thread that schedules: whoever submits to an idle
// mesh starts the turn, and the worker that leaves it last starts the next.
class Scheduler {
 public:
  // Starts a thread for each worker of each rank of this process. Throws Failure(OUT_OF_MEMORY) where the system
  // refuses one.
  Scheduler(const device::ProcessGroup& group, std::span<const uint32_t> rank_workers);
  ~Scheduler();  // no stream is left
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // What device::Session promises of the functions of these names.
  mkrt_status submit(Stream& stream, const device::ExecuteRequest& request, uint64_t* out_value,
                     mkrt_error* out_error) noexcept;
  mkrt_status query(Stream& stream, uint64_t* out_value, mkrt_error* out_error) noexcept;
  mkrt_status wait(Stream& stream, uint64_t value, uint64_t timeout_ns, mkrt_error* out_error) noexcept;
  void cancel(Stream& stream) noexcept;

  // Takes back a stream's failure; nothing of it is in flight.
  void clear_failure(Stream& stream) noexcept;
  // Cancels and waits until no thread touches the stream any more.
  void retire(Stream& stream) noexcept;

  // Of a rank of this process.
  uint32_t worker_count(uint32_t rank) const noexcept { return rank_workers_[rank - turn_.first_rank]; }

 private:
  // The workers.
  void start_threads();
  void stop_threads() noexcept;
  void work(uint32_t number, uint32_t worker) noexcept;
  uint32_t local_ranks() const noexcept { return static_cast<uint32_t>(rank_workers_.size()); }
  void ring_bell() noexcept;

  // The turns; the mutex is held.
  bool start_turn() noexcept;
  void finish_turn() noexcept;  // takes the mutex itself
  void set_ready(Stream& stream) noexcept;
  void unset_ready(Stream& stream) noexcept;
  Stream& next_in_line() const noexcept;
  static void fail(Stream& stream, const mkrt_error& error, const Turn::Place& place) noexcept;
  static void advance(Stream& stream, uint64_t value) noexcept;
  mkrt_status status_of(Stream& stream, mkrt_error* out_error) noexcept;

  const std::vector<uint32_t> rank_workers_;  // of this process
  const bool alone_;                          // no other process has ranks
  const uint64_t idle_spin_ns_;

  std::mutex mutex_;
  Stream* running_ = nullptr;      // whose turn it is
  Stream* first_ready_ = nullptr;  // those who wait for theirs, a list
  Stream* last_ready_ = nullptr;

  Turn turn_;
  alignas(separation) std::atomic<uint32_t> bell_{0};  // changes when there may be something to do for a worker
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace mkrt::host
