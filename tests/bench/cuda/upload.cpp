// upload PACKAGE...: how fast weights reach the device, against what pinned memory reaches in the same run, and where
// the time goes.
//
// The library's upload of each package, through the public interface. For each number of loader threads the package is
// read anew, as in a host that starts; the files should be in the page cache (the first, untimed round brings them
// there). The library's rate is that of the upload alone, fixed costs included, as its log tells; "load_seconds" is the
// whole mkrt_executable_create. Beside each rate, where the time goes: parts that add up to the whole upload.
// What limits an upload, each measured alone: the copy engine, with large copies and with pieces; pinned memory, of the
// driver and registered; device memory and other fixed costs. Then, on the first package's files: reading at most 2 GB
// of them into pinned memory, in three ways; the library's own upload of all of them, called directly, cut in other
// ways than it does by itself.
// A package of 2.5 GB and one of 16 GB take about half a minute once they are in the page cache.
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
#include "cuda/upload.hpp"
#include "driver.hpp"

namespace {

using namespace mkrt::bench;
using mkrt::cuda::UploadShape;
using mkrt::cuda::UploadTimes;
using mkrt::test::Driver;

// Of the library's upload with each number of threads: at most so many, and none begins after so many seconds.
constexpr size_t rounds = 3;
constexpr double round_seconds = 1;
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
  double copy_rate(size_t bytes, size_t total) const { return copy_rate(host, bytes, total); }
  double copy_rate(const void* from, size_t bytes, size_t total) const {
    const Clock::time_point begin = Clock::now();
    for (size_t at = 0; at < total; at += bytes) check(driver.copy_to_device(memory, from, bytes, stream_), "copy");
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

// Also two pieces of 8 MB for each of 16 threads.
constexpr size_t large_copy = 256 * megabyte;
double pinned_rate(const Gpu& gpu) { return gpu.copy_rate(large_copy, 8 * large_copy); }

// Huge pages, as the library reads weights into. Where the system has none, ordinary ones.
class HugePages {
 public:
  explicit HugePages(size_t bytes) : room_(bytes + 2 * megabyte) {
    memory_ = mmap(nullptr, room_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::runtime_error("there is no memory");
    const auto address = reinterpret_cast<uintptr_t>(memory_);
    data_ = static_cast<std::byte*>(memory_) + (2 * megabyte - address % (2 * megabyte));
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  ~HugePages() { munmap(memory_, room_); }

  std::byte* data() const { return data_; }

 private:
  size_t room_;
  void* memory_ = nullptr;
  std::byte* data_ = nullptr;
};

// The weight files of a package, as far as `limit` bytes reach.
class Files {
 public:
  Files(const char* package, size_t limit) {
    for (const auto& entry : std::filesystem::directory_iterator(package)) {
      if (entry.path().extension() != ".safetensors" || bytes_ == limit) continue;
      const int descriptor = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (descriptor < 0) throw std::runtime_error(entry.path().string() + " cannot be opened");
      files_.push_back({descriptor, std::min(static_cast<size_t>(entry.file_size()), limit - bytes_), nullptr});
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

template <class Measure>
double best_of(int count, Measure measure) {
  double best = 0;
  for (int i = 0; i < count; ++i) best = std::max(best, measure());
  return best;
}

template <class Call>
double milliseconds(Call&& call) {
  const Clock::time_point begin = Clock::now();
  call();
  return seconds_since(begin) * 1e3;
}

constexpr size_t pinned_sizes[] = {megabyte, 4 * megabyte, 8 * megabyte, 32 * megabyte, 128 * megabyte};

// Pinned memory that the driver allocates.
ordered_json pinned_memory(const Gpu& gpu) {
  ordered_json out = ordered_json::array();
  for (const size_t bytes : pinned_sizes) {
    void* memory = nullptr;
    const double allocate =
        milliseconds([&] { gpu.check(gpu.driver.host_allocate(&memory, bytes, 0), "cuMemHostAlloc"); });
    const double clear = milliseconds([&] { std::memset(memory, 0, bytes); });
    const double rate = gpu.copy_rate(memory, bytes, 1024 * megabyte);
    const double release = milliseconds([&] { gpu.driver.host_release(memory); });
    out.push_back({{"bytes", bytes},
                   {"allocate_ms", allocate},
                   {"clear_ms", clear},
                   {"release_ms", release},
                   {"copy_bytes_per_second", rate}});
    std::fprintf(stderr, "pinned memory, %3zu MB: allocate %.2f ms, clear %.2f ms, release %.2f ms; copies %.1f GB/s\n",
                 bytes / megabyte, allocate, clear, release, rate / 1e9);
  }
  return out;
}

// Huge pages that are registered with it, after they were written to for the first time.
ordered_json registered_memory(const Gpu& gpu) {
  ordered_json out = ordered_json::array();
  for (const size_t bytes : pinned_sizes) {
    std::unique_ptr<HugePages> pages;
    const double map = milliseconds([&] { pages = std::make_unique<HugePages>(bytes); });
    const double touch = milliseconds([&] {
      for (size_t at = 0; at < bytes; at += 4096) pages->data()[at] = std::byte{1};
    });
    const double lock =
        milliseconds([&] { gpu.check(gpu.driver.host_register(pages->data(), bytes, 0), "cuMemHostRegister"); });
    const double rate = gpu.copy_rate(pages->data(), bytes, 1024 * megabyte);
    const double unlock = milliseconds([&] { gpu.driver.host_unregister(pages->data()); });
    const double unmap = milliseconds([&] { pages.reset(); });
    out.push_back({{"bytes", bytes},
                   {"map_ms", map},
                   {"touch_ms", touch},
                   {"register_ms", lock},
                   {"unregister_ms", unlock},
                   {"unmap_ms", unmap},
                   {"copy_bytes_per_second", rate}});
    std::fprintf(stderr,
                 "registered huge pages, %3zu MB: map %.2f ms, touch %.2f ms, register %.2f ms, unregister %.2f ms, "
                 "unmap %.2f ms; copies %.1f GB/s\n",
                 bytes / megabyte, map, touch, lock, unlock, unmap, rate / 1e9);
  }
  return out;
}

// Of the driver, `most` bytes and a quarter again and again.
ordered_json device_memory(const Gpu& gpu, uint64_t most) {
  ordered_json out = ordered_json::array();
  for (uint64_t bytes = most; bytes >= 64 * megabyte; bytes /= 4) {
    uint64_t memory = 0;
    const double allocate = milliseconds([&] { gpu.check(gpu.driver.allocate(&memory, bytes), "cuMemAlloc"); });
    const double release = milliseconds([&] { gpu.driver.release(memory); });
    out.push_back({{"bytes", bytes}, {"allocate_ms", allocate}, {"release_ms", release}});
    std::fprintf(stderr, "device memory, %5zu MB: allocate %.2f ms, release %.2f ms\n",
                 static_cast<size_t>(bytes) / megabyte, allocate, release);
  }
  return out;
}

// What an upload pays for whatever its size, in milliseconds.
ordered_json fixed_costs(const Gpu& gpu, uint64_t weight_bytes) {
  const ordered_json pinned = pinned_memory(gpu);
  const ordered_json registered = registered_memory(gpu);
  std::vector<void*> streams(32);
  const double create = milliseconds([&] {
    for (void*& stream : streams) {
      gpu.check(gpu.driver.stream_create(&stream, mkrt::test::stream_non_blocking), "cuStreamCreate");
    }
  });
  const double destroy = milliseconds([&] {
    for (void* stream : streams) gpu.driver.stream_destroy(stream);
  });
  const double threads = timed(16, [](uint32_t) {}) * 1e3;
  std::fprintf(stderr, "32 streams: create %.2f ms, destroy %.2f ms; 16 threads: %.2f ms\n", create, destroy, threads);
  return {{"pinned_memory", pinned},
          {"registered_memory", registered},
          {"streams_32_create_ms", create},
          {"streams_32_destroy_ms", destroy},
          {"device_memory", device_memory(gpu, weight_bytes)},
          {"threads_16_ms", threads}};
}

ordered_json pieces_of_copies(const Gpu& gpu) {
  ordered_json out = ordered_json::array();
  std::fprintf(stderr, "copies alone, GB/s:");
  for (const size_t bytes : {megabyte / 2, megabyte, 2 * megabyte, 4 * megabyte, 16 * megabyte}) {
    const double rate = best_of(2, [&] { return gpu.copy_rate(bytes, 1024 * megabyte); });
    out.push_back({{"piece_bytes", bytes}, {"bytes_per_second", rate}});
    std::fprintf(stderr, "  %zu KB %.1f", bytes / 1024, rate / 1e9);
  }
  std::fprintf(stderr, "\n");
  return out;
}

ordered_json reading(const Gpu& gpu, Files& files) {
  constexpr size_t piece = 4 * megabyte;
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

// An upload, and where its time went.
struct Upload {
  double rate = NAN;  // bytes a second
  UploadTimes times;
};
// Of the median rate.
Upload median(std::vector<Upload> uploads) {
  std::sort(uploads.begin(), uploads.end(), [](const Upload& a, const Upload& b) { return a.rate < b.rate; });
  return uploads[uploads.size() / 2];
}

// Parts of an upload's time that follow each other, in milliseconds, and what the same time was used for.
ordered_json breakdown(const UploadTimes& times, uint32_t threads, uint64_t bytes, double limit) {
  return {{"to_first_copy_ms", times.first_copy * 1e3},
          {"to_all_staging_ms", (times.all_places - times.first_copy) * 1e3},
          {"to_last_copy_ms", (times.last_copy - times.all_places) * 1e3},
          {"to_end_ms", (times.end - times.last_copy) * 1e3},
          {"device_memory_after_ms", times.allocated * 1e3},
          {"copy_engine_needs_ms", static_cast<double>(bytes) / limit * 1e3},
          {"reading_share_of_threads", times.reading / (times.end * threads)}};
}
void print(const ordered_json& parts) {
  const auto value = [&](const char* name) { return parts[name].get<double>(); };
  std::fprintf(stderr,
               "first copy after %.2f ms, all staging made %.2f ms later, last copy %.2f ms later, end %.2f ms later; "
               "device memory after %.2f ms, engine needs %.2f ms, threads read %.0f %% of the time",
               value("to_first_copy_ms"), value("to_all_staging_ms"), value("to_last_copy_ms"), value("to_end_ms"),
               value("device_memory_after_ms"), value("copy_engine_needs_ms"), value("reading_share_of_threads") * 100);
}

// Takes the upload's time from the library's log.
struct UploadLog {
  double seconds = NAN;
  UploadTimes times;
  static void write(void* user_data, uint32_t, const char* message) {
    static_cast<UploadLog*>(user_data)->read(message);
  }
  void read(const char* message) {
    unsigned long long bytes = 0;
    double milliseconds = 0;
    if (std::sscanf(message, "uploaded %llu bytes of weights in %lf ms", &bytes, &milliseconds) == 2) {
      seconds = milliseconds / 1e3;
    }
    UploadTimes read;
    if (std::sscanf(message,
                    "upload of rank 0: memory allocated after %lf ms, first copy after %lf ms, staging made after %lf "
                    "ms, last copy after %lf ms, all done after %lf ms; threads read for %lf ms",
                    &read.allocated, &read.first_copy, &read.all_places, &read.last_copy, &read.end,
                    &read.reading) != 6) {
      return;
    }
    times = read;
    for (double* time :
         {&times.allocated, &times.first_copy, &times.all_places, &times.last_copy, &times.end, &times.reading}) {
      *time /= 1e3;
    }
  }
};

// One package's uploads through the library.
class Loads {
 public:
  explicit Loads(const char* package) : package_(package), runtime_(desc(&log_)), mesh_(runtime_, cuda()) {}

  struct Times {
    std::vector<double> rates, loads, others, sessions;
    std::vector<Upload> uploads;
  };
  // Loads with so many threads: the rate of the upload, the time of the whole load, of what is not the upload, and of
  // the session that comes after it.
  Times run(uint32_t threads, size_t count) {
    Times times;
    const Clock::time_point begin = Clock::now();
    while (times.rates.size() < count && (times.rates.empty() || seconds_since(begin) < round_seconds)) {
      load(threads, &times);
    }
    return times;
  }
  uint64_t weight_bytes() const { return weight_bytes_; }
  mkrt::DeviceInfo device() const { return mesh_.device_info(); }

 private:
  static mkrt_runtime_desc desc(UploadLog* log) {
    mkrt_runtime_desc desc{};
    desc.log_level = MKRT_LOG_DEBUG;
    desc.user_data = log;
    desc.log = UploadLog::write;
    return desc;
  }
  void load(uint32_t threads, Times* times) {
    const mkrt::Program program(runtime_, package_);
    weight_bytes_ = program.info().weight_bytes;
    log_ = {};
    const Clock::time_point begin = Clock::now();
    const mkrt::Executable executable(program, mesh_, 0, threads);
    const double load_seconds = seconds_since(begin);
    const Clock::time_point loaded = Clock::now();
    const mkrt::Session session(executable);
    times->sessions.push_back(seconds_since(loaded));
    if (std::isnan(log_.seconds) || log_.times.end == 0)
      throw std::runtime_error("the library's log does not tell of the upload");
    times->rates.push_back(static_cast<double>(weight_bytes_) / log_.seconds);
    times->uploads.push_back({times->rates.back(), log_.times});
    times->loads.push_back(load_seconds);
    times->others.push_back(load_seconds - log_.seconds);
  }

  const char* package_;
  UploadLog log_;
  mkrt::Runtime runtime_;
  mkrt::Mesh mesh_;
  uint64_t weight_bytes_ = 0;
};

// `limit`, of pinned copies, may grow: what the engine reaches differs a little from time to time.
ordered_json uploads(const Gpu& gpu, Loads& loads, const char* package, double& limit) {
  loads.run(8, 1);
  std::fprintf(stderr, "the library's upload of %s, %.2f GB:\n", package,
               static_cast<double>(loads.weight_bytes()) / 1e9);
  ordered_json threads = ordered_json::array();
  double best = 0;
  for (const uint32_t count : thread_counts) {
    const Loads::Times times = loads.run(count, rounds);
    limit = std::max(limit, pinned_rate(gpu));
    best = std::max(best, percentile(times.rates, 0.5));
    const ordered_json parts = breakdown(median(times.uploads).times, count, loads.weight_bytes(), limit);
    threads.push_back({{"loader_threads", count},
                       {"bytes_per_second", summary(times.rates)},
                       {"of_the_median", parts},
                       {"load_seconds", summary(times.loads)},
                       {"load_without_upload_seconds", summary(times.others)},
                       {"session_create_seconds", summary(times.sessions)}});
    std::fprintf(stderr, "%2u threads %5.1f GB/s: ", count, percentile(times.rates, 0.5) / 1e9);
    print(parts);
    std::fprintf(stderr, "; image %.1f ms more, a session with its tables %.1f ms\n",
                 percentile(times.others, 0.5) * 1e3, percentile(times.sessions, 0.5) * 1e3);
  }
  for (ordered_json& one : threads) {
    one["share_of_pinned_copy"] = one["bytes_per_second"]["p50"].get<double>() / limit;
  }
  std::fprintf(stderr, "pinned copy %.1f GB/s; best upload %.0f %% of it\n", limit / 1e9, best / limit * 100);
  return {{"package", package},
          {"weight_bytes", loads.weight_bytes()},
          {"threads", threads},
          {"best_share_of_pinned_copy", best / limit}};
}

// The library's upload of a package's files, called directly.
class Shapes {
 public:
  explicit Shapes(const char* package) {
    for (const auto& entry : std::filesystem::directory_iterator(package)) {
      if (entry.path().extension() == ".safetensors") files_.emplace_back(entry.path().string());
    }
    for (const mkrt::base::MappedFile& file : files_) {
      transfers_.push_back({bytes_, file.bytes(), &file});
      bytes_ += (file.bytes().size() + 255) / 256 * 256;
    }
    const std::shared_ptr<const mkrt::cuda::Driver> driver = mkrt::cuda::open_driver();
    mkrt::cuda::DeviceNumber device = 0;
    driver->check(driver->device_get(&device, 0), "get the device");
    const auto context = std::make_shared<mkrt::cuda::DeviceContext>(driver, device);
    heap_ = std::make_shared<mkrt::cuda::DeviceHeap>(context, 0, mkrt::cuda::DeviceAllocator{});
  }

  uint64_t bytes() const { return bytes_; }
  Upload measure(uint32_t threads, const UploadShape& shape) const {
    const mkrt::cuda::ContextScope scope(*heap_->context());
    std::vector<Upload> uploads;
    for (int round = 0; round < 5; ++round) {
      const mkrt::cuda::Uploaded uploaded = mkrt::cuda::upload(heap_, bytes_, transfers_, threads, shape);
      uploads.push_back({static_cast<double>(bytes_) / uploaded.times.end, uploaded.times});
    }
    return median(uploads);
  }

 private:
  std::vector<mkrt::base::MappedFile> files_;
  std::vector<mkrt::cuda::Transfer> transfers_;
  uint64_t bytes_ = 0;
  std::shared_ptr<mkrt::cuda::DeviceHeap> heap_;
};

// What the library does first; then smaller and larger slices, blocks, and numbers of places.
ordered_json shapes(const char* package, double limit) {
  constexpr size_t kilobyte = 1024;
  const UploadShape variants[] = {
      {},
      {8 * megabyte, 256 * kilobyte, 4},
      {8 * megabyte, 1024 * kilobyte, 4},
      {8 * megabyte, 512 * kilobyte, 3},
      {8 * megabyte, 512 * kilobyte, 6},
      {8 * megabyte, 1024 * kilobyte, 6},
      {4 * megabyte, 512 * kilobyte, 8},
      {4 * megabyte, 256 * kilobyte, 6},
      {16 * megabyte, 512 * kilobyte, 2},
      {16 * megabyte, 512 * kilobyte, 3},
      {16 * megabyte, 1024 * kilobyte, 4},
  };
  const Shapes files(package);
  ordered_json out = ordered_json::array();
  for (const UploadShape& shape : variants) {
    for (const uint32_t threads : {12u, 16u}) {
      const Upload upload = files.measure(threads, shape);
      const ordered_json parts = breakdown(upload.times, threads, files.bytes(), limit);
      out.push_back({{"block_bytes", shape.block_bytes},
                     {"slice_bytes", shape.slice_bytes},
                     {"place_count", shape.place_count},
                     {"threads", threads},
                     {"bytes_per_second", upload.rate},
                     {"share_of_pinned_copy", upload.rate / limit},
                     {"of_the_median", parts}});
      std::fprintf(stderr, "%zu places of %2zu MB, slices of %4zu KB, %2u threads: %.1f GB/s, %.1f %%; ",
                   shape.place_count, shape.block_bytes / megabyte, shape.slice_bytes / kilobyte, threads,
                   upload.rate / 1e9, upload.rate / limit * 100);
      print(parts);
      std::fprintf(stderr, "\n");
    }
  }
  return out;
}

ordered_json measure(const std::vector<const char*>& packages) {
  const Gpu gpu(large_copy, large_copy);
  pinned_rate(gpu);
  double limit = pinned_rate(gpu);
  std::fprintf(stderr, "pinned copy: %.1f GB/s\n", limit / 1e9);
  ordered_json results = ordered_json::array();
  ordered_json device;
  uint64_t weight_bytes = 0;
  for (const char* package : packages) {
    Loads loads(package);
    results.push_back(uploads(gpu, loads, package, limit));
    device = describe(loads.device());
    weight_bytes = std::max(weight_bytes, loads.weight_bytes());
  }
  const ordered_json fixed = fixed_costs(gpu, weight_bytes);
  const ordered_json copies = pieces_of_copies(gpu);
  Files files(packages.front(), 2048 * megabyte);
  const ordered_json reads = reading(gpu, files);
  const ordered_json variants = shapes(packages.front(), limit);
  return {{"benchmark", "upload"},
          {"device", device},
          {"host_threads", std::thread::hardware_concurrency()},
          {"pinned_copy_bytes_per_second", limit},
          {"target_share", 0.85},
          {"packages", results},
          {"fixed_costs", fixed},
          {"copies_alone", copies},
          {"reading_alone", reads},
          {"shapes", variants}};
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: upload PACKAGE...\n");
    return 2;
  }
  const std::vector<const char*> packages(arguments + 1, arguments + argument_count);
  return report("upload", [&] { return measure(packages); });
}
