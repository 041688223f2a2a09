#include "cuda/upload.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/failure.hpp"
#include "base/signals.hpp"

namespace mkrt::cuda {

namespace {

// Pinned memory is what an upload pays for before the first byte moves: when each thread took 8 MB, the time that this
// took, at about 6 ms a thread, undid what threads after the fifth brought (tests/bench/results, H200, 2026-11-30).
// Reading is as fast into pieces of 512 KB as into larger ones, they stay in the processor's caches until the copy
// engine has read them, and their copies (10 us at 55 GB/s) still hide what it costs to start one.
constexpr size_t piece_bytes = size_t{512} << 10;
// One is filled while the other is on its way.
constexpr size_t pieces_per_thread = 2;

// Hands out pieces of all transfers to the threads.
class Pieces {
 public:
  explicit Pieces(std::span<const Transfer> transfers) : transfers_(transfers) {}

  // The next piece; false when there is none left.
  bool take(Transfer* out_piece) {
    const std::lock_guard lock(mutex_);
    while (index_ < transfers_.size() && offset_ == transfers_[index_].from.size()) {
      ++index_;
      offset_ = 0;
    }
    if (index_ == transfers_.size()) return false;
    const Transfer& transfer = transfers_[index_];
    const size_t bytes = std::min(piece_bytes, transfer.from.size() - offset_);
    *out_piece = {transfer.from.subspan(offset_, bytes), transfer.to + offset_, transfer.file};
    offset_ += bytes;
    return true;
  }
  // Nothing is handed out any more.
  void stop() {
    const std::lock_guard lock(mutex_);
    index_ = transfers_.size();
  }

 private:
  std::mutex mutex_;
  std::span<const Transfer> transfers_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

void read(const Transfer& piece, std::byte* out) {
  if (piece.file != nullptr) {
    piece.file->read(piece.from, out);
  } else {
    std::memcpy(out, piece.from.data(), piece.from.size());
  }
}

// One thread's part: two places in pinned memory, each emptied by a stream of its own.
class Lane {
 public:
  // `staging`: pieces_per_thread * piece_bytes. Made by the thread that uses it, so that other threads already copy
  // while the driver makes streams.
  Lane(const std::shared_ptr<const DeviceContext>& context, std::byte* staging)
      : driver_(context->driver()),
        places_{Place{staging, {context, nullptr}}, Place{staging + piece_bytes, {context, nullptr}}} {}

  // Returns when everything that it took is on the device; nothing reads the staging memory then, also after a failure.
  void run(Pieces& pieces) {
    try {
      Transfer piece;
      for (size_t turn = 0; pieces.take(&piece); turn = (turn + 1) % places_.size()) {
        Place& place = places_[turn];
        wait(place);
        read(piece, place.memory);
        driver_.check(driver_.copy_to_device(piece.to, place.memory, piece.from.size(), place.stream.get()),
                      "copy weights to the device");
      }
      for (const Place& place : places_) wait(place);
    } catch (...) {
      for (const Place& place : places_) driver_.stream_synchronize(place.stream.get());
      throw;
    }
  }

 private:
  struct Place {
    std::byte* memory;
    StreamHandle stream;
  };

  void wait(const Place& place) const {
    driver_.check(driver_.stream_synchronize(place.stream.get()), "wait for weights on their way to the device");
  }

  const Driver& driver_;
  std::array<Place, pieces_per_thread> places_;
};

// Runs `work(thread)` for threads 0 to `count` - 1, the first on this one; on fewer where the system gives no more.
template <class Work>
void run_threads(size_t count, const Work& work) {
  std::vector<std::jthread> others;
  try {
    const base::SignalsBlocked blocked;
    for (size_t thread = 1; thread < count; ++thread) others.emplace_back(work, thread);
  } catch (const std::system_error&) {
    // Those that there are do everything.
  }
  work(size_t{0});
}

}  // namespace

void upload(const std::shared_ptr<const DeviceContext>& context, std::span<const Transfer> transfers,
            uint32_t thread_count) {
  uint64_t bytes = 0;
  for (const Transfer& transfer : transfers) bytes += transfer.from.size();
  if (bytes == 0) return;
  const uint64_t useful = (bytes + piece_bytes - 1) / piece_bytes;
  const auto threads = static_cast<size_t>(std::clamp<uint64_t>(thread_count, 1, useful));
  constexpr size_t lane_bytes = pieces_per_thread * piece_bytes;

  const StagingMemory staging(context, threads * lane_bytes, "the upload of weights");
  Pieces pieces(transfers);
  std::vector<std::exception_ptr> failures(threads);
  run_threads(threads, [&](size_t thread) noexcept {
    try {
      const ContextScope scope(*context);
      context->driver().check(scope.result(), "make the device's context current");
      Lane(context, staging.data() + thread * lane_bytes).run(pieces);
    } catch (...) {
      failures[thread] = std::current_exception();
      pieces.stop();
    }
  });
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace mkrt::cuda
