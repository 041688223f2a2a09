#include "host/scheduler.hpp"

#include <algorithm>
#include <cassert>
#include <cinttypes>
#include <memory>
#include <numeric>
#include <system_error>

#include "base/failure.hpp"
#include "base/report.hpp"
#include "base/signals.hpp"
#include "host/shared_session.hpp"
#include "host/spin.hpp"
#include "host/thread_setup.hpp"
#include "host/together.hpp"

namespace mkrt::host {

namespace {

// How long an idle worker, or a thread that waits for a session, looks for news before it sleeps. An execute takes 25
// to 40 us longer with sleeping workers than with waking ones (tests/bench/host_queue); spinning for as long at most
// doubles the price of a wait, and workers are still awake when a host has picked the next token quickly.
constexpr uint64_t idle_spin_ns = 50'000;

// How often a thread that spins offers its core to others: rarely enough that the system calls do not delay the
// look-out (one takes about 0.3 us), often enough that a thread queued behind it hardly waits. With more workers than
// cores, the tile waited for often has no core: then at every round. Sleeping instead, for a part of the time waited so
// far, was no faster with 8 or 64 workers on two cores and 3 times slower with 512: whoever is waited for then sleeps.
constexpr uint64_t yield_interval_ns = 2'000;

// Ranks of other processes are taken to have as many workers as those here.
bool crowded(const device::ProcessGroup& group, std::span<const uint32_t> rank_workers) noexcept {
  const uint64_t workers = std::accumulate(rank_workers.begin(), rank_workers.end(), uint64_t{0});
  return workers * group.rank_count() > uint64_t{std::thread::hardware_concurrency()} * group.local_rank_count();
}

// A number for each execute of the process; scratch memory is told apart by it (mkrt_host_tile.execute_serial).
// Relaxed: only that numbers differ matters. The one variable that all runtimes of a process share. It starts from the
// clock, which runs faster than executes can be made: scratch memory is not cleared, and where this library is unloaded
// and loaded again it may find in there what executes of its former life left.
std::atomic<uint64_t> next_execute_serial{now_ns()};

}  // namespace

Scheduler::Scheduler(const device::ProcessGroup& group, std::span<const uint32_t> rank_workers)
    : rank_workers_(rank_workers.begin(), rank_workers.end()),
      alone_(group.alone()),
      idle_spin_ns_(crowded(group, rank_workers) ? 0 : idle_spin_ns) {
  assert(group.local_rank_count() == rank_workers.size());
  turn_.rank_count = group.rank_count();
  turn_.first_rank = group.first_rank();
  turn_.yield_interval_ns = crowded(group, rank_workers) ? 0 : yield_interval_ns;
  turn_.failure.struct_size = sizeof(mkrt_error);
  turn_.ranks = std::make_unique<Turn::Rank[]>(local_ranks());
  start_threads();
}

Scheduler::~Scheduler() {
  assert(running_ == nullptr && first_ready_ == nullptr);
  stop_threads();
}

// ---- Workers -------------------------------------------------------------------------------------------------------

void Scheduler::start_threads() {
  try {
    const base::SignalsBlocked blocked;
    for (uint32_t number = 0; number < local_ranks(); ++number) {
      for (uint32_t worker = 0; worker < rank_workers_[number]; ++worker) {
        threads_.emplace_back(&Scheduler::work, this, number, worker);
      }
    }
  } catch (const std::system_error& error) {
    const size_t started = threads_.size();
    stop_threads();
    throw base::Failure(MKRT_ERROR_OUT_OF_MEMORY,
                        base::text("the system refused a worker thread after ", started, ": ", error.code().message()))
        .with_driver_code(error.code().value());
  } catch (...) {
    stop_threads();
    throw;
  }
}

void Scheduler::stop_threads() noexcept {
  stopping_.store(true, std::memory_order_relaxed);  // the bell publishes it
  ring_bell();
  for (std::thread& thread : threads_) thread.join();
}

// Release: a worker that sees the new count sees the doors that were opened, or `stopping_`. Pairs with `work`. In the
// single order as well, since notify_all then looks whether anybody sleeps, and that must not come first.
void Scheduler::ring_bell() noexcept {
  bell_.fetch_add(1, std::memory_order_seq_cst);
  bell_.notify_all();
}

// `number` of the rank among those of this process.
void Scheduler::work(uint32_t number, uint32_t worker) noexcept {
  const uint32_t rank = turn_.first_rank + number;
  set_up_worker_thread(rank, worker);
  Door& door = turn_.ranks[number].door;
  uint32_t last_turn = 0;
  for (;;) {
    // Acquire: pairs with ring_bell. Read before the door, so that a turn that starts in between is not slept over.
    const uint32_t bell = bell_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (door.enter(worker, last_turn)) {
      run_tiles(turn_, rank, worker);
      // Acquire and release: the last worker of the last rank sees what all others did. Pairs with itself.
      if (door.leave() && turn_.ranks_running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        if (turn_.tables->shared != nullptr) end_together(turn_);
        finish_turn();
      }
      continue;
    }
    const auto rung = [&] { return bell_.load(std::memory_order_relaxed) != bell; };
    if (!spin_until(idle_spin_ns_, yield_interval_ns, rung)) bell_.wait(bell, std::memory_order_relaxed);
  }
}

// ---- Turns ---------------------------------------------------------------------------------------------------------

// Gives the workers to the first stream that is ready. True where there is one: the caller rings the bell when it has
// let go of the mutex.
bool Scheduler::start_turn() noexcept {
  assert(running_ == nullptr);
  if (first_ready_ == nullptr) return false;
  running_ = &next_in_line();
  unset_ready(*running_);
  const uint64_t value = running_->reached.load(std::memory_order_relaxed) + 1;
  const Stream::Execute& execute = running_->executes[value % Stream::most_in_flight];
  const device::ExecuteRequest& request = execute.request;
  turn_.tables = &running_->tables;
  turn_.entry = &running_->tables.entries[request.entry];
  turn_.dynamic_queue = request.queue_mode == MKRT_QUEUE_DYNAMIC;
  turn_.epoch = turn_.entry->epoch;
  turn_.first_step = execute.steps_done;
  turn_.step_count = request.step_count - execute.steps_done;
  turn_.wait_limit_ns = request.wait_limit_ns;
  turn_.execute_serial = execute.serial;
  turn_.start_ns = now_ns();
  // Relaxed, all of them: opening the doors publishes them.
  turn_.end.store(Turn::no_end, std::memory_order_relaxed);
  turn_.contended.store(alone_ && first_ready_ != nullptr, std::memory_order_relaxed);
  turn_.gate.reset();
  turn_.ranks_running.store(local_ranks(), std::memory_order_relaxed);
  for (uint32_t number = 0; number < local_ranks(); ++number) {
    Turn::Rank& part = turn_.ranks[number];
    part.next_tile.store(0, std::memory_order_relaxed);
    part.workers =
        request.worker_limit == 0 ? rank_workers_[number] : std::min(request.worker_limit, rank_workers_[number]);
  }
  if (turn_.tables->shared != nullptr) turn_.tables->shared->begin(request.entry, request.step_count);
  for (uint32_t number = 0; number < local_ranks(); ++number) {
    turn_.ranks[number].door.open(turn_.ranks[number].workers, !turn_.dynamic_queue);
  }
  return true;
}

// Round robin; among several processes the stream whose execute was submitted first, as it is in the others.
Stream& Scheduler::next_in_line() const noexcept {
  if (alone_) return *first_ready_;
  const auto serial = [](const Stream& stream) {
    const uint64_t value = stream.reached.load(std::memory_order_relaxed) + 1;
    return stream.executes[value % Stream::most_in_flight].serial;
  };
  Stream* first = first_ready_;
  for (Stream* ready = first_ready_; ready != nullptr; ready = ready->next_ready) {
    if (serial(*ready) < serial(*first)) first = ready;
  }
  return *first;
}

// Called by the last worker of a turn, when every door is closed.
void Scheduler::finish_turn() noexcept {
  bool started;
  {
    const std::lock_guard lock(mutex_);
    Stream& stream = *running_;
    running_ = nullptr;
    if (turn_.failed()) {
      fail(stream, turn_.failure, turn_.failure_place);
    } else {
      const uint64_t value = stream.reached.load(std::memory_order_relaxed) + 1;
      Stream::Execute& execute = stream.executes[value % Stream::most_in_flight];
      const uint64_t steps = turn_.gate.admitted();
      execute.steps_done += steps;
      stream.tables.entries[execute.request.entry].epoch += static_cast<uint32_t>(steps);
      if (execute.steps_done == execute.request.step_count) advance(stream, value);
    }
    if (stream.in_flight()) set_ready(stream);
    started = start_turn();
  }
  // From here on the stream may be gone.
  if (started) ring_bell();
}

void Scheduler::set_ready(Stream& stream) noexcept {
  stream.next_ready = nullptr;
  (first_ready_ == nullptr ? first_ready_ : last_ready_->next_ready) = &stream;
  last_ready_ = &stream;
}

// Takes the stream out of the list, where it is. The list is as long as there are sessions with work.
void Scheduler::unset_ready(Stream& stream) noexcept {
  Stream* previous = nullptr;
  for (Stream* ready = first_ready_; ready != &stream; ready = ready->next_ready) previous = ready;
  (previous == nullptr ? first_ready_ : previous->next_ready) = stream.next_ready;
  if (last_ready_ == &stream) last_ready_ = previous;
}

void Scheduler::advance(Stream& stream, uint64_t value) noexcept {
  stream.reached.store(value, std::memory_order_release);  // pairs with every acquire of `reached`
  // Under the mutex: when the stream's owner next holds it, no thread is inside of `progress`.
  if (stream.waiters > 0) stream.progress.notify_all();
}

// The execute that runs fails, and all that follow it are dropped: they would compute with what it left behind.
void Scheduler::fail(Stream& stream, const mkrt_error& error, const Turn::Place& place) noexcept {
  if (stream.tables.shared != nullptr) stream.tables.shared->give_up(error, place);
  stream.error = error;
  stream.status.store(error.status, std::memory_order_relaxed);  // `advance` publishes it
  advance(stream, stream.submitted.load(std::memory_order_relaxed));
}

// ---- What sessions ask for -----------------------------------------------------------------------------------------

mkrt_status Scheduler::submit(Stream& stream, const device::ExecuteRequest& request, uint64_t* out_value,
                              mkrt_error* out_error) noexcept {
  assert(request.entry < stream.tables.entries.size() && request.step_count > 0 && request.wait_limit_ns > 0);
  bool started = false;
  {
    const std::lock_guard lock(mutex_);
    if (stream.status.load(std::memory_order_relaxed) != MKRT_OK) {
      return base::report(out_error, MKRT_ERROR_SESSION_FAILED, "the session failed earlier and was not reset: %s",
                          stream.error.message);
    }
    const uint64_t reached = stream.reached.load(std::memory_order_relaxed);
    const uint64_t value = stream.submitted.load(std::memory_order_relaxed) + 1;
    if (value - reached > Stream::most_in_flight) {
      return base::report(out_error, MKRT_ERROR_BUSY, "%" PRIu64 " executes of the session are in flight",
                          Stream::most_in_flight);
    }
    stream.executes[value % Stream::most_in_flight] = {request,
                                                       next_execute_serial.fetch_add(1, std::memory_order_relaxed), 0};
    stream.submitted.store(value, std::memory_order_relaxed);
    if (out_value != nullptr) *out_value = value;
    if (value == reached + 1) {  // the stream had nothing in flight, so it is not ready yet
      set_ready(stream);
      if (running_ == nullptr) {
        started = start_turn();
      } else if (alone_) {
        turn_.contended.store(true, std::memory_order_relaxed);  // a hint: it may be seen late
      }
    }
  }
  if (started) ring_bell();
  return MKRT_OK;
}

mkrt_status Scheduler::status_of(Stream& stream, mkrt_error* out_error) noexcept {
  // Relaxed: callers have read `reached` with acquire, which comes after the status that belongs to it.
  if (stream.status.load(std::memory_order_relaxed) == MKRT_OK) return MKRT_OK;
  const std::lock_guard lock(mutex_);
  const mkrt_status status = stream.status.load(std::memory_order_relaxed);
  if (status != MKRT_OK && out_error != nullptr) {
    const uint32_t struct_size = out_error->struct_size;
    *out_error = stream.error;
    out_error->struct_size = struct_size;
  }
  return status;
}

mkrt_status Scheduler::query(Stream& stream, uint64_t* out_value, mkrt_error* out_error) noexcept {
  const uint64_t reached = stream.reached.load(std::memory_order_acquire);
  if (out_value != nullptr) *out_value = reached;
  return status_of(stream, out_error);
}

mkrt_status Scheduler::wait(Stream& stream, uint64_t value, uint64_t timeout_ns, mkrt_error* out_error) noexcept {
  if (value > stream.submitted.load(std::memory_order_relaxed)) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "timeline value %" PRIu64 " was never given out", value);
  }
  const auto reached = [&] { return stream.reached.load(std::memory_order_acquire) >= value; };
  if (!spin_until(std::min(timeout_ns, idle_spin_ns_), yield_interval_ns, reached)) {
    std::unique_lock lock(mutex_);
    ++stream.waiters;
    // Beyond a hundred years the clock's arithmetic could overflow: no limit.
    constexpr uint64_t longest = uint64_t{100} * 365 * 86400 * 1'000'000'000;
    if (timeout_ns > longest) {
      stream.progress.wait(lock, reached);
    } else {
      stream.progress.wait_for(lock, std::chrono::nanoseconds(timeout_ns), reached);
    }
    --stream.waiters;
    if (!reached()) {
      return base::report(out_error, MKRT_ERROR_TIMEOUT,
                          "the timeline did not reach %" PRIu64 " within %" PRIu64 " us; it is at %" PRIu64, value,
                          timeout_ns / 1000, stream.reached.load(std::memory_order_relaxed));
    }
  }
  return status_of(stream, out_error);
}

void Scheduler::cancel(Stream& stream) noexcept {
  const std::lock_guard lock(mutex_);
  if (!stream.in_flight()) return;
  mkrt_error error{};
  error.struct_size = sizeof(error);
  base::report(&error, MKRT_ERROR_CANCELLED, "the execute was cancelled");
  if (running_ == &stream) {
    turn_.fail({}, 0, [&](mkrt_error& failure) { failure = error; });  // the last worker to leave finds it
  } else {
    unset_ready(stream);
    fail(stream, error, {});
  }
}

void Scheduler::clear_failure(Stream& stream) noexcept {
  const std::lock_guard lock(mutex_);
  assert(!stream.in_flight());
  stream.status.store(MKRT_OK, std::memory_order_relaxed);
}

void Scheduler::retire(Stream& stream) noexcept {
  cancel(stream);
  std::unique_lock lock(mutex_);
  ++stream.waiters;
  stream.progress.wait(lock, [&] { return !stream.in_flight(); });
  --stream.waiters;
}

}  // namespace mkrt::host
