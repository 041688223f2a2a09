#include "cli/read_limit.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "cli/error.hpp"

namespace mkrt::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLeastBytes = size_t{512} << 20;
// The buffer is so many times as large as the last-level cache that what stays in it from one pass to the next is of no
// weight: a loop from front to back finds nothing of it again.
constexpr size_t kCacheMultiple = 4;
constexpr size_t kPasses = 8;
// Bytes of one turn of the loop: eight independent sums hide the latency of an addition.
constexpr size_t kBlock = 512;

using Vector = uint64_t __attribute__((vector_size(64)));

inline __attribute__((always_inline)) uint64_t sum_blocks(const std::byte* data, size_t size) {
  Vector sums[8] = {};
  for (size_t i = 0; i < size; i += kBlock) {
    const auto* block = reinterpret_cast<const Vector*>(data + i);
    for (int k = 0; k < 8; ++k) sums[k] += block[k];
  }
  uint64_t total = 0;
  for (const Vector& sum : sums) {
    for (int k = 0; k < 8; ++k) total += sum[k];
  }
  return total;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) uint64_t sum_avx512(const std::byte* data, size_t size) {
  return sum_blocks(data, size);
}
__attribute__((target("avx2"))) uint64_t sum_avx2(const std::byte* data, size_t size) { return sum_blocks(data, size); }
#endif
uint64_t sum_baseline(const std::byte* data, size_t size) { return sum_blocks(data, size); }

using SumFunction = uint64_t (*)(const std::byte*, size_t);

SumFunction widest_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512;
  if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
  return sum_baseline;
}

class Buffer {
 public:
  explicit Buffer(size_t size) : size_(size) {
    data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw Error("there is no memory to measure the machine's read limit with");
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { munmap(data_, size_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_;
  size_t size_;
};

// Runs `work` on that many threads. It begins only when all of them exist: they wait for each other.
void run_together(uint32_t threads, const std::function<void(uint32_t)>& work) {
  enum { kWait, kGo, kLeave };
  std::atomic<int> gate = kWait;
  const auto open_gate = [&](int state) {
    gate = state;
    gate.notify_all();
  };
  std::vector<std::jthread> running;
  try {
    for (uint32_t i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        gate.wait(kWait);
        if (gate == kGo) work(i);
      });
    }
  } catch (...) {
    open_gate(kLeave);
    throw;
  }
  open_gate(kGo);
}

size_t buffer_bytes() {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const size_t wanted = std::max(kLeastBytes, cache > 0 ? kCacheMultiple * static_cast<size_t>(cache) : 0);
  // Virtual machines report caches that they share with others; no report may take more than a quarter of the memory.
  const long pages = sysconf(_SC_PHYS_PAGES);
  return pages <= 0 ? wanted
                    : std::min(wanted, static_cast<size_t>(pages) / 4 * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace

double measure_read_limit(uint32_t threads) {
  threads = std::max(threads, 1U);
  const size_t slice = buffer_bytes() / threads / kBlock * kBlock;
  const Buffer buffer(slice * threads);
  const SumFunction sum = widest_sum();

  // Readers take the times themselves: on a machine whose processors they all occupy, another thread would see the
  // beginning of a pass too late.
  struct Pass {
    Clock::time_point begin, end;
    uint64_t sum;  // kept, so that the reading is not left out as unused
  };
  std::vector<std::vector<Pass>> passes(threads, std::vector<Pass>(kPasses));
  std::barrier round(static_cast<ptrdiff_t>(threads));
  const auto read = [&](uint32_t reader) {
    std::byte* mine = buffer.data() + reader * slice;
    std::memset(mine, static_cast<int>(reader + 1), slice);  // the reader's own memory node gets the pages
    for (Pass& pass : passes[reader]) {
      round.arrive_and_wait();
      pass.begin = Clock::now();
      pass.sum = sum(mine, slice);
      pass.end = Clock::now();
    }
  };
  run_together(threads, read);

  double best = 0;
  for (size_t i = 0; i < kPasses; ++i) {
    Clock::time_point begin = Clock::time_point::max(), end = Clock::time_point::min();
    for (const auto& reader : passes) {
      begin = std::min(begin, reader[i].begin);
      end = std::max(end, reader[i].end);
    }
    best = std::max(best, static_cast<double>(slice * threads) / std::chrono::duration<double>(end - begin).count());
  }
  return best;
}

}  // namespace mkrt::cli
