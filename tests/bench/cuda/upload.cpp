// upload PACKAGE: how fast weights reach the device, against what pinned memory reaches in the same run.
//
// For each number of loader threads the package is read anew, so that its pages are mapped as in a host that starts;
// the files themselves should be in the page cache (the first, untimed round brings them there). The rate is that of
// the upload alone, as the library logs it; "load_seconds" is the whole mkrt_executable_create.
#include <memory>

#include "bench.hpp"
#include "driver.hpp"

namespace {

using namespace mkrt::bench;
using mkrt::test::Driver;

constexpr int rounds = 3;

// Bytes a second from one pinned buffer to the device: the copy engine's limit.
class PinnedCopy {
 public:
  explicit PinnedCopy(const Driver& driver) : driver_(driver) {
    driver_.check(driver_.device_get(&device_, 0), "cuDeviceGet");
    void* context = nullptr;
    driver_.check(driver_.primary_retain(&context, device_), "cuDevicePrimaryCtxRetain");
    driver_.check(driver_.context_set_current(context), "cuCtxSetCurrent");
    driver_.check(driver_.stream_create(&stream_, mkrt::test::stream_non_blocking), "cuStreamCreate");
    driver_.check(driver_.host_allocate(&host_, bytes, 0), "cuMemHostAlloc");
    driver_.check(driver_.allocate(&memory_, bytes), "cuMemAlloc");
  }
  PinnedCopy(const PinnedCopy&) = delete;
  PinnedCopy& operator=(const PinnedCopy&) = delete;
  ~PinnedCopy() {
    driver_.release(memory_);
    driver_.host_release(host_);
    driver_.stream_destroy(stream_);
    driver_.context_set_current(nullptr);
    driver_.primary_release(device_);
  }
  double rate() {
    constexpr int copies = 8;
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < copies; ++i) driver_.check(driver_.copy_to_device(memory_, host_, bytes, stream_), "copy");
    driver_.check(driver_.stream_synchronize(stream_), "cuStreamSynchronize");
    return copies * double{bytes} / seconds_since(begin);
  }

 private:
  static constexpr size_t bytes = size_t{256} << 20;
  const Driver& driver_;
  int device_ = 0;
  void* stream_ = nullptr;
  void* host_ = nullptr;
  uint64_t memory_ = 0;
};

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
  const Driver driver;
  PinnedCopy pinned(driver);
  pinned.rate();
  double limit = pinned.rate();
  ordered_json threads = ordered_json::array();
  uint64_t weight_bytes = 0;
  double best = 0;
  for (uint32_t count : {0u, 1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 12u, 16u}) {
    const bool warm_up = count == 0;
    std::vector<double> rates, load_seconds;
    for (int round = 0; round < (warm_up ? 1 : rounds); ++round) {
      const mkrt::Program program(runtime, package);
      weight_bytes = program.info().weight_bytes;
      log.seconds = NAN;
      const Clock::time_point begin = Clock::now();
      const mkrt::Executable executable(program, mesh, 0, warm_up ? 8 : count);
      load_seconds.push_back(seconds_since(begin));
      if (std::isnan(log.seconds)) throw std::runtime_error("the library's log does not tell of the upload");
      rates.push_back(static_cast<double>(weight_bytes) / log.seconds);
    }
    if (warm_up) continue;
    limit = std::max(limit, pinned.rate());
    best = std::max(best, percentile(rates, 0.5));
    threads.push_back(
        {{"loader_threads", count}, {"bytes_per_second", summary(rates)}, {"load_seconds", summary(load_seconds)}});
    std::fprintf(stderr, "%2u loader threads: %.1f GB/s, the whole load takes %.3f s\n", count,
                 percentile(rates, 0.5) / 1e9, percentile(load_seconds, 0.5));
  }
  for (ordered_json& one : threads) {
    one["share_of_pinned_copy"] = one["bytes_per_second"]["p50"].get<double>() / limit;
  }
  std::fprintf(stderr, "pinned copy %.1f GB/s; best upload %.0f %% of it\n", limit / 1e9, best / limit * 100);
  return {{"benchmark", "upload"},
          {"device", describe(mesh.device_info())},
          {"package", package},
          {"weight_bytes", weight_bytes},
          {"pinned_copy_bytes_per_second", limit},
          {"threads", threads},
          {"best_share_of_pinned_copy", best / limit},
          {"target_share", 0.85}};
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: upload PACKAGE\n");
    return 2;
  }
  return report("upload", [&] { return measure(arguments[1]); });
}
