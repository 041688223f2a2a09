// mkrt_bench_host_linear: how fast host ranks stream packed weights, against a plain read loop.
//
// Prints GB/s (10^9 bytes of weights a second) of mkrt.llm's `linear` for several K, batch sizes and thread counts, and
// what the same threads reach by only reading the same buffer. Trials of all cases alternate, so that a disturbance of
// the machine hits each; the figures are medians.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "host/llm/llm.hpp"
#include "mkrt_isa/llm.hpp"

namespace {

namespace op = mkrt::isa::llm::linear;

constexpr uint32_t tile_rows = 32;
constexpr uint32_t largest_batch = 16;

struct Aligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
};
using Buffer = std::unique_ptr<std::byte[], Aligned>;
Buffer make_buffer(size_t bytes) {
  return Buffer(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(64))));
}

// The read loop: as wide as the processor allows, four sums so that no addition waits for another.
using Wide = uint64_t __attribute__((vector_size(64)));
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
uint64_t
read_all(const std::byte* data, size_t bytes) {
  const Wide* wide = reinterpret_cast<const Wide*>(data);
  Wide sums[4] = {};
  for (size_t i = 0; i + 4 <= bytes / sizeof(Wide); i += 4) {
    for (size_t j = 0; j < 4; ++j) sums[j] += wide[i + j];
  }
  const Wide sum = sums[0] + sums[1] + sums[2] + sums[3];
  uint64_t total = 0;
  for (size_t i = 0; i < 8; ++i) total += sum[i];
  return total;
}

// Seconds of processor time of the calling thread.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Seconds {
  double wall;       // that `work(thread)` takes on all threads together, their start and end left out
  double processor;  // of the thread that worked longest: what it would have been on a machine of our own
};

Seconds timed(uint32_t threads, const std::function<void(uint32_t)>& work) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point start;
  Clock::time_point end;
  std::vector<double> processor(threads);
  std::barrier begin(threads, [&]() noexcept { start = Clock::now(); });
  std::barrier finish(threads, [&]() noexcept { end = Clock::now(); });
  std::vector<std::thread> workers;
  for (uint32_t t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      begin.arrive_and_wait();
      const double before = processor_seconds();
      work(t);
      processor[t] = processor_seconds() - before;
      finish.arrive_and_wait();
    });
  }
  for (std::thread& worker : workers) worker.join();
  return {std::chrono::duration<double>(end - start).count(), *std::max_element(processor.begin(), processor.end())};
}

// A linear record over the whole buffer.
class Linear {
 public:
  Linear(const mkrt_host_isa& isa, const std::byte* weights, size_t bytes, uint32_t columns, uint32_t batch)
      : isa_(isa), batch_(batch), x_(size_t{columns} * batch), norm_(columns) {
    const size_t tile_bytes = size_t{tile_rows} * columns * 2;
    tiles_ = static_cast<uint32_t>(bytes / tile_bytes);
    const size_t rows = size_t{tiles_} * tile_rows;
    out_.resize(rows * batch);
    std::mt19937 random(columns + batch);
    std::normal_distribution<float> normal;
    for (float& v : x_) v = normal(random);
    for (float& v : norm_) v = normal(random);
    record_.opcode = mkrt::isa::llm::opcode_linear;
    record_.tile_count = tiles_;
    for (uint32_t& d : record_.grid) d = 1;
    record_.grid[0] = tiles_;
    record_.parameter[op::columns] = columns;
    record_.parameter[op::batch] = batch;
    record_.parameter[op::tile_rows] = tile_rows;
    record_.parameter[op::epsilon] = std::bit_cast<uint32_t>(1e-5f);
    set(op::x, x_.data(), columns * sizeof(float), 0, columns * sizeof(float));
    set(op::norm, norm_.data(), columns * sizeof(float), 0, 0);
    set(op::weight, weights, tile_bytes, tile_bytes, 0);
    set(op::out, out_.data(), tile_rows * sizeof(float), tile_rows * sizeof(float), rows * sizeof(float));
  }

  size_t bytes() const { return tiles_ * record_.operand[op::weight].size; }

  void run(uint32_t thread, uint32_t threads, uint64_t serial, void* scratch) const {
    const int64_t no_delta = 0;
    mkrt_host_tile tile{};
    tile.record = &record_;
    tile.rank_count = 1;
    tile.rank_delta = &no_delta;
    tile.scratch = scratch;
    tile.scratch_size = isa_.scratch_size;
    tile.execute_serial = serial;
    for (uint32_t i = thread; i < tiles_; i += threads) {
      tile.index[0] = i;
      isa_.instructions[record_.opcode](&tile);
    }
  }

 private:
  void set(uint32_t number, const void* data, uint64_t size, uint64_t stride, uint64_t row_stride) {
    mkrt_operand& operand = record_.operand[number];
    operand.address = reinterpret_cast<uintptr_t>(data);
    operand.stride[0] = stride;
    operand.size = size;
    operand.limit = size + stride * (tiles_ - 1);
    operand.row_stride = row_stride;
    operand.rows = row_stride == 0 ? 1 : batch_;
    operand.rank = {MKRT_RANK_SELF, 0xff, 0};
  }

  const mkrt_host_isa& isa_;
  uint32_t batch_;
  uint32_t tiles_ = 0;
  std::vector<float> x_;
  std::vector<float> norm_;
  std::vector<float> out_;
  mkrt_record record_{};
};

struct Case {
  std::string name;
  uint32_t threads;
  size_t bytes;
  std::function<void(uint32_t)> work;
  std::vector<double> rates;  // GB/s

  double median() const {
    std::vector<double> sorted = rates;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

const mkrt_host_isa* find_target(const std::string& name) {
  for (const mkrt::host::VectorTarget& target : mkrt::host::vector_targets()) {
    if (name.empty() || name == target.name) return &target.isa;
  }
  return nullptr;
}

}  // namespace

int main(int argument_count, char** arguments) {
  size_t megabytes = 256;
  uint32_t repeats = 15;
  std::vector<uint32_t> thread_counts{1, 2};
  std::string target;
  bool use_processor_time = false;
  CLI::App app("Streams packed weights through mkrt.llm's linear instruction, and reads them only, in GB/s.");
  app.add_option("--megabytes", megabytes, "Size of the weights in MiB; far beyond the caches")
      ->check(CLI::Range(1, 65536));
  app.add_option("--repeats", repeats, "Trials of each case")->check(CLI::Range(1, 1000));
  app.add_option("--threads", thread_counts, "Thread counts")->check(CLI::Range(1, 1024));
  app.add_option("--target", target, "Vector target, such as AVX2; the best one where left out");
  app.add_flag("--processor-time", use_processor_time, "Count processor time instead of wall time: for a busy machine");
  CLI11_PARSE(app, argument_count, arguments);
  const mkrt_host_isa* isa = find_target(target);
  if (isa == nullptr) {
    std::fprintf(stderr, "This processor has no vector target %s.\n", target.c_str());
    return 1;
  }

  const size_t bytes = megabytes << 20;
  const Buffer weights = make_buffer(bytes);
  std::mt19937_64 random(1);
  for (size_t i = 0; i < bytes; i += 8) {
    // Any bf16 with a small exponent: the upper bits of each are cleared so that sums stay finite.
    const uint64_t value = random() & 0xbfffbfffbfffbfffu;
    std::memcpy(&weights[i], &value, 8);
  }
  const uint32_t most_threads = *std::max_element(thread_counts.begin(), thread_counts.end());
  std::vector<Buffer> scratch;
  for (uint32_t t = 0; t < most_threads; ++t) scratch.push_back(make_buffer(isa->scratch_size));

  std::vector<std::unique_ptr<Linear>> linears;
  std::vector<Case> cases;
  std::vector<uint64_t> sums(most_threads);
  uint64_t serial = 0;
  for (uint32_t threads : thread_counts) {
    const size_t share = bytes / threads / 256 * 256;
    cases.push_back({"read",
                     threads,
                     share * threads,
                     [&, share](uint32_t t) { sums[t] += read_all(&weights[t * share], share); },
                     {}});
    for (uint32_t columns : {2048u, 8192u}) {
      for (uint32_t batch : {1u, 4u, largest_batch}) {
        linears.push_back(std::make_unique<Linear>(*isa, weights.get(), bytes, columns, batch));
        const Linear* linear = linears.back().get();
        cases.push_back({"K " + std::to_string(columns) + " batch " + std::to_string(batch),
                         threads,
                         linear->bytes(),
                         [&, linear, threads](uint32_t t) { linear->run(t, threads, serial, scratch[t].get()); },
                         {}});
      }
    }
  }

  for (uint32_t i = 0; i <= repeats; ++i) {
    for (Case& c : cases) {
      ++serial;
      const Seconds seconds = timed(c.threads, c.work);
      // The first round only touches pages.
      const double counted = use_processor_time ? seconds.processor : seconds.wall;
      if (i > 0) c.rates.push_back(static_cast<double>(c.bytes) / counted * 1e-9);
    }
  }

  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  std::printf("target %s, %zu MiB of weights, medians of %u (checksum %016llx)\n",
              target.empty() ? mkrt::host::vector_target() : target.c_str(), megabytes, repeats,
              static_cast<unsigned long long>(total));
  double read_rate = 0;
  for (const Case& c : cases) {
    if (c.name == "read") read_rate = c.median();
    std::printf("%2u threads  %-16s %7.2f GB/s  %3.0f %% of reading\n", c.threads, c.name.c_str(), c.median(),
                100 * c.median() / read_rate);
  }
  return 0;
}
