#include "cuda/session.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/failure.hpp"
#include "base/report.hpp"
#include "device/failures.hpp"
#include "memory/encode.hpp"

namespace mkrt::cuda {

namespace {

constexpr uint64_t most_in_flight = 64;  // promised by mkrt_execute

uint64_t align(uint64_t offset) {
  return (offset + memory::heap_alignment - 1) / memory::heap_alignment * memory::heap_alignment;
}

}  // namespace

Session::Session(Executable& executable)
    : executable_(executable),
      driver_(executable.rank().context->driver()),
      stream_(executable.rank().context, executable.rank().adopted_stream),
      cancel_stream_(executable.rank().context, nullptr),
      mailbox_memory_(executable.rank().context, sizeof(Mailbox), "a session"),
      mailbox_(reinterpret_cast<Mailbox*>(mailbox_memory_.data())),
      entry_of_(most_in_flight, 0) {
  mailbox_->abort_word = MKRT_ERROR_CANCELLED;
  plan_memory();
  encode();
  clear("clear a new session");
}

Session::~Session() {
  cancel();
  const ContextScope scope(*executable_.rank().context);
  if (scope.result() != result_success) return;  // the context is gone, and all work with it
  driver_.stream_synchronize(stream_.get());
  driver_.stream_synchronize(cancel_stream_.get());
}

// One allocation: the heap, then what a launch needs besides it, then the tables that are written once.
void Session::plan_memory() {
  const package::Program& program = executable_.program();
  control_offset_ = align(executable_.layout().session_bytes);
  uint64_t bytes = control_offset_ + align(sizeof(mkrt_control));
  const uint64_t epochs = bytes;
  bytes += align(program.entries.size() * sizeof(uint32_t));
  cleared_bytes_ = bytes;
  const uint64_t deltas = bytes;
  bytes += align(sizeof(int64_t) * program.rank_count);

  launches_.resize(program.entries.size());
  for (size_t e = 0; e < launches_.size(); ++e) {
    const package::Entry& entry = program.entries[e];
    mkrt_launch& launch = launches_[e];
    launch = mkrt_launch{};
    launch.control = control_offset_;
    launch.epoch = epochs + e * sizeof(uint32_t);
    launch.counters = executable_.layout().counter_offsets[e];
    launch.rank_delta = deltas;
    launch.records = bytes;
    bytes += align(entry.records.size() * sizeof(mkrt_record));
    launch.first_tiles = bytes;
    bytes += align((entry.records.size() + 1) * sizeof(uint32_t));
    launch.record_count = static_cast<uint32_t>(entry.records.size());
    launch.rank_count = program.rank_count;
    launch.local_rank_count = 1;
    launch.blocks = launch.block_limit = executable_.rank().info.worker_count;
    launch.page_count = executable_.image().shared_memory().page_count;
    launch.activation_bytes = executable_.image().shared_memory().activation_bytes;
    // Three pages of 16 KB on their way keep memory busy; more delay signals and inputs (kernels/PERFORMANCE.md).
    launch.outstanding_pages = std::min<uint32_t>(3, launch.page_count);
    launch.report = mailbox_memory_.device_address() + offsetof(Mailbox, report);
    launch.timeline = mailbox_memory_.device_address() + offsetof(Mailbox, timeline);
  }
  memory_ = DeviceMemory(executable_.heap(), bytes, "a session");
  // Offsets become addresses.
  for (mkrt_launch& launch : launches_) {
    for (uint64_t* address :
         {&launch.control, &launch.epoch, &launch.counters, &launch.rank_delta, &launch.records, &launch.first_tiles}) {
      *address += memory_.address();
    }
  }
}

void Session::encode() {
  const package::Program& program = executable_.program();
  const Stream stream = stream_.get();
  for (size_t e = 0; e < launches_.size(); ++e) {
    const package::Entry& entry = program.entries[e];
    const memory::RankAddresses addresses{0, memory_.address(), executable_.weights()};
    std::vector<mkrt_record> records(entry.records.size());
    memory::encode_entry(program, entry, executable_.layout(), addresses, records);
    std::vector<uint32_t> first_tiles;
    first_tiles.reserve(records.size() + 1);
    for (const mkrt_record& record : records) first_tiles.push_back(static_cast<uint32_t>(record.first_tile));
    first_tiles.push_back(static_cast<uint32_t>(entry.tile_count));
    const mkrt_launch& launch = launches_[e];
    driver_.check(driver_.copy_to_device(launch.records, records.data(), records.size() * sizeof(mkrt_record), stream),
                  "write a session's tables");
    driver_.check(
        driver_.copy_to_device(launch.first_tiles, first_tiles.data(), first_tiles.size() * sizeof(uint32_t), stream),
        "write a session's tables");
    const std::vector<int64_t> deltas(program.rank_count, 0);
    driver_.check(driver_.copy_to_device(launch.rank_delta, deltas.data(), deltas.size() * sizeof(int64_t), stream),
                  "write a session's tables");
    // The copies read memory of this scope.
    driver_.check(driver_.stream_synchronize(stream), "write a session's tables");
  }
}

void Session::clear(const char* what) {
  driver_.check(driver_.fill_bytes(memory_.address(), 0, cleared_bytes_, stream_.get()), what);
  driver_.check(driver_.stream_synchronize(stream_.get()), what);
}

uint64_t Session::completed() const noexcept {
  // Acquire: pairs with the release of the kernel's last block at system scope.
  return std::atomic_ref(mailbox_->timeline).load(std::memory_order_acquire);
}

bool Session::busy() const noexcept { return completed() != last_value_.load(std::memory_order_relaxed); }

mkrt_status Session::report_busy(mkrt_error* out_error) const noexcept {
  return base::report(out_error, MKRT_ERROR_BUSY, "the session has work in flight: it reached %llu of %llu",
                      static_cast<unsigned long long>(completed()),
                      static_cast<unsigned long long>(last_value_.load(std::memory_order_relaxed)));
}

mkrt_report Session::report() const noexcept {
  mkrt_report report{};
  // Acquire: the device writes the status last, with release at system scope.
  report.status = std::atomic_ref(mailbox_->report.status).load(std::memory_order_acquire);
  if (report.status != MKRT_OK) {
    const uint32_t status = report.status;
    report = mailbox_->report;
    report.status = status;
  }
  return report;
}

mkrt_status Session::status(mkrt_error* out_error) const noexcept {
  const mkrt_report seen = report();
  if (seen.status != MKRT_OK) return fill_report(seen, out_error);
  const Result failure = driver_failure_.load(std::memory_order_relaxed);
  if (failure != result_success) return driver_error(driver_, failure, "finish an execute", 0, out_error);
  if (cancelled_.load(std::memory_order_relaxed)) {
    return base::report(out_error, MKRT_ERROR_CANCELLED, "the execute was cancelled");
  }
  return MKRT_OK;
}

mkrt_status Session::fill_report(const mkrt_report& report, mkrt_error* out_error) const noexcept {
  if (out_error == nullptr) return static_cast<mkrt_status>(report.status);
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

  mkrt_launch launch = launches_[request.entry];
  launch.step_count = request.step_count;
  launch.queue_mode = request.queue_mode;
  launch.wait_limit_ns = request.wait_limit_ns;
  launch.timeline_value = value;
  launch.trace = trace_memory_.address();
  launch.trace_tiles = trace_tiles_;
  const uint32_t workers = executable_.rank().info.worker_count;
  LaunchAttribute cooperative{};
  // All blocks resident at once: in static mode each has tiles of its own that others wait for.
  cooperative.id = launch_attribute_cooperative;
  cooperative.value.cooperative = 1;
  LaunchConfig config{};
  config.grid_x = request.worker_limit == 0 ? workers : std::min(workers, request.worker_limit);
  config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
  config.block_x = executable_.image().info().block_size;
  config.shared_memory_bytes = executable_.image().shared_memory().total_bytes;
  config.stream = stream_.get();
  config.attributes = &cooperative;
  config.attribute_count = 1;
  void* parameters[] = {&launch};

  const ContextScope scope(*executable_.rank().context);
  Result result = scope.result();
  if (result == result_success && trace_tiles_ != 0) {
    result = driver_.fill_bytes(trace_memory_.address(), 0, trace_memory_.size(), stream_.get());
  }
  entry_of_[value % most_in_flight] = request.entry;  // before the launch, whose report needs it
  if (result == result_success) {
    result = driver_.launch(&config, executable_.image().kernel(), parameters, nullptr);
  }
  if (result != result_success) return driver_error(driver_, result, "launch the kernel", 0, out_error);
  last_value_.store(value, std::memory_order_relaxed);
  if (out_value != nullptr) *out_value = value;
  return MKRT_OK;
}

mkrt_status Session::query(uint64_t* out_value, mkrt_error* out_error) noexcept {
  *out_value = completed();
  return status(out_error);
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
      // A launch that the driver gave up on never stores its value; the stream knows.
      const ContextScope scope(*executable_.rank().context);
      const Result result = scope.result() == result_success ? driver_.stream_query(stream_.get()) : scope.result();
      if (result != result_success && result != result_not_ready) {
        driver_failure_.store(result, std::memory_order_relaxed);
        return status(out_error);
      }
      next_look = now + watch_ns;
    }
    std::this_thread::sleep_for(nap);
  }
  return status(out_error);
}

void Session::cancel() noexcept {
  const std::lock_guard lock(cancel_mutex_);
  if (!busy()) return;
  cancelled_.store(true, std::memory_order_relaxed);
  const ContextScope scope(*executable_.rank().context);
  if (scope.result() != result_success) return;
  driver_.copy_to_device(memory_.address() + control_offset_ + offsetof(mkrt_control, abort), &mailbox_->abort_word,
                         sizeof(uint32_t), cancel_stream_.get());
}

mkrt_status Session::reset(mkrt_error* out_error) noexcept {
  // A cancel that comes late must not hit the next execute: it is over before the control words become zero.
  const std::lock_guard lock(cancel_mutex_);
  if (driver_failure_.load(std::memory_order_relaxed) == result_success && busy()) return report_busy(out_error);
  const ContextScope scope(*executable_.rank().context);
  Result result = scope.result();
  if (result == result_success) result = driver_.stream_synchronize(cancel_stream_.get());
  if (result == result_success) result = driver_.fill_bytes(memory_.address(), 0, cleared_bytes_, stream_.get());
  if (result == result_success) result = driver_.stream_synchronize(stream_.get());
  if (result != result_success) return driver_error(driver_, result, "reset the session", 0, out_error);
  std::memset(&mailbox_->report, 0, sizeof(mailbox_->report));
  // The stream is idle. A launch that the driver gave up on did not say so: its value counts as reached.
  std::atomic_ref(mailbox_->timeline).store(last_value_.load(std::memory_order_relaxed), std::memory_order_release);
  driver_failure_.store(result_success, std::memory_order_relaxed);
  cancelled_.store(false, std::memory_order_relaxed);
  return MKRT_OK;
}

mkrt_status Session::write(uint32_t, uint32_t tensor, uint64_t offset, const void* data, uint64_t size,
                           mkrt_error* out_error) noexcept {
  if (busy()) return report_busy(out_error);
  if (size == 0) return MKRT_OK;
  const ContextScope scope(*executable_.rank().context);
  const DevicePointer to = memory_.address() + executable_.layout().tensor_offsets[tensor] + offset;
  Result result = scope.result();
  if (result == result_success) result = driver_.copy_to_device(to, data, size, stream_.get());
  if (result == result_success) result = driver_.stream_synchronize(stream_.get());
  return result == result_success ? MKRT_OK : driver_error(driver_, result, "write a tensor", 0, out_error);
}

mkrt_status Session::read(uint32_t, uint32_t tensor, uint64_t offset, uint64_t size, void* out_data,
                          mkrt_error* out_error) noexcept {
  if (busy()) return report_busy(out_error);
  if (size == 0) return MKRT_OK;
  const ContextScope scope(*executable_.rank().context);
  const DevicePointer from = memory_.address() + executable_.layout().tensor_offsets[tensor] + offset;
  Result result = scope.result();
  if (result == result_success) result = driver_.copy_to_host(out_data, from, size, stream_.get());
  if (result == result_success) result = driver_.stream_synchronize(stream_.get());
  return result == result_success ? MKRT_OK : driver_error(driver_, result, "read a tensor", 0, out_error);
}

void* Session::tensor_address(uint32_t, uint32_t tensor) noexcept {
  return reinterpret_cast<void*>(memory_.address() + executable_.layout().tensor_offsets[tensor]);
}

void Session::trace(uint32_t tiles_per_worker) {
  if (busy()) throw base::Failure(MKRT_ERROR_BUSY, "the session has work in flight");
  const ContextScope scope(*executable_.rank().context);
  driver_.check(scope.result(), "make the device's context current");
  trace_memory_ = DeviceMemory();
  trace_tiles_ = 0;
  if (tiles_per_worker == 0) return;
  const uint64_t bytes = uint64_t{executable_.rank().info.worker_count} * tiles_per_worker * sizeof(mkrt_trace_tile);
  trace_memory_ = DeviceMemory(executable_.heap(), bytes, "a trace");
  driver_.check(driver_.fill_bytes(trace_memory_.address(), 0, bytes, stream_.get()), "clear the trace");
  driver_.check(driver_.stream_synchronize(stream_.get()), "clear the trace");
  trace_tiles_ = tiles_per_worker;
}

mkrt_status Session::read_trace(uint32_t worker, uint32_t count, mkrt_trace_tile* out_tiles,
                                mkrt_error* out_error) noexcept {
  if (busy()) return report_busy(out_error);
  if (count == 0) return MKRT_OK;
  if (worker >= executable_.rank().info.worker_count || count > trace_tiles_) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "the trace has %u tiles of each of %u workers", trace_tiles_,
                        trace_tiles_ == 0 ? 0 : executable_.rank().info.worker_count);
  }
  const ContextScope scope(*executable_.rank().context);
  const DevicePointer from = trace_memory_.address() + uint64_t{worker} * trace_tiles_ * sizeof(mkrt_trace_tile);
  Result result = scope.result();
  if (result == result_success) {
    result = driver_.copy_to_host(out_tiles, from, count * sizeof(mkrt_trace_tile), stream_.get());
  }
  if (result == result_success) result = driver_.stream_synchronize(stream_.get());
  return result == result_success ? MKRT_OK : driver_error(driver_, result, "read a trace", 0, out_error);
}

}  // namespace mkrt::cuda
