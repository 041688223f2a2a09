#include "host/together.hpp"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <thread>

#include "base/report.hpp"
#include "device/failures.hpp"
#include "host/shared_session.hpp"
#include "host/spin.hpp"

namespace mkrt::host {

namespace {

// Asking the system for each process takes a microsecond; deadlines are thousands of times longer than this.
constexpr uint64_t loss_interval_ns = 100'000;

// A process that is up to date is waited for in a spin, one that does something else in naps: its application may take
// its time until it makes the same call.
constexpr uint64_t spin_ns = 1'000'000;
constexpr auto nap = std::chrono::microseconds(50);

// Waits for other processes until the turn's limit has passed.
class Patience {
 public:
  explicit Patience(Turn& turn) noexcept : turn_(turn), spinner_(turn.yield_interval_ns) {}

  // A while of waiting for `done`. False where the limit has passed or a process is lost.
  template <class Done>
  bool wait(const Done& done) noexcept {
    const uint64_t last_look = spinner_.now();
    if (spinner_.look(done)) return true;
    waited_ += std::min(spinner_.now() - last_look, Turn::longest_gap_ns);
    if (loss_.look(turn_, spinner_.now()) || waited_ >= turn_.wait_limit_ns) return false;
    if (waited_ >= spin_ns) std::this_thread::sleep_for(nap);
    return true;
  }
  uint64_t waited_ns() const noexcept { return waited_; }

 private:
  Turn& turn_;
  Spinner spinner_;
  LossWatch loss_;
  uint64_t waited_ = 0;
};

// The first process for which `is` does not hold; their number where it holds for all.
template <class Is>
uint32_t first_not(const SharedSession& shared, const Is& is) noexcept {
  uint32_t process = 0;
  while (process < shared.group().size() && is(process)) ++process;
  return process;
}

void fail_because_of(Turn& turn, uint32_t process, const char* what) noexcept {
  turn.fail({}, 0, [&](mkrt_error& failure) {
    base::report(&failure, MKRT_ERROR_PEER, "process %" PRIu32 " of the mesh %s", process, what);
  });
}

void fail_waiting(Turn& turn, uint32_t process, bool end, uint64_t waited_ns) noexcept {
  const SharedSession& shared = *turn.tables->shared;
  turn.fail({}, 0, [&](mkrt_error& failure) {
    base::report(&failure, MKRT_ERROR_DEADLINE,
                 "process %" PRIu32 ": waited %" PRIu64 " us for process %" PRIu32 " (system process %" PRIu32
                 ") to %s the execute%s",
                 shared.group().own(), waited_ns / 1000, process, shared.group().process(process).system_id,
                 end ? "end" : "begin", shared.is_behind(process) ? "; it has not reset the session" : "");
  });
}

// Why a process that may have begun cannot run with this one; nullptr where it can.
const char* difference(const SharedSession& shared, uint32_t process) noexcept {
  if (shared.is_ahead(process)) return "has reset the session, and this one has not";
  if (shared.has_left(process)) return "has destroyed its session";
  return nullptr;
}

// Takes the reason of another process that failed before this one did. True where there is a reason now.
bool take_reports(Turn& turn) noexcept {
  const SharedSession& shared = *turn.tables->shared;
  for (uint32_t process = 0; process < shared.group().size(); ++process) {
    if (process == shared.group().own()) continue;
    const auto report = shared.report_of(process);
    if (!report) continue;
    const uint64_t end = report->error.status == MKRT_ERROR_DEADLINE ? report->place.number + 1 : 0;
    turn.fail(report->place, end, [&](mkrt_error& failure) {
      failure = report->error;
      failure.struct_size = sizeof(failure);
      if (failure.status == MKRT_ERROR_CANCELLED) {
        base::report(&failure, MKRT_ERROR_CANCELLED, "process %" PRIu32 " of the mesh cancelled the execute", process);
      }
    });
  }
  return turn.failed();
}

}  // namespace

bool LossWatch::look(Turn& turn, uint64_t now) noexcept {
  if (now < next_) return false;
  next_ = now + loss_interval_ns;
  device::ProcessGroup& group = turn.tables->shared->group();
  const uint32_t lost = group.lost();
  if (lost == group.size()) return false;
  // One that had ended the execute, and then itself, is not missed by it.
  if (turn.tables->shared->has_ended(lost)) return false;
  turn.fail({}, 0, [&](mkrt_error& failure) { device::report_lost(group, lost, &failure); });
  return true;
}

bool begin_together(Turn& turn) noexcept {
  const SharedSession& shared = *turn.tables->shared;
  Patience patience(turn);
  for (;;) {
    uint32_t missing = 0;
    const char* why = nullptr;
    const auto done = [&] {
      missing = first_not(shared, [&](uint32_t process) { return shared.has_begun(process); });
      return missing == shared.group().size() || turn.failed() || shared.aborted();
    };
    const bool going_on = patience.wait(done);
    if (turn.failed() || shared.aborted()) return false;
    const uint32_t odd = first_not(shared, [&](uint32_t process) {
      why = difference(shared, process);
      return why == nullptr;
    });
    if (odd != shared.group().size()) {
      fail_because_of(turn, odd, why);
      return false;
    }
    if (missing == shared.group().size()) break;
    if (!going_on) {
      fail_waiting(turn, missing, false, patience.waited_ns());
      return false;
    }
  }
  const uint32_t odd = first_not(shared, [&](uint32_t process) { return shared.does_the_same(process); });
  if (odd == shared.group().size()) return true;
  fail_because_of(turn, odd, "executes another entry or another number of steps");
  return false;
}

void end_together(Turn& turn) noexcept {
  SharedSession& shared = *turn.tables->shared;
  // Nobody writes the failure any more, but a cancel, which has nothing better to say.
  if (turn.failed()) {
    const std::lock_guard lock(turn.failure_mutex);
    shared.publish(turn.failure, turn.failure_place);
  }
  shared.end();
  Patience patience(turn);
  for (bool going_on = true; going_on;) {
    // Of missed counters there may be an earlier one elsewhere; of anything else the reason is known.
    if (turn.end.load(std::memory_order_relaxed) == 0) return;
    uint32_t missing = 0;
    const auto all_ended = [&] {
      missing = first_not(shared, [&](uint32_t process) { return shared.has_ended(process); });
      return missing == shared.group().size();
    };
    going_on = patience.wait(all_ended);
    if (shared.aborted() && take_reports(turn)) return;
    if (missing == shared.group().size()) {
      take_reports(turn);
      return;
    }
    if (!going_on && !turn.failed()) fail_waiting(turn, missing, true, patience.waited_ns());
  }
}

}  // namespace mkrt::host
