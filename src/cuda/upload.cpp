#include "cuda/upload.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "base/failure.hpp"
#include "base/signals.hpp"

namespace mkrt::cuda {

namespace {

// Each call of the driver takes about 10 us, one thread's after the other's, so that small pieces keep the copy engine
// waiting: 12 threads bring 25, 36, 46 and 49 GB/s in pieces of 512 KB, 1, 2 and 4 MB, of the 55.4 GB/s that it moves
// (one H200, 16 cores, driver 580.159.04, 2026-11-30; tests/bench/results).
constexpr size_t largest_piece = size_t{4} << 20;
// Reading less than this takes a thread less time (0.18 ms) than to start and to pin what it reads into.
constexpr size_t smallest_piece = size_t{1} << 20;
constexpr size_t page = 4096;
// One is filled while the other is on its way.
constexpr size_t pieces_per_thread = 2;

// How transfers are cut, and for how many threads: as large as is good, but so that each thread gets its share.
struct Plan {
  size_t piece_bytes = 0;
  size_t threads = 0;
  size_t staging_bytes = 0;  // of a piece, the largest that there is
};

Plan plan_pieces(std::span<const Transfer> transfers, uint32_t thread_count) {
  uint64_t bytes = 0;
  uint64_t longest = 0;
  for (const Transfer& transfer : transfers) {
    bytes += transfer.from.size();
    longest = std::max<uint64_t>(longest, transfer.from.size());
  }
  if (bytes == 0) return {};
  const uint64_t most_threads = std::max<uint64_t>(thread_count, 1);
  const uint64_t share = bytes / (most_threads * pieces_per_thread);
  const uint64_t piece = std::clamp<uint64_t>((share + page - 1) / page * page, smallest_piece, largest_piece);
  const uint64_t threads = std::min(most_threads, (bytes + piece - 1) / piece);
  return {static_cast<size_t>(piece), static_cast<size_t>(threads), static_cast<size_t>(std::min(piece, longest))};
}

// Hands out pieces of all transfers to the threads.
class Pieces {
 public:
  Pieces(std::span<const Transfer> transfers, size_t piece_bytes) : transfers_(transfers), piece_bytes_(piece_bytes) {}

  // The next piece; false when there is none left.
  bool take(Transfer* out_piece) {
    const std::lock_guard lock(mutex_);
    while (index_ < transfers_.size() && offset_ == transfers_[index_].from.size()) {
      ++index_;
      offset_ = 0;
    }
    if (index_ == transfers_.size()) return false;
    const Transfer& transfer = transfers_[index_];
    const size_t bytes = std::min(piece_bytes_, transfer.from.size() - offset_);
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
  const size_t piece_bytes_;
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

// One thread's part: two places in pinned memory, each emptied by a stream of its own. Its thread makes each place when
// there is a piece for it, so that copies are on their way meanwhile.
class Lane {
 public:
  // `staging_bytes`: of a place; no piece is larger.
  Lane(const std::shared_ptr<const DeviceContext>& context, size_t staging_bytes)
      : context_(context), staging_bytes_(staging_bytes) {}

  // Returns when everything that it took is on the device; nothing reads the staging memory then, also after a failure.
  void run(Pieces& pieces) {
    try {
      Transfer piece;
      for (size_t turn = 0; pieces.take(&piece); turn = (turn + 1) % places_.size()) {
        std::optional<Place>& place = places_[turn];
        if (place) {
          wait(*place);
        } else {
          place.emplace(context_, staging_bytes_);
        }
        read(piece, place->memory.data());
        copy(piece, *place);
      }
      for (const auto& place : places_) {
        if (place) wait(*place);
      }
    } catch (...) {
      for (const auto& place : places_) {
        if (place) context_->driver().stream_synchronize(place->stream.get());
      }
      throw;
    }
  }

 private:
  struct Place {
    Place(const std::shared_ptr<const DeviceContext>& context, size_t bytes)
        : memory(context, bytes, "the upload of weights"), stream(context, nullptr) {}
    StagingMemory memory;
    StreamHandle stream;
  };

  void copy(const Transfer& piece, const Place& place) const {
    const Driver& driver = context_->driver();
    driver.check(driver.copy_to_device(piece.to, place.memory.data(), piece.from.size(), place.stream.get()),
                 "copy weights to the device");
  }
  void wait(const Place& place) const {
    const Driver& driver = context_->driver();
    driver.check(driver.stream_synchronize(place.stream.get()), "wait for weights on their way to the device");
  }

  const std::shared_ptr<const DeviceContext>& context_;
  const size_t staging_bytes_;
  std::array<std::optional<Place>, pieces_per_thread> places_;
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
  const Plan plan = plan_pieces(transfers, thread_count);
  if (plan.threads == 0) return;
  Pieces pieces(transfers, plan.piece_bytes);
  std::vector<std::exception_ptr> failures(plan.threads);
  run_threads(plan.threads, [&](size_t thread) noexcept {
    try {
      const ContextScope scope(*context);
      context->driver().check(scope.result(), "make the device's context current");
      Lane(context, plan.staging_bytes).run(pieces);
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
