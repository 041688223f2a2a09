// upload PACKAGE: how fast weights reach the device, against what pinned memory reaches in the same run, and where the
// time goes.
//
// What limits an upload, each measured alone: the copy engine, with large copies and with pieces; reading the weight
// files into pinned memory, in three ways; the driver's fixed costs; the same loop as the library's, with its memory
// and streams made before the clock starts and pieces of several sizes. Then the library's upload through the public
// interface. For each number of loader threads the package is read anew, as in a host that starts; the files should be
// in the page cache (the first, untimed round brings them there). The library's rate is that of the upload alone, fixed
// costs included, as its log tells; "load_seconds" is the whole mkrt_executable_create.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "bench.hpp"
#include "driver.hpp"

namespace {

using namespace mkrt::bench;
using mkrt::test::Driver;

constexpr int rounds = 3;
constexpr size_t megabyte = size_t{1} << 20;
constexpr uint32_t thread_counts[] = {1, 2, 4, 8, 12, 16};

// Memory, pinned and on the device, in the device's primary context.
class Gpu {
 public:
  explicit Gpu(size_t pinned_bytes, size_t device_bytes) {
    check(driver.device_get(&device_, 0), "cuDeviceGet");
    check(driver.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
    enter();
    check(driver.stream_create(&stream_, mkrt::test::stream_non_blocking), "cuStreamCreate");
    void* pinned = nullptr;
    check(driver.host_allocate(&pinned, pinned_bytes, 0), "cuMemHostAlloc");
    host = static_cast<std::byte*>(pinned);
    std::memset(host, 1, pinned_bytes);
    check(driver.allocate(&memory, device_bytes), "cuMemAlloc");
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    driver.release(memory);
    driver.host_release(host);
    driver.stream_destroy(stream_);
    driver.context_set_current(nullptr);
    driver.primary_release(device_);
  }
  // Makes the context current on the calling thread.
  void enter() const { check(driver.context_set_current(context_), "cuCtxSetCurrent"); }
  void check(int result, const char* what) const { driver.check(result, what); }

  // Bytes a second of copies of `bytes` each, one after the other: the copy engine's limit.
  double copy_rate(size_t bytes, size_t total) const {
    const Clock::time_point begin = Clock::now();
    for (size_t at = 0; at < total; at += bytes) check(driver.copy_to_device(memory, host, bytes, stream_), "copy");
    check(driver.stream_synchronize(stream_), "cuStreamSynchronize");
    return static_cast<double>(total) / seconds_since(begin);
  }

  Driver driver;
  std::byte* host = nullptr;
  uint64_t memory = 0;

 private:
  int device_ = 0;
  void* context_ = nullptr;
  void* stream_ = nullptr;
};

constexpr size_t large_copy = 256 * megabyte;
double pinned_rate(const Gpu& gpu) { return gpu.copy_rate(large_copy, 8 * large_copy); }

// The weight files of a package.
class Files {
 public:
  explicit Files(const char* package) {
    for (const auto& entry : std::filesystem::directory_iterator(package)) {
      if (entry.path().extension() != ".safetensors") continue;
      const int descriptor = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (descriptor < 0) throw std::runtime_error(entry.path().string() + " cannot be opened");
      files_.push_back({descriptor, static_cast<size_t>(entry.file_size()), nullptr});
      bytes_ += files_.back().bytes;
    }
    if (files_.empty()) throw std::runtime_error("the package has no weight files");
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() {
    unmap();
    for (const File& file : files_) close(file.descriptor);
  }

  size_t bytes() const { return bytes_; }
  void map(bool populated) {
    for (File& file : files_) {
      const int flags = MAP_SHARED | (populated ? MAP_POPULATE : 0);
      void* memory = mmap(nullptr, file.bytes, PROT_READ, flags, file.descriptor, 0);
      if (memory == MAP_FAILED) throw std::runtime_error("a weight file cannot be mapped");
      file.mapped = static_cast<const std::byte*>(memory);
    }
  }
  void unmap() {
    for (File& file : files_) {
      if (file.mapped != nullptr) munmap(const_cast<std::byte*>(file.mapped), file.bytes);
      file.mapped = nullptr;
    }
  }

  struct Piece {
    int descriptor;
    const std::byte* mapped;  // nullptr: read it from the descriptor
    size_t offset, bytes;
  };
  std::vector<Piece> pieces(size_t piece_bytes) const {
    std::vector<Piece> pieces;
    for (const File& file : files_) {
      for (size_t at = 0; at < file.bytes; at += piece_bytes) {
        pieces.push_back({file.descriptor, file.mapped, at, std::min(piece_bytes, file.bytes - at)});
      }
    }
    return pieces;
  }

 private:
  struct File {
    int descriptor;
    size_t bytes;
    const std::byte* mapped;
  };
  std::vector<File> files_;
  size_t bytes_ = 0;
};

void bring(const Files::Piece& piece, std::byte* to) {
  if (piece.mapped != nullptr) {
    std::memcpy(to, piece.mapped + piece.offset, piece.bytes);
    return;
  }
  for (size_t done = 0; done < piece.bytes;) {
    const ssize_t count =
        pread(piece.descriptor, to + done, piece.bytes - done, static_cast<off_t>(piece.offset + done));
    if (count <= 0) throw std::runtime_error("a weight file cannot be read into pinned memory");
    done += static_cast<size_t>(count);
  }
}

// Seconds that `work(thread)` takes on so many threads, their start and end included.
template <class Work>
double timed(uint32_t threads, Work work) {
  std::atomic<bool> failed{false};
  const auto guarded = [&](uint32_t thread) {
    try {
      work(thread);
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "upload: %s\n", failure.what());
      failed = true;
    }
  };
  const Clock::time_point begin = Clock::now();
  {
    std::vector<std::jthread> others;
    for (uint32_t thread = 1; thread < threads; ++thread) others.emplace_back(guarded, thread);
    guarded(0);
  }
  const double seconds = seconds_since(begin);
  if (failed) throw std::runtime_error("a thread failed");
  return seconds;
}

// Reading alone: every thread reads pieces into its part of pinned memory, as the library does without the copies.
double read_rate(const Gpu& gpu, const Files& files, uint32_t threads, size_t piece_bytes) {
  const std::vector<Files::Piece> pieces = files.pieces(piece_bytes);
  std::atomic<size_t> next{0};
  const double seconds = timed(threads, [&](uint32_t thread) {
    size_t turn = 0;
    for (size_t at; (at = next++) < pieces.size(); turn ^= 1) {
      bring(pieces[at], gpu.host + (2 * thread + turn) * piece_bytes);
    }
  });
  return static_cast<double>(files.bytes()) / seconds;
}

// Reading and copying, with two pieces and two streams a thread that were made before.
double pipeline_rate(const Gpu& gpu, const Files& files, uint32_t threads, size_t piece_bytes) {
  const std::vector<Files::Piece> pieces = files.pieces(piece_bytes);
  std::vector<void*> streams(2 * threads);
  for (void*& stream : streams) {
    gpu.check(gpu.driver.stream_create(&stream, mkrt::test::stream_non_blocking), "cuStreamCreate");
  }
  std::atomic<size_t> next{0};
  const double seconds = timed(threads, [&](uint32_t thread) {
    gpu.enter();
    size_t turn = 0;
    for (size_t at; (at = next++) < pieces.size(); turn ^= 1) {
      std::byte* place = gpu.host + (2 * thread + turn) * piece_bytes;
      void* stream = streams[2 * thread + turn];
      gpu.check(gpu.driver.stream_synchronize(stream), "cuStreamSynchronize");
      bring(pieces[at], place);
      const uint64_t to = gpu.memory + at * piece_bytes % large_copy;
      gpu.check(gpu.driver.copy_to_device(to, place, pieces[at].bytes, stream), "cuMemcpyHtoDAsync");
    }
    for (size_t i = 0; i < 2; ++i) {
      gpu.check(gpu.driver.stream_synchronize(streams[2 * thread + i]), "cuStreamSynchronize");
    }
  });
  for (void* stream : streams) gpu.driver.stream_destroy(stream);
  return static_cast<double>(files.bytes()) / seconds;
}

template <class Measure>
double best_of(int count, Measure measure) {
  double best = 0;
  for (int i = 0; i < count; ++i) best = std::max(best, measure());
  return best;
}

// What an upload pays for whatever its size, in milliseconds.
ordered_json fixed_costs(const Gpu& gpu, uint64_t weight_bytes) {
  const auto milliseconds = [](auto&& call) {
    const Clock::time_point begin = Clock::now();
    call();
    return seconds_since(begin) * 1e3;
  };
  ordered_json pinned = ordered_json::array();
  for (const size_t bytes : {megabyte, 4 * megabyte, 8 * megabyte, 16 * megabyte, 32 * megabyte, 128 * megabyte}) {
    void* memory = nullptr;
    const double allocate =
        milliseconds([&] { gpu.check(gpu.driver.host_allocate(&memory, bytes, 0), "cuMemHostAlloc"); });
    const double clear = milliseconds([&] { std::memset(memory, 0, bytes); });
    const double release = milliseconds([&] { gpu.driver.host_release(memory); });
    pinned.push_back({{"bytes", bytes}, {"allocate_ms", allocate}, {"clear_ms", clear}, {"release_ms", release}});
    std::fprintf(stderr, "pinned memory, %3zu MB: allocate %.2f ms, clear %.2f ms, release %.2f ms\n", bytes / megabyte,
                 allocate, clear, release);
  }
  std::vector<void*> streams(32);
  const double create = milliseconds([&] {
    for (void*& stream : streams) {
      gpu.check(gpu.driver.stream_create(&stream, mkrt::test::stream_non_blocking), "cuStreamCreate");
    }
  });
  const double destroy = milliseconds([&] {
    for (void* stream : streams) gpu.driver.stream_destroy(stream);
  });
  uint64_t memory = 0;
  const double allocate = milliseconds([&] { gpu.check(gpu.driver.allocate(&memory, weight_bytes), "cuMemAlloc"); });
  const double release = milliseconds([&] { gpu.driver.release(memory); });
  const double threads = timed(16, [](uint32_t) {}) * 1e3;
  std::fprintf(stderr,
               "32 streams: create %.2f ms, destroy %.2f ms; device memory: allocate %.2f ms, release %.2f ms; "
               "16 threads: %.2f ms\n",
               create, destroy, allocate, release, threads);
  return {{"pinned_memory", pinned},
          {"streams_32_create_ms", create},
          {"streams_32_destroy_ms", destroy},
          {"device_memory_allocate_ms", allocate},
          {"device_memory_release_ms", release},
          {"threads_16_ms", threads}};
}

ordered_json pieces_of_copies(const Gpu& gpu) {
  ordered_json out = ordered_json::array();
  std::fprintf(stderr, "copies alone, GB/s:");
  for (const size_t bytes : {megabyte / 4, megabyte / 2, megabyte, 4 * megabyte, 16 * megabyte}) {
    const double rate = best_of(2, [&] { return gpu.copy_rate(bytes, 1024 * megabyte); });
    out.push_back({{"piece_bytes", bytes}, {"bytes_per_second", rate}});
    std::fprintf(stderr, "  %zu KB %.1f", bytes / 1024, rate / 1e9);
  }
  std::fprintf(stderr, "\n");
  return out;
}

ordered_json reading(const Gpu& gpu, Files& files) {
  constexpr size_t piece = megabyte / 2;
  ordered_json out = ordered_json::array();
  std::fprintf(stderr, "reading alone, GB/s:  threads      read  new mapping  mapped before\n");
  files.map(true);
  std::vector<double> mapped;
  for (const uint32_t threads : thread_counts) {
    mapped.push_back(best_of(2, [&] { return read_rate(gpu, files, threads, piece); }));
  }
  files.unmap();
  for (size_t i = 0; i < mapped.size(); ++i) {
    const uint32_t threads = thread_counts[i];
    const double read = best_of(2, [&] { return read_rate(gpu, files, threads, piece); });
    const double fresh = best_of(2, [&] {
      files.map(false);
      const double rate = read_rate(gpu, files, threads, piece);
      files.unmap();
      return rate;
    });
    out.push_back({{"threads", threads},
                   {"read_bytes_per_second", read},
                   {"new_mapping_bytes_per_second", fresh},
                   {"mapped_before_bytes_per_second", mapped[i]}});
    std::fprintf(stderr, "%29u  %8.1f  %11.1f  %13.1f\n", threads, read / 1e9, fresh / 1e9, mapped[i] / 1e9);
  }
  return out;
}

ordered_json pipelines(const Gpu& gpu, const Files& files) {
  ordered_json out = ordered_json::array();
  std::fprintf(stderr, "reading and copying, nothing allocated, GB/s:\n");
  for (const uint32_t threads : {4u, 8u, 12u, 16u}) {
    std::fprintf(stderr, "%29u", threads);
    for (const size_t bytes : {megabyte / 4, megabyte / 2, megabyte, 2 * megabyte, 4 * megabyte}) {
      const double rate = best_of(3, [&] { return pipeline_rate(gpu, files, threads, bytes); });
      out.push_back({{"threads", threads}, {"piece_bytes", bytes}, {"bytes_per_second", rate}});
      std::fprintf(stderr, "  %zu KB %.1f", bytes / 1024, rate / 1e9);
    }
    std::fprintf(stderr, "\n");
  }
  return out;
}

// Takes the upload's time from the library's log.
struct UploadLog {
  double seconds = NAN;
  static void write(void* user_data, uint32_t, const char* message) {
    unsigned long long bytes = 0;
    double milliseconds = 0;
    if (std::sscanf(message, "uploaded %llu bytes of weights in %lf ms", &bytes, &milliseconds) != 2) return;
    static_cast<UploadLog*>(user_data)->seconds = milliseconds / 1e3;
  }
};

ordered_json measure(const char* package) {
  UploadLog log;
  mkrt_runtime_desc desc{};
  desc.log_level = MKRT_LOG_INFO;
  desc.user_data = &log;
  desc.log = UploadLog::write;
  const mkrt::Runtime runtime(desc);
  const mkrt::Mesh mesh(runtime, cuda());
  Files files(package);
  const Gpu gpu(large_copy, large_copy + 4 * megabyte);
  pinned_rate(gpu);
  double limit = pinned_rate(gpu);
  std::fprintf(stderr, "pinned copy: %.1f GB/s\n", limit / 1e9);

  ordered_json threads = ordered_json::array();
  uint64_t weight_bytes = 0;
  double best = 0;
  // One round: the time of the upload and of the whole load, and what comes after it.
  const auto load = [&](uint32_t count, double* out_load, double* out_session) {
    const mkrt::Program program(runtime, package);
    weight_bytes = program.info().weight_bytes;
    log.seconds = NAN;
    const Clock::time_point begin = Clock::now();
    const mkrt::Executable executable(program, mesh, 0, count);
    *out_load = seconds_since(begin);
    const Clock::time_point loaded = Clock::now();
    const mkrt::Session session(executable);
    *out_session = seconds_since(loaded);
    if (std::isnan(log.seconds)) throw std::runtime_error("the library's log does not tell of the upload");
    return log.seconds;
  };
  double load_seconds = 0, session_seconds = 0;
  load(8, &load_seconds, &session_seconds);
  std::fprintf(stderr, "the library's upload:\n");
  for (const uint32_t count : thread_counts) {
    std::vector<double> rates, loads, others, sessions;
    for (int round = 0; round < rounds; ++round) {
      const double seconds = load(count, &load_seconds, &session_seconds);
      rates.push_back(static_cast<double>(weight_bytes) / seconds);
      loads.push_back(load_seconds);
      others.push_back(load_seconds - seconds);
      sessions.push_back(session_seconds);
    }
    limit = std::max(limit, pinned_rate(gpu));
    best = std::max(best, percentile(rates, 0.5));
    threads.push_back({{"loader_threads", count},
                       {"bytes_per_second", summary(rates)},
                       {"load_seconds", summary(loads)},
                       {"load_without_upload_seconds", summary(others)},
                       {"session_create_seconds", summary(sessions)}});
    std::fprintf(stderr,
                 "%29u  %8.1f GB/s; image and device memory take %.1f ms more, a session with its tables %.1f ms\n",
                 count, percentile(rates, 0.5) / 1e9, percentile(others, 0.5) * 1e3, percentile(sessions, 0.5) * 1e3);
  }
  const ordered_json fixed = fixed_costs(gpu, weight_bytes);
  const ordered_json copies = pieces_of_copies(gpu);
  const ordered_json reads = reading(gpu, files);
  const ordered_json pipeline = pipelines(gpu, files);
  for (ordered_json& one : threads) {
    one["share_of_pinned_copy"] = one["bytes_per_second"]["p50"].get<double>() / limit;
  }
  std::fprintf(stderr, "pinned copy %.1f GB/s; best upload %.0f %% of it\n", limit / 1e9, best / limit * 100);
  return {{"benchmark", "upload"},
          {"device", describe(mesh.device_info())},
          {"host_threads", std::thread::hardware_concurrency()},
          {"package", package},
          {"weight_bytes", weight_bytes},
          {"pinned_copy_bytes_per_second", limit},
          {"threads", threads},
          {"best_share_of_pinned_copy", best / limit},
          {"target_share", 0.85},
          {"fixed_costs", fixed},
          {"copies_alone", copies},
          {"reading_alone", reads},
          {"reading_and_copying", pipeline}};
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: upload PACKAGE\n");
    return 2;
  }
  return report("upload", [&] { return measure(arguments[1]); });
}
