#include "cuda/upload.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "base/failure.hpp"
#include "base/signals.hpp"

namespace mkrt::cuda {

namespace {

// Large enough that a piece's copy (75 us at 55 GB/s) hides the driver's cost of starting it, small enough for the
// processor's caches.
constexpr size_t piece_bytes = size_t{4} << 20;
constexpr size_t buffers_per_thread = 2;

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
    *out_piece = {transfer.from.subspan(offset_, bytes), transfer.to + offset_};
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

// A pinned buffer and the stream that empties it.
struct Buffer {
  explicit Buffer(const std::shared_ptr<const DeviceContext>& context)
      : memory(context, piece_bytes, "the upload of weights"), stream(context, nullptr) {}
  PinnedMemory memory;
  StreamHandle stream;
};

void upload_pieces(const Driver& driver, Pieces& pieces, std::array<Buffer*, buffers_per_thread> buffers) {
  Transfer piece;
  for (size_t turn = 0; pieces.take(&piece); turn = (turn + 1) % buffers.size()) {
    Buffer& buffer = *buffers[turn];
    driver.check(driver.stream_synchronize(buffer.stream.get()), "wait for weights on their way to the device");
    std::memcpy(buffer.memory.data(), piece.from.data(), piece.from.size());
    driver.check(driver.copy_to_device(piece.to, buffer.memory.data(), piece.from.size(), buffer.stream.get()),
                 "copy weights to the device");
  }
  for (Buffer* buffer : buffers) {
    driver.check(driver.stream_synchronize(buffer->stream.get()), "wait for weights on their way to the device");
  }
}

}  // namespace

void upload(const std::shared_ptr<const DeviceContext>& context, std::span<const Transfer> transfers,
            uint32_t thread_count) {
  uint64_t bytes = 0;
  for (const Transfer& transfer : transfers) bytes += transfer.from.size();
  if (bytes == 0) return;
  const uint64_t useful = (bytes + piece_bytes - 1) / piece_bytes;
  const auto threads = static_cast<size_t>(std::clamp<uint64_t>(thread_count, 1, useful));

  const Driver& driver = context->driver();
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (size_t i = 0; i < threads * buffers_per_thread; ++i) buffers.push_back(std::make_unique<Buffer>(context));
  Pieces pieces(transfers);
  std::vector<std::exception_ptr> failures(threads);
  const auto work = [&](size_t thread) noexcept {
    try {
      const ContextScope scope(*context);
      driver.check(scope.result(), "make the device's context current");
      upload_pieces(driver, pieces, {buffers[2 * thread].get(), buffers[2 * thread + 1].get()});
    } catch (...) {
      failures[thread] = std::current_exception();
      pieces.stop();
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      const base::SignalsBlocked blocked;
      for (size_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    } catch (const std::system_error&) {
      // The system gives no more threads: those that there are do everything.
    }
    work(0);
  }
  for (const std::exception_ptr& failure : failures) {
    if (!failure) continue;
    // Copies of other pieces may still read the buffers that go away with this scope.
    for (const auto& buffer : buffers) driver.stream_synchronize(buffer->stream.get());
    std::rethrow_exception(failure);
  }
}

}  // namespace mkrt::cuda
