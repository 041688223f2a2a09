#include "cuda/session.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>

#include "base/failure.hpp"
#include "base/report.hpp"
#include "device/failures.hpp"
#include "memory/encode.hpp"
#include "mkrt/device/layout.h"

namespace mkrt::cuda {

namespace {

// Pages of 16 KB that keep memory busy; six do no better, four cost half a percent of a token (kernels/PERFORMANCE.md).
constexpr uint32_t outstanding_pages = 5;

constexpr uint64_t most_in_flight = 64;  // promised by mkrt_execute

uint64_t align(uint64_t offset) {
  return (offset + memory::heap_alignment - 1) / memory::heap_alignment * memory::heap_alignment;
}

// Takes `bytes` at the end of a layout of `size` bytes.
uint64_t take(uint64_t& size, uint64_t bytes) {
  const uint64_t place = size;
  size += align(bytes);
  return place;
}

bool is_of_ranks(const mkrt_report& report) {
  return report.record == MKRT_REPORT_BEGIN || report.record == MKRT_REPORT_END;
}
// No tile's and no rank's own reason.
bool is_leaving(const mkrt_report& report) { return report.record == MKRT_REPORT_LEFT; }

// Of the reports of several ranks, the one that the others follow from: a fault, then the tile that comes first in the
// order of the queue, then a rank that waited for others, then one that left on their account. Any comes before none.
bool comes_first(const mkrt_report& a, const mkrt_report& b) {
  const auto order = [](const mkrt_report& report) {
    return std::make_tuple(report.status == MKRT_OK, is_leaving(report), report.status != MKRT_ERROR_FAULT,
                           is_of_ranks(report), report.step, report.record, report.tile, report.rank);
  };
  return order(a) < order(b);
}

// An abort word: a status, and whose.
constexpr uint32_t process_shift = 16;
uint32_t status_of(uint32_t abort) { return abort & ((1u << process_shift) - 1); }
uint32_t process_of(uint32_t abort) { return abort >> process_shift; }

// What a process that has ended had finished before it did says so within this time: its ranks end an execute together
// with those of all others.
constexpr auto loss_grace = std::chrono::milliseconds(2);

// How long ranks of other processes may take to say why they gave up, at most; and at most the execute's wait limit.
// They take as long as a tile does.
constexpr uint64_t longest_patience_ns = 1'000'000'000;

}  // namespace

Session::Part::Part(const MeshDevice& on, const LoadedImage& loaded)
    : device(on),
      image(loaded),
      launch_stream(on.context, on.shared_stream()),
      side_stream(on.context, nullptr),
      copies(on.mesh_stream ? side_stream.get() : launch_stream.get()),
      mailboxes(on.context, on.ranks.size() * sizeof(Mailbox), "a session") {}

Session::Session(Executable& executable, uint32_t number)
    : executable_(executable),
      mesh_(executable.mesh()),
      group_(mesh_.group()),
      number_(number),
      driver_(mesh_.ranks().front().context->driver()),
      entry_count_(static_cast<uint32_t>(executable.program().entries.size())),
      parts_(make_parts(executable)),
      places_(plan_places(executable)),
      entry_of_(most_in_flight, 0) {
  find_mailboxes();
}

void Session::take_memory() { memory_.emplace(mesh_, executable_.heaps(), places_.size, "a session"); }

void Session::fill() {
  for (const RankDevice& rank : mesh_.ranks()) {
    for (uint32_t entry = 0; entry < entry_count_; ++entry) launches_.push_back(plan_launch(rank.number, entry));
  }
  for (const auto& part : parts_) fill(*part);
}

Session::~Session() {
  cancel();
  finish_work();
}

// Before memory is unmapped: the driver does not wait there for work that uses it.
void Session::finish_work() noexcept {
  for (const auto& part : parts_) {
    const ContextScope scope(*part->device.context);
    if (scope.result() != result_success) continue;  // the context is gone, and all work with it
    driver_.stream_synchronize(part->launch_stream.get());
    driver_.stream_synchronize(part->side_stream.get());
  }
}

std::vector<std::unique_ptr<Session::Part>> Session::make_parts(const Executable& executable) {
  std::vector<std::unique_ptr<Part>> parts;
  for (const MeshDevice& device : executable.mesh().devices()) {
    const ContextScope scope(*device.context);
    device.context->driver().check(scope.result(), "make the device's context current");
    parts.push_back(std::make_unique<Part>(device, executable.image(static_cast<uint32_t>(parts.size()))));
  }
  return parts;
}

void Session::find_mailboxes() {
  mailboxes_.resize(mesh_.ranks().size());
  for (const auto& part : parts_) {
    auto* mailbox = reinterpret_cast<Mailbox*>(part->mailboxes.data());
    for (const uint32_t rank : part->device.ranks) {
      const uint32_t process = group_.own() << process_shift;
      mailbox->cancelled_word = process | MKRT_ERROR_CANCELLED;
      mailbox->driver_word = process | MKRT_ERROR_DRIVER;
      mailbox->peer_word = process | MKRT_ERROR_PEER;
      mailboxes_[local(rank)] = mailbox++;
    }
  }
}

// The heap, then what a launch needs besides it, then the tables that are written once.
Session::Places Session::plan_places(const Executable& executable) {
  const package::Program& program = executable.program();
  size_t most_ranks = 0;
  for (const MeshDevice& device : executable.mesh().devices()) most_ranks = std::max(most_ranks, device.ranks.size());
  Places places;
  places.size = align(executable.layout().session_bytes);
  places.control = take(places.size, sizeof(mkrt_control));
  places.epochs = take(places.size, program.entries.size() * sizeof(uint32_t));
  places.cleared = places.size;
  places.deltas = take(places.size, sizeof(int64_t) * program.rank_count);
  for (const package::Entry& entry : program.entries) {
    places.records.push_back(take(places.size, entry.records.size() * sizeof(mkrt_record)));
    places.first_tiles.push_back(take(places.size, (entry.records.size() + 1) * sizeof(uint32_t)));
    places.local_ranks.push_back(take(places.size, most_ranks == 1 ? 0 : most_ranks * sizeof(mkrt_launch)));
  }
  return places;
}

mkrt_launch Session::plan_launch(uint32_t rank, uint32_t entry) const {
  const Part& part = part_of(rank);
  const std::vector<uint32_t>& ranks = part.device.ranks;
  const uint64_t base = memory_->address(rank);
  const auto place = static_cast<uint64_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const DevicePointer mailbox = part.mailboxes.device_address() + place * sizeof(Mailbox);
  const package::Program& program = executable_.program();
  mkrt_launch launch{};
  launch.records = base + places_.records[entry];
  launch.first_tiles = base + places_.first_tiles[entry];
  launch.control = base + places_.control;
  launch.epoch = base + places_.epochs + entry * sizeof(uint32_t);
  launch.counters = base + executable_.layout().counter_offsets[entry];
  launch.rank_delta = base + places_.deltas;
  launch.report = mailbox + offsetof(Mailbox, report);
  launch.timeline = mailbox + offsetof(Mailbox, timeline);
  launch.rank = rank;
  launch.blocks = mesh_.rank(rank).info.worker_count;
  launch.local_ranks = memory_->address(ranks.front()) + places_.local_ranks[entry];
  launch.local_rank_count = static_cast<uint32_t>(ranks.size());
  launch.record_count = static_cast<uint32_t>(program.entries[entry].records.size());
  launch.rank_count = program.rank_count;
  launch.page_count = part.image.shared_memory().page_count;
  launch.activation_bytes = part.image.shared_memory().activation_bytes;
  return launch;
}

// Writes the memory of a device's ranks.
void Session::fill(const Part& part) {
  const ContextScope scope(*part.device.context);
  driver_.check(scope.result(), "make the device's context current");
  for (const uint32_t rank : part.device.ranks) encode(rank, part.copies);
  share_launches(part);
  for (const uint32_t rank : part.device.ranks) {
    driver_.check(driver_.fill_bytes(memory_->address(rank), 0, places_.cleared, part.copies), "clear a new session");
  }
  driver_.check(driver_.stream_synchronize(part.copies), "clear a new session");
}

// Writes a rank's tables. The copies read memory of this scope, so they are waited for.
void Session::encode(uint32_t rank, Stream stream) {
  constexpr const char* what = "write a session's tables";
  const package::Program& program = executable_.program();
  std::vector<int64_t> deltas;
  deltas.reserve(program.rank_count);
  for (uint32_t to = 0; to < program.rank_count; ++to) {
    deltas.push_back(static_cast<int64_t>(memory_->address(to) - memory_->address(rank)));
  }
  const DevicePointer deltas_at = memory_->address(rank) + places_.deltas;
  driver_.check(driver_.copy_to_device(deltas_at, deltas.data(), deltas.size() * sizeof(int64_t), stream), what);
  const memory::RankAddresses addresses{rank, memory_->address(rank), executable_.weights(rank)};
  for (uint32_t e = 0; e < entry_count_; ++e) {
    const package::Entry& entry = program.entries[e];
    std::vector<mkrt_record> records(entry.records.size());
    memory::encode_entry(program, entry, executable_.layout(), addresses, records);
    std::vector<uint32_t> first_tiles;
    first_tiles.reserve(records.size() + 1);
    for (const mkrt_record& record : records) first_tiles.push_back(static_cast<uint32_t>(record.first_tile));
    first_tiles.push_back(static_cast<uint32_t>(entry.tile_count));
    const mkrt_launch& launch = launch_of(rank, e);
    driver_.check(driver_.copy_to_device(launch.records, records.data(), records.size() * sizeof(mkrt_record), stream),
                  what);
    driver_.check(
        driver_.copy_to_device(launch.first_tiles, first_tiles.data(), first_tiles.size() * sizeof(uint32_t), stream),
        what);
    driver_.check(driver_.stream_synchronize(stream), what);
  }
}

// Writes what the blocks of ranks that share a device find their own launch by.
void Session::share_launches(const Part& part) {
  const std::vector<uint32_t>& ranks = part.device.ranks;
  if (ranks.size() == 1) return;
  for (uint32_t entry = 0; entry < entry_count_; ++entry) {
    std::vector<mkrt_launch> launches;
    launches.reserve(ranks.size());
    for (const uint32_t rank : ranks) launches.push_back(launch_of(rank, entry));
    driver_.check(driver_.copy_to_device(launches.front().local_ranks, launches.data(),
                                         launches.size() * sizeof(mkrt_launch), part.copies),
                  "write a session's tables");
    driver_.check(driver_.stream_synchronize(part.copies), "write a session's tables");
  }
}

// The value that all ranks have reached.
uint64_t Session::completed() const noexcept {
  uint64_t least = UINT64_MAX;
  for (Mailbox* mailbox : mailboxes_) {
    // Acquire: pairs with the release of the rank's last block at system scope.
    least = std::min(least, std::atomic_ref(mailbox->timeline).load(std::memory_order_acquire));
  }
  return least;
}

bool Session::busy() const noexcept { return completed() != last_value_.load(std::memory_order_relaxed); }

mkrt_status Session::report_busy(mkrt_error* out_error) const noexcept {
  return base::report(out_error, MKRT_ERROR_BUSY, "the session has work in flight: it reached %llu of %llu",
                      static_cast<unsigned long long>(completed()),
                      static_cast<unsigned long long>(last_value_.load(std::memory_order_relaxed)));
}

mkrt_report Session::report_of(Mailbox& mailbox) noexcept {
  mkrt_report report{};
  // Acquire: the device writes the status last, with release at system scope.
  report.status = std::atomic_ref(mailbox.report.status).load(std::memory_order_acquire);
  if (report.status != MKRT_OK) {
    const uint32_t status = report.status;
    report = mailbox.report;
    report.status = status;
  }
  return report;
}

mkrt_report Session::first_report() const noexcept {
  mkrt_report first{};
  for (Mailbox* mailbox : mailboxes_) {
    const mkrt_report seen = report_of(*mailbox);
    // Of processes that are one, somebody else here knows why.
    if (is_leaving(seen) && group_.alone()) continue;
    if (comes_first(seen, first)) first = seen;
  }
  // Acquire: the report was written before.
  if (asked_others_.load(std::memory_order_acquire) && comes_first(others_report_, first)) first = others_report_;
  return first;
}

mkrt_status Session::status(mkrt_error* out_error) const noexcept {
  const mkrt_report first = first_report();
  // Acquire: the rank was written before.
  const Result failure = driver_failure_.load(std::memory_order_acquire);
  const auto rank = static_cast<int32_t>(failed_rank_.load(std::memory_order_relaxed));
  // Where a device is lost, what others report is that they waited for it.
  if (failure != result_success) return driver_error(driver_, failure, "finish an execute", rank, out_error);
  const uint32_t lost = lost_process_.load(std::memory_order_relaxed);
  if (lost != none) return device::report_lost(group_, lost, out_error);
  if (half_reset_.load(std::memory_order_relaxed)) {
    return base::report(out_error, MKRT_ERROR_PEER, "a reset of the session was not completed by all processes");
  }
  if (first.status != MKRT_OK && !is_leaving(first)) return fill_report(first, out_error);
  if (cancelled_.load(std::memory_order_relaxed)) {
    return base::report(out_error, MKRT_ERROR_CANCELLED, "the execute was cancelled");
  }
  return first.status == MKRT_OK ? MKRT_OK : fill_leaving(first.status, out_error);
}

// The ranks of this process left, and those of another one know why.
mkrt_status Session::fill_leaving(uint32_t abort, mkrt_error* out_error) const noexcept {
  const uint32_t process = process_of(abort);
  switch (status_of(abort)) {
    case MKRT_ERROR_CANCELLED:
      return base::report(out_error, MKRT_ERROR_CANCELLED, "process %u of the mesh cancelled the execute", process);
    case MKRT_ERROR_DRIVER:
      return base::report(out_error, MKRT_ERROR_PEER, "the driver of process %u of the mesh failed", process);
    case MKRT_ERROR_PEER:
      return base::report(out_error, MKRT_ERROR_PEER, "process %u found that another one of the mesh has ended",
                          process);
    case MKRT_ERROR_DEADLINE:
      return base::report(out_error, MKRT_ERROR_DEADLINE, "a rank of another process waited in vain");
    default:
      return base::report(out_error, static_cast<mkrt_status>(status_of(abort)),
                          "a rank of another process ended the execute");
  }
}

mkrt_status Session::fill_report(const mkrt_report& report, mkrt_error* out_error) const noexcept {
  if (out_error == nullptr) return static_cast<mkrt_status>(report.status);
  if (is_of_ranks(report)) {
    device::fill_rank_deadline(
        {report.rank, report.record == MKRT_REPORT_END, report.value_seen, report.value_wanted, report.waited_ns},
        out_error);
    return MKRT_ERROR_DEADLINE;
  }
  const package::Program& program = executable_.program();
  const package::Entry& entry = program.entries[entry_of_[report.timeline_value % most_in_flight]];
  const device::TilePlace place{report.rank, report.sm, "SM", report.record, report.tile, report.step};
  if (report.status == MKRT_ERROR_DEADLINE) {
    device::fill_deadline(entry, place, {report.counter, report.value_seen, report.value_wanted, report.waited_ns},
                          out_error);
  } else {
    device::fill_fault(program.isa, entry, place, report.fault, out_error);
  }
  return static_cast<mkrt_status>(report.status);
}

mkrt_status Session::execute(const device::ExecuteRequest& request, uint64_t* out_value,
                             mkrt_error* out_error) noexcept {
  // Before the status: a launch that failed reports before it completes, so its place in entry_of_ is not taken again.
  const uint64_t done = completed();
  if (status(nullptr) != MKRT_OK) {
    return base::report(out_error, MKRT_ERROR_SESSION_FAILED,
                        "an earlier execute of the session failed or was cancelled; reset the session first");
  }
  const uint64_t value = last_value_.load(std::memory_order_relaxed) + 1;
  if (value - done > most_in_flight) return report_busy(out_error);
  entry_of_[value % most_in_flight] = request.entry;  // before the launch, whose report needs it
  wait_limit_ns_.store(request.wait_limit_ns, std::memory_order_relaxed);
  const std::unique_lock order = mesh_.launch_order();
  for (const auto& part : parts_) {
    const Result result = enqueue_launch(*part, request, value);
    if (result == result_success) continue;
    const uint32_t rank = part->device.ranks.front();
    if (part != parts_.front()) {
      // Ranks that were launched wait for those that were not.
      const std::lock_guard lock(cancel_mutex_);
      abandon(result, rank);
    }
    return driver_error(driver_, result, "launch the kernel", static_cast<int32_t>(rank), out_error);
  }
  last_value_.store(value, std::memory_order_relaxed);
  if (out_value != nullptr) *out_value = value;
  return MKRT_OK;
}

// One launch for all ranks of a device.
Result Session::enqueue_launch(const Part& part, const device::ExecuteRequest& request, uint64_t value) noexcept {
  mkrt_launch launch = launch_of(part.device.ranks.front(), request.entry);
  launch.step_count = request.step_count;
  launch.queue_mode = request.queue_mode;
  launch.outstanding_pages = std::min(outstanding_pages, launch.page_count);
  launch.wait_limit_ns = request.wait_limit_ns;
  launch.timeline_value = value;
  launch.trace_tiles = trace_tiles_;
  launch.block_limit = request.worker_limit == 0 ? UINT32_MAX : request.worker_limit;
  LaunchAttribute cooperative{};
  // All blocks resident at once: in static mode each has tiles of its own that others wait for, and ranks wait for each
  // other.
  cooperative.id = launch_attribute_cooperative;
  cooperative.value.cooperative = 1;
  LaunchConfig config{};
  for (const uint32_t rank : part.device.ranks) {
    config.grid_x += std::min(mesh_.rank(rank).info.worker_count, launch.block_limit);
  }
  config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
  config.block_x = part.image.info().block_size;
  config.shared_memory_bytes = part.image.shared_memory().total_bytes;
  config.stream = part.launch_stream.get();
  config.attributes = &cooperative;
  config.attribute_count = 1;
  void* parameters[] = {&launch};

  const ContextScope scope(*part.device.context);
  if (scope.result() != result_success) return scope.result();
  if (part.device.adopted_stream != nullptr) {
    CaptureStatus capture = capture_none;
    const Result known = driver_.capture_status(config.stream, &capture);
    if (known != result_success) return known;
    if (capture != capture_none) captured_.store(true, std::memory_order_relaxed);
  }
  if (trace_tiles_ != 0) {
    for (const uint32_t rank : part.device.ranks) {
      const DeviceMemory& memory = trace_memory_[local(rank)];
      const Result result = driver_.fill_bytes(memory.address(), 0, memory.size(), config.stream);
      if (result != result_success) return result;
    }
  }
  const Function kernel = trace_tiles_ == 0 ? part.image.kernel() : part.image.traced_kernel();
  return driver_.launch(&config, kernel, parameters, nullptr);
}

// A rank failed for good: the others are told to leave, and the session fails until it is reset. `cancel_mutex_` is
// held.
void Session::abandon(Result result, uint32_t rank) noexcept {
  failed_rank_.store(rank, std::memory_order_relaxed);
  driver_failure_.store(result, std::memory_order_release);  // pairs with the acquire in status
  if (parts_.size() > 1 || !group_.alone()) send_aborts(&Mailbox::driver_word);
}

mkrt_status Session::query(uint64_t* out_value, mkrt_error* out_error) noexcept {
  if (busy()) look_now_and_then();
  *out_value = completed();
  if (!group_.alone() && status(nullptr) != MKRT_OK) {
    const std::unique_lock lock(cancel_mutex_, std::try_to_lock);
    if (lock) ask_others();
  }
  return status(out_error);
}

// Where a device is lost no value comes any more, and only the driver knows. A game queries in every frame: the driver
// is asked ten times a second, which is soon enough for people, and costs the other frames nothing.
void Session::look_now_and_then() noexcept {
  constexpr auto interval = std::chrono::milliseconds(100);
  using Clock = std::chrono::steady_clock;
  const Clock::rep now = Clock::now().time_since_epoch().count();
  Clock::rep due = next_look_.load(std::memory_order_relaxed);
  if (now < due || driver_failure_.load(std::memory_order_relaxed) != result_success) return;
  // One of several threads looks; none waits for a reset or another's look.
  const Clock::rep next = now + Clock::duration(interval).count();
  if (!next_look_.compare_exchange_strong(due, next, std::memory_order_relaxed)) return;
  const std::unique_lock lock(cancel_mutex_, std::try_to_lock);
  if (lock && !notice_failure()) notice_loss();
}

mkrt_status Session::wait(uint64_t value, uint64_t timeout_ns, mkrt_error* out_error) noexcept {
  if (value > last_value_.load(std::memory_order_relaxed)) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "timeline value %llu was never given out",
                        static_cast<unsigned long long>(value));
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto elapsed = [&] {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
  };
  // A step takes well under a millisecond: for that long the word is watched closely. Longer work is looked at every
  // 50 us, a tenth of a percent of what a frame or a token costs there.
  constexpr uint64_t watch_ns = 1'000'000;
  constexpr auto nap = std::chrono::microseconds(50);
  uint64_t next_look = watch_ns;
  while (completed() < value) {
    const uint64_t now = elapsed();
    if (now >= timeout_ns) {
      return base::report(out_error, MKRT_ERROR_TIMEOUT, "the timeline is at %llu, %llu was waited for",
                          static_cast<unsigned long long>(completed()), static_cast<unsigned long long>(value));
    }
    if (now < watch_ns) continue;
    if (now >= next_look) {
      const std::lock_guard lock(cancel_mutex_);
      if (notice_failure()) return status(out_error);
      notice_loss();
      next_look = now + watch_ns;
    }
    std::this_thread::sleep_for(nap);
  }
  // What the ranks of other processes know of a failure.
  while (!group_.alone() && status(nullptr) != MKRT_OK && elapsed() < timeout_ns) {
    {
      const std::lock_guard lock(cancel_mutex_);
      if (ask_others()) break;
    }
    std::this_thread::sleep_for(nap);
  }
  return status(out_error);
}

// A launch that the driver gave up on never stores its value; the streams of its device know. `cancel_mutex_` is held.
bool Session::notice_failure() noexcept {
  for (const auto& part : parts_) {
    const Result result = ask(*part);
    if (result == result_success || result == result_not_ready) continue;
    abandon(result, part->device.ranks.front());
    return true;
  }
  return false;
}

Result Session::ask(const Part& part) const noexcept {
  const ContextScope scope(*part.device.context);
  if (scope.result() != result_success) return scope.result();
  const BesideCaptures beside(driver_);
  if (beside.result() != result_success) return beside.result();
  return driver_.stream_query(part.watched());
}

// A process that has ended, while something is in flight that needs it: its ranks come to nothing any more, and those
// here are told to leave. `cancel_mutex_` is held.
void Session::notice_loss() noexcept {
  if (group_.alone() || lost_process_.load(std::memory_order_relaxed) != none) return;
  const uint32_t lost = group_.lost();
  if (lost == group_.size()) return;
  const auto now = std::chrono::steady_clock::now();
  if (lost_since_ == std::chrono::steady_clock::time_point()) lost_since_ = now;
  if (now - lost_since_ < loss_grace) return;
  lost_process_.store(lost, std::memory_order_relaxed);
  send_aborts(&Mailbox::peer_word);
}

// What ranks of other processes know of a failure that ended a launch here. Their memory can be read whether their
// processes are there or not. False where they may still have something to say. `cancel_mutex_` is held.
bool Session::ask_others() noexcept {
  // After a reset that came between the caller's look and the lock there is nothing to ask.
  if (asked_others_.load(std::memory_order_relaxed) || status(nullptr) == MKRT_OK) return true;
  const Part& part = *parts_.front();
  const ContextScope scope(*part.device.context);
  const BesideCaptures beside(driver_);
  if (scope.result() != result_success || beside.result() != result_success) return true;
  const auto read = [&](uint32_t rank, mkrt_control& out_control) {
    const DevicePointer from = memory_->address(rank) + places_.control;
    const Result result = driver_.copy_to_host(&out_control, from, sizeof(out_control), part.side_stream.get());
    return result == result_success && driver_.stream_synchronize(part.side_stream.get()) == result_success;
  };
  const mkrt_report own = first_report();
  const uint32_t lost = group_.lost();
  const auto now = std::chrono::steady_clock::now();
  if (asking_since_ == std::chrono::steady_clock::time_point()) asking_since_ = now;
  const std::chrono::nanoseconds patience(
      std::min(longest_patience_ns, wait_limit_ns_.load(std::memory_order_relaxed)));
  const bool patient = lost == group_.size() && now - asking_since_ < patience;
  // A rank that gave up its wait says so when it has ended. Where not all have begun, no tile has anything to say.
  const bool complete = own.status == MKRT_ERROR_FAULT || own.record == MKRT_REPORT_BEGIN ||
                        cancelled_.load(std::memory_order_relaxed) || !patient;
  mkrt_control control{};
  if (!complete) {
    if (!read(part.device.ranks.front(), control)) return true;
    if (static_cast<int32_t>(control.ranks_ended - control.launches * mesh_.rank_count()) < 0) return false;
  }
  mkrt_report first{};
  for (uint32_t rank = 0; rank < mesh_.rank_count(); ++rank) {
    if (group_.is_local(rank) || !read(rank, control)) continue;
    if (patient && control.report_lock != 0) return false;  // it is being written
    if (is_sound(rank, control) && comes_first(control.report, first)) first = control.report;
  }
  // One that said why it gave up has not just vanished.
  const uint32_t status = status_of(own.status);
  const bool unexplained = first.status == MKRT_OK && (status == MKRT_ERROR_DEADLINE || status == MKRT_ERROR_PEER);
  if (unexplained && lost != group_.size()) lost_process_.store(lost, std::memory_order_relaxed);
  others_report_ = first;
  asked_others_.store(true, std::memory_order_release);  // pairs with the acquire in first_report
  return true;
}

// Whether a report in the memory of another process's rank can be shown: it may be half written. Faults count from 1.
bool Session::is_sound(uint32_t rank, const mkrt_control& control) const noexcept {
  const mkrt_report& report = control.report;
  if (control.report_lock != 0 || report.rank != rank) return false;
  if (report.status != MKRT_ERROR_DEADLINE && (report.status != MKRT_ERROR_FAULT || report.fault == 0)) return false;
  if (is_of_ranks(report)) return true;
  const uint32_t entry = entry_of_[report.timeline_value % most_in_flight];
  return report.record < executable_.program().entries[entry].records.size();
}

void Session::cancel() noexcept {
  const std::lock_guard lock(cancel_mutex_);
  if (!busy() && !captured_.load(std::memory_order_relaxed)) return;
  cancelled_.store(true, std::memory_order_relaxed);
  send_aborts(&Mailbox::cancelled_word);
}

// Makes the launches of all ranks leave, those of other processes included. `cancel_mutex_` is held.
void Session::send_aborts(AbortWord word) noexcept {
  bool told_others = group_.alone();
  for (const auto& part : parts_) {
    const ContextScope scope(*part->device.context);
    if (scope.result() != result_success) continue;
    const auto send = [&](uint32_t rank) {
      const uint32_t* from = &(mailboxes_[local(part->device.ranks.front())]->*word);
      return driver_.copy_to_device(abort_word_of(rank), from, sizeof(*from), part->side_stream.get());
    };
    for (const uint32_t rank : part->device.ranks) send(rank);
    if (std::exchange(told_others, true)) continue;
    for (uint32_t rank = 0; rank < mesh_.rank_count(); ++rank) {
      // A device that is lost tells nobody; another one does.
      if (!group_.is_local(rank) && send(rank) != result_success) told_others = false;
    }
  }
}

// Waits until nothing of the session is on its way on any device.
Result Session::settle(bool launches) noexcept {
  for (const auto& part : parts_) {
    const ContextScope scope(*part->device.context);
    Result result = scope.result();
    if (result == result_success && launches) result = driver_.stream_synchronize(part->launch_stream.get());
    if (result == result_success) result = driver_.stream_synchronize(part->side_stream.get());
    if (result != result_success) return result;
  }
  return result_success;
}

mkrt_status Session::reset(mkrt_error* out_error) noexcept {
  if (!group_.alone()) {
    try {
      reset_together();
      return MKRT_OK;
    } catch (const base::Failure& failure) {
      return base::report(out_error, failure);
    } catch (const std::bad_alloc&) {
      return base::report(out_error, MKRT_ERROR_OUT_OF_MEMORY, "the C++ heap has no memory left");
    }
  }
  // A cancel that comes late must not hit the next execute: it is over before the control words become zero.
  const std::lock_guard lock(cancel_mutex_);
  mkrt_status status = come_to_rest(out_error);
  if (status == MKRT_OK) status = clear(out_error);
  if (status == MKRT_OK) begin_anew();
  return status;
}

// Nobody's memory becomes zero while a launch of another process may write to it, and nobody's launch begins before all
// are zero.
void Session::reset_together() {
  constexpr const char* call = "mkrt_session_reset";
  const auto step = [&](mkrt_status (Session::*what)(mkrt_error*) noexcept) {
    mkrt_error error = MKRT_ERROR_INIT;
    const std::lock_guard lock(cancel_mutex_);
    const mkrt_status status = (this->*what)(&error);
    if (status == MKRT_OK) return;
    throw base::Failure(status, error.message).with_driver_code(error.driver_code).at_rank(error.rank);
  };
  if (const uint32_t lost = group_.lost(); lost != group_.size()) {
    mkrt_error error = MKRT_ERROR_INIT;
    device::report_lost(group_, lost, &error);
    throw base::Failure(error.status, error.message).at_rank(error.rank);
  }
  const auto turn = group_.turn();
  const auto sessions = group_.together<uint32_t>(call, [&] {
    step(&Session::come_to_rest);
    return device::ProcessGroup::Part<uint32_t>{number_};
  });
  for (uint32_t process = 0; process < group_.size(); ++process) {
    if (sessions.values[process] == sessions.values[0]) continue;
    throw base::Failure(MKRT_ERROR_PEER, base::text("processes 0 and ", process, " reset different sessions"));
  }
  half_reset_.store(true, std::memory_order_relaxed);
  group_.agree(call, [&] { step(&Session::clear); });
  const std::lock_guard lock(cancel_mutex_);
  begin_anew();
}

// The first part of a reset: nothing of this process is on its way. `cancel_mutex_` is held, as in the others.
mkrt_status Session::come_to_rest(mkrt_error* out_error) noexcept {
  const bool lost = driver_failure_.load(std::memory_order_relaxed) != result_success || (busy() && notice_failure());
  if (!lost && busy()) return report_busy(out_error);
  // All ranks first: a launch writes to the others' control words until it ends. Those that ended by themselves have
  // said so.
  const Result result = settle(lost);
  if (result == result_success) return MKRT_OK;
  return driver_error(driver_, result, "reset the session", static_cast<int32_t>(group_.first_rank()), out_error);
}

mkrt_status Session::clear(mkrt_error* out_error) noexcept {
  for (const auto& part : parts_) {
    const ContextScope scope(*part->device.context);
    Result result = scope.result();
    for (const uint32_t rank : part->device.ranks) {
      if (result != result_success) break;
      result = driver_.fill_bytes(memory_->address(rank), 0, places_.cleared, part->copies);
    }
    if (result == result_success) result = driver_.stream_synchronize(part->copies);
    if (result != result_success) {
      const auto rank = static_cast<int32_t>(part->device.ranks.front());
      return driver_error(driver_, result, "reset the session", rank, out_error);
    }
  }
  return MKRT_OK;
}

void Session::begin_anew() noexcept {
  for (Mailbox* mailbox : mailboxes_) {
    std::memset(&mailbox->report, 0, sizeof(mailbox->report));
    // The streams are idle. A launch that the driver gave up on did not say so: its value counts as reached.
    std::atomic_ref(mailbox->timeline).store(last_value_.load(std::memory_order_relaxed), std::memory_order_release);
  }
  asked_others_.store(false, std::memory_order_relaxed);
  asking_since_ = {};
  half_reset_.store(false, std::memory_order_relaxed);
  driver_failure_.store(result_success, std::memory_order_relaxed);
  cancelled_.store(false, std::memory_order_relaxed);
}

mkrt_status Session::write(uint32_t rank, uint32_t tensor, uint64_t offset, const void* data, uint64_t size,
                           mkrt_error* out_error) noexcept {
  if (busy()) return report_busy(out_error);
  if (size == 0) return MKRT_OK;
  const Part& part = part_of(rank);
  const ContextScope scope(*part.device.context);
  const DevicePointer to = memory_->address(rank) + executable_.layout().tensor_offsets[tensor] + offset;
  Result result = scope.result();
  if (result == result_success) result = driver_.copy_to_device(to, data, size, part.copies);
  if (result == result_success) result = driver_.stream_synchronize(part.copies);
  if (result == result_success) return MKRT_OK;
  return driver_error(driver_, result, "write a tensor", static_cast<int32_t>(rank), out_error);
}

mkrt_status Session::read(uint32_t rank, uint32_t tensor, uint64_t offset, uint64_t size, void* out_data,
                          mkrt_error* out_error) noexcept {
  const DevicePointer from = memory_->address(rank) + executable_.layout().tensor_offsets[tensor] + offset;
  return copy_back(rank, from, size, out_data, "read a tensor", out_error);
}

mkrt_status Session::copy_back(uint32_t rank, DevicePointer from, uint64_t size, void* out_data, const char* what,
                               mkrt_error* out_error) noexcept {
  if (busy()) return report_busy(out_error);
  if (size == 0) return MKRT_OK;
  const Part& part = part_of(rank);
  const ContextScope scope(*part.device.context);
  Result result = scope.result();
  if (result == result_success) result = driver_.copy_to_host(out_data, from, size, part.copies);
  if (result == result_success) result = driver_.stream_synchronize(part.copies);
  if (result == result_success) return MKRT_OK;
  return driver_error(driver_, result, what, static_cast<int32_t>(rank), out_error);
}

void* Session::tensor_address(uint32_t rank, uint32_t tensor) noexcept {
  return reinterpret_cast<void*>(memory_->address(rank) + executable_.layout().tensor_offsets[tensor]);
}

void Session::trace(uint32_t tiles_per_worker) {
  if (busy()) throw base::Failure(MKRT_ERROR_BUSY, "the session has work in flight");
  trace_tiles_ = 0;
  set_trace_addresses({});
  trace_memory_.clear();
  if (tiles_per_worker == 0) return;
  for (const auto& part : parts_) {
    if (part->image.traced_kernel() == nullptr) part->image.refuse("has no kernel mkrt_run_traced");
  }
  std::vector<uint64_t> addresses;
  for (const RankDevice& rank : mesh_.ranks()) {
    const Part& part = part_of(rank.number);
    const ContextScope scope(*part.device.context);
    driver_.check(scope.result(), "make the device's context current");
    const uint64_t bytes = uint64_t{rank.info.worker_count} * tiles_per_worker * sizeof(mkrt_trace_tile);
    const std::shared_ptr<DeviceHeap>& heap = executable_.heaps()[local(rank.number)];
    addresses.push_back(trace_memory_.emplace_back(heap, bytes, "a trace").address());
    driver_.check(driver_.fill_bytes(addresses.back(), 0, bytes, part.copies), "clear the trace");
    driver_.check(driver_.stream_synchronize(part.copies), "clear the trace");
  }
  set_trace_addresses(addresses);
  trace_tiles_ = tiles_per_worker;
}

// By the number of the rank in this process; none: nothing is traced.
void Session::set_trace_addresses(std::span<const uint64_t> addresses) {
  for (size_t i = 0; i < launches_.size(); ++i) {
    launches_[i].trace = addresses.empty() ? 0 : addresses[i / entry_count_];
  }
  for (const auto& part : parts_) {
    const ContextScope scope(*part->device.context);
    driver_.check(scope.result(), "make the device's context current");
    share_launches(*part);
  }
}

mkrt_status Session::read_trace(uint32_t worker, uint32_t count, mkrt_trace_tile* out_tiles,
                                mkrt_error* out_error) noexcept {
  if (busy()) return report_busy(out_error);
  if (count == 0) return MKRT_OK;
  uint32_t number = 0;  // of the rank in this process
  uint32_t of_rank = worker;
  while (number < mesh_.ranks().size() && of_rank >= mesh_.ranks()[number].info.worker_count) {
    of_rank -= mesh_.ranks()[number++].info.worker_count;
  }
  if (number == mesh_.ranks().size() || count > trace_tiles_) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "the trace has %u tiles of each of %u workers", trace_tiles_,
                        trace_tiles_ == 0 ? 0 : worker - of_rank);
  }
  const DevicePointer from =
      trace_memory_[number].address() + uint64_t{of_rank} * trace_tiles_ * sizeof(mkrt_trace_tile);
  return copy_back(mesh_.ranks()[number].number, from, count * sizeof(mkrt_trace_tile), out_tiles, "read a trace",
                   out_error);
}

}  // namespace mkrt::cuda
