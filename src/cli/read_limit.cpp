#include "cli/read_limit.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>
#include <string>
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
// The first pass finds other things in caches and address tables; of the others one is undisturbed.
constexpr size_t kPasses = 4;
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

// The caches of level 3 that the system lists for its processors, each once.
uint64_t listed_cache_bytes() {
  std::set<std::string> seen;
  uint64_t bytes = 0;
  for (unsigned cpu = 0; cpu < std::thread::hardware_concurrency(); ++cpu) {
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache/index3/";
    std::string sharers;
    uint64_t kilobytes = 0;
    std::ifstream(folder + "shared_cpu_list") >> sharers;
    std::ifstream(folder + "size") >> kilobytes;  // such as "32768K"
    if (!sharers.empty() && seen.insert(sharers).second) bytes += kilobytes << 10;
  }
  return bytes;
}

size_t buffer_bytes() {
  const size_t wanted = std::max<size_t>(kLeastBytes, kCacheMultiple * last_level_cache_bytes());
  // Virtual machines report caches that they share with others; no report may take more than a quarter of the memory.
  const long pages = sysconf(_SC_PHYS_PAGES);
  return pages <= 0 ? wanted
                    : std::min(wanted, static_cast<size_t>(pages) / 4 * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

// Readers take the times themselves: on a machine whose processors they all occupy, another thread would see the
// beginning of a pass too late.
struct Pass {
  Clock::time_point begin, end;
  uint64_t sum;  // kept, so that the reading is not left out as unused
};

}  // namespace

uint64_t last_level_cache_bytes() {
  const uint64_t listed = listed_cache_bytes();
  const long one = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::max(listed, one > 0 ? static_cast<uint64_t>(one) : 0);
}

struct ReadLimit::Buffer {
  explicit Buffer(size_t wanted) : size(wanted) {
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Error("there is no memory to measure the machine's read limit with");
    data = static_cast<std::byte*>(memory);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { munmap(data, size); }

  std::byte* data;
  size_t size;
};

ReadLimit::ReadLimit(uint32_t threads)
    : threads_(std::max(threads, 1U)), slice_(std::max(buffer_bytes() / threads_ / kBlock, size_t{1}) * kBlock) {
  buffer_ = std::make_unique<Buffer>(slice_ * threads_);
  run_together(threads_, [this](uint32_t reader) {
    // The reader's own memory node gets the pages.
    std::memset(buffer_->data + reader * slice_, static_cast<int>(reader + 1), slice_);
  });
}

ReadLimit::~ReadLimit() = default;

double ReadLimit::measure() {
  const SumFunction sum = widest_sum();
  std::vector<std::vector<Pass>> passes(threads_, std::vector<Pass>(kPasses));
  std::barrier round(static_cast<ptrdiff_t>(threads_));
  run_together(threads_, [&](uint32_t reader) {
    for (Pass& pass : passes[reader]) {
      round.arrive_and_wait();
      pass.begin = Clock::now();
      pass.sum = sum(buffer_->data + reader * slice_, slice_);
      pass.end = Clock::now();
    }
  });

  double best = 0;
  for (size_t i = 0; i < kPasses; ++i) {
    Clock::time_point begin = Clock::time_point::max(), end = Clock::time_point::min();
    for (const auto& reader : passes) {
      begin = std::min(begin, reader[i].begin);
      end = std::max(end, reader[i].end);
    }
    best = std::max(best, static_cast<double>(slice_ * threads_) / std::chrono::duration<double>(end - begin).count());
  }
  return best;
}

}  // namespace mkrt::cli
