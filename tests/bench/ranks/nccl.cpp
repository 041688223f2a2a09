// All-reduces by NCCL, where the machine has it: one process, a thread and a communicator a device, calls captured in
// CUDA graphs so that launches do not count.
#include <barrier>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "driver.hpp"
#include "ranks.hpp"

namespace mkrt::bench {
namespace {

using mkrt::test::Driver;

// NCCL as its header declares it, of which these parts have not changed since version 2.
struct Nccl {
  int (*version)(int*) = nullptr;
  int (*init_all)(void** out_communicators, int count, const int* devices) = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int dtype, int operation, void* communicator,
                    void* stream) = nullptr;
  int (*destroy)(void* communicator) = nullptr;
  const char* (*error_text)(int result) = nullptr;

  // Null where the machine has none; then `why` says so.
  static std::unique_ptr<Nccl> open(std::string& why) {
    // Sums inside the switch are another machine's business: this measures what GPUs do among themselves.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why = dlerror();
      return nullptr;
    }
    auto nccl = std::make_unique<Nccl>();
    const auto find = [&](auto& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      if (function == nullptr) throw std::runtime_error(std::string("NCCL has no ") + symbol);
    };
    find(nccl->version, "ncclGetVersion");
    find(nccl->init_all, "ncclCommInitAll");
    find(nccl->all_reduce, "ncclAllReduce");
    find(nccl->destroy, "ncclCommDestroy");
    find(nccl->error_text, "ncclGetErrorString");
    return nccl;
  }
  void check(int result, const char* what) const {
    if (result != 0) throw std::runtime_error(std::string(what) + ": " + error_text(result));
  }
};
constexpr int nccl_f32 = 7, nccl_sum = 0;

// One device's side of the measurement; lives in one thread.
class Side {
 public:
  Side(const Nccl& nccl, const Driver& driver, void* communicator, int ordinal, uint64_t most_bytes)
      : nccl_(nccl), driver_(driver), communicator_(communicator) {
    int device = 0;
    void* context = nullptr;
    driver_.check(driver_.device_get(&device, ordinal), "cuDeviceGet");
    driver_.check(driver_.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    driver_.check(driver_.context_set_current(context), "cuCtxSetCurrent");
    driver_.check(driver_.stream_create(&stream_, mkrt::test::stream_non_blocking), "cuStreamCreate");
    driver_.check(driver_.allocate(&from_, most_bytes), "cuMemAlloc");
    driver_.check(driver_.allocate(&to_, most_bytes), "cuMemAlloc");
  }

  // Everything here ends with the process: there is nothing to give back to.
  void reduce(uint64_t bytes) {
    nccl_.check(nccl_.all_reduce(reinterpret_cast<void*>(from_), reinterpret_cast<void*>(to_), bytes / 4, nccl_f32,
                                 nccl_sum, communicator_, stream_),
                "ncclAllReduce");
  }
  void wait() { driver_.check(driver_.stream_synchronize(stream_), "cuStreamSynchronize"); }
  void capture(uint64_t bytes, int count) {
    void* graph = nullptr;
    driver_.check(driver_.capture_begin(stream_, mkrt::test::capture_thread_local), "cuStreamBeginCapture");
    for (int i = 0; i < count; ++i) reduce(bytes);
    driver_.check(driver_.capture_end(stream_, &graph), "cuStreamEndCapture");
    driver_.check(driver_.graph_instantiate(&graph_, graph, 0), "cuGraphInstantiate");
  }
  void launch() { driver_.check(driver_.graph_launch(graph_, stream_), "cuGraphLaunch"); }

 private:
  const Nccl& nccl_;
  const Driver& driver_;
  void* communicator_;
  void* stream_ = nullptr;
  void* graph_ = nullptr;
  uint64_t from_ = 0, to_ = 0;
};

// Microseconds of an all-reduce of each size.
std::vector<std::vector<double>> time_all(const Nccl& nccl, uint32_t devices, const std::vector<AllReduce>& sizes) {
  const Driver driver;
  std::vector<void*> communicators(devices);
  nccl.check(nccl.init_all(communicators.data(), static_cast<int>(devices), nullptr), "ncclCommInitAll");
  constexpr int samples = 7;
  std::vector<std::vector<double>> times(sizes.size());
  std::barrier together(devices);
  const auto run = [&](uint32_t number) {
    Side side(nccl, driver, communicators[number], static_cast<int>(number), sizes.back().bytes);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int count = sizes[i].bytes <= (4 << 20) ? 50 : 10;
      together.arrive_and_wait();
      for (int warm_up = 0; warm_up < 3; ++warm_up) side.reduce(sizes[i].bytes);
      side.wait();
      side.capture(sizes[i].bytes, count);
      for (int sample = -2; sample < samples; ++sample) {
        together.arrive_and_wait();
        const Clock::time_point begin = Clock::now();
        side.launch();
        side.wait();
        together.arrive_and_wait();
        if (number == 0 && sample >= 0) times[i].push_back(seconds_since(begin) * 1e6 / count);
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t number = 0; number < devices; ++number) {
    threads.emplace_back([&, number] {
      try {
        run(number);
      } catch (const std::exception& failure) {
        // The other threads wait for this one inside of NCCL, where nothing reaches them. What was measured before is
        // printed already.
        std::fprintf(stderr, "ranks: NCCL on device %u: %s\n", number, failure.what());
        std::_Exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return times;
}

}  // namespace

ordered_json measure_nccl(const Machine& machine, const std::vector<AllReduce>& ours) {
  ordered_json result = {{"benchmark", "all-reduce by NCCL"}};
  const auto skip = [&](const std::string& why) {
    std::fprintf(stderr, "NCCL was not measured: %s\n", why.c_str());
    result["skipped"] = why;
    return result;
  };
  if (machine.devices < 2) return skip("it needs a device for each of at least two ranks");
  if (machine.ranks.back() != machine.devices) return skip("the ranks are not as many as the devices");
  std::string why;
  const std::unique_ptr<Nccl> nccl = Nccl::open(why);
  if (nccl == nullptr) return skip(why);
  int version = 0;
  nccl->check(nccl->version(&version), "ncclGetVersion");
  const std::vector<std::vector<double>> times = time_all(*nccl, machine.devices, ours);
  result["version"] = version;
  result["ranks"] = machine.devices;
  result["method"] = "CUDA graphs, one process, a thread for each device; the time of one in a row of many";
  ordered_json results = ordered_json::array();
  for (size_t i = 0; i < ours.size(); ++i) {
    const double median = percentile(times[i], 0.5);
    std::fprintf(stderr, "NCCL: %9llu bytes %9.1f us; mkrt %9.1f us, %.2f of it\n",
                 static_cast<unsigned long long>(ours[i].bytes), median, ours[i].microseconds,
                 ours[i].microseconds / median);
    results.push_back({{"bytes", ours[i].bytes},
                       {"microseconds", summary(times[i])},
                       {"mkrt_microseconds", ours[i].microseconds},
                       {"mkrt_way", ours[i].way},
                       {"mkrt_part_of_nccl", ours[i].microseconds / median}});
  }
  result["results"] = results;
  return result;
}

}  // namespace mkrt::bench
