#include "cuda/upload.hpp"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstring>
#include <exception>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "base/signals.hpp"

namespace mkrt::cuda {

namespace {

using Clock = std::chrono::steady_clock;

// Reading so much takes a thread 0.18 ms, three times as long as to start it.
constexpr uint64_t smallest_share = uint64_t{1} << 20;

// Memory that blocks pass through, and the stream that their copies go on.
class Staging {
 public:
  Staging(const std::shared_ptr<const DeviceContext>& context, size_t bytes)
      : context_(context), stream_(context, nullptr), memory_(context, bytes, "the upload of weights") {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Nothing reads the memory when it goes, also after a failure.
  ~Staging() {
    if (busy_) context_->driver().stream_synchronize(stream_.get());
  }

  std::byte* data() const noexcept { return memory_.data(); }
  // Comes before the first copy.
  void pin() { memory_.pin("the upload of weights"); }
  void copy(DevicePointer to, size_t bytes) {
    const Driver& driver = context_->driver();
    busy_ = true;
    driver.check(driver.copy_to_device(to, memory_.data(), bytes, stream_.get()), "copy weights to the device");
  }
  void wait() {
    const Driver& driver = context_->driver();
    driver.check(driver.stream_synchronize(stream_.get()), "wait for weights on their way to the device");
    busy_ = false;
  }

 private:
  const std::shared_ptr<const DeviceContext>& context_;
  StreamHandle stream_;
  StagingMemory memory_;
  bool busy_ = false;
};

// Where a block is between file and device. A block is opened by the thread that takes its first slice, filled by all,
// and sent by the one that read the last of its slices.
struct Place {
  std::optional<Staging> staging;
  // Numbers of blocks, from 1; 0: none yet.
  std::atomic<uint32_t> opened{0};
  std::atomic<uint32_t> sent{0};
  std::atomic<uint32_t> unread{0};  // slices of the block that is open
  Clock::time_point first_copy, last_copy;
};

// Blocks of the device memory, in order. Threads take slices in order and do what they took in any case, without work
// after a failure; so whoever waits for a block, which others took before, waits for what comes.
class Upload {
 public:
  Upload(const std::shared_ptr<DeviceHeap>& heap, uint64_t bytes, std::span<const Transfer> transfers,
         uint32_t thread_count, const UploadShape& shape);

  Uploaded run();

 private:
  void run_threads();
  void allocate();
  void work();
  void open(uint32_t block, Place& place);
  void read(uint64_t begin, uint64_t end, std::byte* out);
  void send(uint32_t block, Place& place);
  void finish();

  uint64_t end_of(uint32_t block) const { return std::min(bytes_, (uint64_t{block} + 1) * shape_.block_bytes); }
  UploadTimes times() const;

  // Once a step failed, those that are left are skipped.
  template <class Step>
  void attempt(const Step& step) noexcept {
    if (stopped_.load(std::memory_order_relaxed)) return;
    try {
      step();
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
      stopped_.store(true, std::memory_order_relaxed);
      next_slice_.store(slice_count_, std::memory_order_relaxed);
    }
  }

  const std::shared_ptr<DeviceHeap>& heap_;
  const std::shared_ptr<const DeviceContext>& context_;
  const uint64_t bytes_;
  const std::span<const Transfer> transfers_;
  const UploadShape shape_;
  const uint64_t slice_count_;
  const uint32_t block_count_;
  const size_t thread_count_;
  std::vector<Place> places_;

  DeviceMemory memory_;
  std::latch allocated_{1};  // or failed
  std::atomic<uint64_t> next_slice_{0};
  std::atomic<bool> stopped_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;

  Clock::time_point begin_ = Clock::now();
  Clock::time_point allocated_at_, end_;
  std::atomic<uint64_t> reading_ns_{0};
};

uint64_t quotient_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Acquire: what came before the number was announced has happened.
void wait_for(const std::atomic<uint32_t>& number, uint32_t value) {
  for (uint32_t seen; (seen = number.load(std::memory_order_acquire)) != value;) number.wait(seen);
}
void announce(std::atomic<uint32_t>& number, uint32_t value) {
  number.store(value, std::memory_order_release);
  number.notify_all();
}

Upload::Upload(const std::shared_ptr<DeviceHeap>& heap, uint64_t bytes, std::span<const Transfer> transfers,
               uint32_t thread_count, const UploadShape& shape)
    : heap_(heap),
      context_(heap->context()),
      bytes_(bytes),
      transfers_(transfers),
      shape_(shape),
      slice_count_(quotient_up(bytes, shape.slice_bytes)),
      block_count_(static_cast<uint32_t>(quotient_up(bytes, shape.block_bytes))),
      thread_count_(std::clamp<size_t>(thread_count, 1, quotient_up(bytes, smallest_share))),
      // One thread fills one place at a time.
      places_(std::min<size_t>({shape.place_count, block_count_, thread_count_ + 1})) {
  assert(shape.block_bytes % shape.slice_bytes == 0);
}

Uploaded Upload::run() {
  run_threads();
  finish();
  if (failure_) std::rethrow_exception(failure_);
  return {std::move(memory_), times()};
}

// On fewer threads where the system gives no more.
void Upload::run_threads() {
  std::vector<std::jthread> others;
  others.reserve(thread_count_ - 1);
  try {
    const base::SignalsBlocked blocked;
    while (others.size() < thread_count_ - 1) {
      others.emplace_back([this] {
        const ContextScope scope(*context_);
        attempt([&] { context_->driver().check(scope.result(), "make the device's context current"); });
        if (scope.result() == result_success) work();
      });
    }
  } catch (const std::exception&) {
    // Those that there are do everything.
  }
  // The others read meanwhile.
  allocate();
  work();
}

void Upload::allocate() {
  attempt([&] { memory_ = DeviceMemory(heap_, bytes_, "the weights"); });
  allocated_at_ = Clock::now();
  allocated_.count_down();
}

void Upload::work() {
  const uint64_t slices_per_block = shape_.block_bytes / shape_.slice_bytes;
  uint64_t slice;
  while ((slice = next_slice_.fetch_add(1, std::memory_order_relaxed)) < slice_count_) {
    const auto block = static_cast<uint32_t>(slice / slices_per_block);
    Place& place = places_[block % places_.size()];
    if (slice % slices_per_block == 0) {
      open(block, place);
    } else {
      wait_for(place.opened, block + 1);
    }
    attempt([&] {
      const uint64_t begin = slice * shape_.slice_bytes;
      const uint64_t offset = begin - uint64_t{block} * shape_.block_bytes;
      read(begin, std::min(bytes_, begin + shape_.slice_bytes), place.staging->data() + offset);
    });
    // Release and acquire: the copy sees what all threads read.
    if (place.unread.fetch_sub(1, std::memory_order_acq_rel) == 1) send(block, place);
  }
}

void Upload::open(uint32_t block, Place& place) {
  const auto place_count = static_cast<uint32_t>(places_.size());
  if (block < place_count) {
    attempt([&] { place.staging.emplace(context_, std::min<uint64_t>(bytes_, shape_.block_bytes)); });
  } else {
    wait_for(place.sent, block + 1 - place_count);
    attempt([&] { place.staging->wait(); });
  }
  const uint64_t bytes = end_of(block) - uint64_t{block} * shape_.block_bytes;
  place.unread.store(static_cast<uint32_t>(quotient_up(bytes, shape_.slice_bytes)), std::memory_order_relaxed);
  announce(place.opened, block + 1);
}

// Bytes `begin` to `end` of the device memory.
void Upload::read(uint64_t begin, uint64_t end, std::byte* out) {
  const Clock::time_point began = Clock::now();
  const auto ends_before = [](const Transfer& transfer, uint64_t at) {
    return transfer.offset + transfer.from.size() <= at;
  };
  auto transfer = std::lower_bound(transfers_.begin(), transfers_.end(), begin, ends_before);
  for (uint64_t at = begin; at < end;) {
    const uint64_t next = transfer == transfers_.end() ? end : std::clamp(transfer->offset, at, end);
    std::memset(out + (at - begin), 0, next - at);
    at = next;
    if (at == end) break;
    const std::span<const std::byte> rest = transfer->from.subspan(at - transfer->offset);
    const std::span<const std::byte> piece = rest.first(std::min<uint64_t>(rest.size(), end - at));
    if (transfer->file != nullptr) {
      transfer->file->read(piece, out + (at - begin));
    } else if (!piece.empty()) {
      std::memcpy(out + (at - begin), piece.data(), piece.size());
    }
    at += piece.size();
    ++transfer;
  }
  const std::chrono::nanoseconds took = Clock::now() - began;
  reading_ns_.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
}

void Upload::send(uint32_t block, Place& place) {
  attempt([&] { place.staging->pin(); });
  allocated_.wait();
  attempt([&] {
    const uint64_t offset = uint64_t{block} * shape_.block_bytes;
    place.staging->copy(memory_.address() + offset, static_cast<size_t>(end_of(block) - offset));
  });
  place.last_copy = Clock::now();
  if (block < places_.size()) place.first_copy = place.last_copy;
  announce(place.sent, block + 1);
}

// The place whose copy is the oldest first: the others are on their way while it is given back.
void Upload::finish() {
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[(block_count_ + i) % places_.size()];
    attempt([&] { place.staging->wait(); });
    place.staging.reset();
  }
  end_ = Clock::now();
}

UploadTimes Upload::times() const {
  const auto after = [&](Clock::time_point point) { return std::chrono::duration<double>(point - begin_).count(); };
  UploadTimes times;
  times.allocated = after(allocated_at_);
  times.first_copy = after(places_.front().first_copy);
  for (const Place& place : places_) {
    times.first_copy = std::min(times.first_copy, after(place.first_copy));
    times.all_places = std::max(times.all_places, after(place.first_copy));
    times.last_copy = std::max(times.last_copy, after(place.last_copy));
  }
  times.end = after(end_);
  times.reading = static_cast<double>(reading_ns_.load(std::memory_order_relaxed)) * 1e-9;
  return times;
}

}  // namespace

Uploaded upload(const std::shared_ptr<DeviceHeap>& heap, uint64_t bytes, std::span<const Transfer> transfers,
                uint32_t thread_count, const UploadShape& shape) {
  if (bytes == 0) return {};
  return Upload(heap, bytes, transfers, thread_count, shape).run();
}

}  // namespace mkrt::cuda
