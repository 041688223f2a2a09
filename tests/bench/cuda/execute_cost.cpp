// execute_cost PACKAGE: what mkrt_execute costs the calling thread, against a bare cuLaunchKernel.
//
// The bare launch is of an empty kernel with a parameter of the same size, in the same context, grid and block. A
// cooperative one is measured too, since that is what mkrt_execute needs. All take turns, 60 launches at a time without
// waiting (64 executes may be in flight), and what is timed is the enqueueing alone.
#include <array>

#include "bench.hpp"
#include "driver.hpp"
#include "mkrt/device/launch.h"

namespace {

using namespace mkrt::bench;
using mkrt::test::Driver;

constexpr int launches = 60;
constexpr int rounds = 300;
constexpr int warm_up_rounds = 20;
constexpr unsigned parameter_bytes = 144;  // of mkrt_launch, and in the kernel below
static_assert(parameter_bytes == sizeof(mkrt_launch));
constexpr unsigned block_threads = 384;  // of mkrt.llm's kernel

constexpr char empty_kernel[] = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry empty(.param .align 8 .b8 parameters[144]) { ret; }
)";

// cuLaunchKernelEx with the attribute for cooperative launches, as the driver declares it.
struct Attribute {
  int id = 2;  // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
  char padding[4] = {};
  int value = 1;
  char rest[60] = {};
};
struct Config {
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  Attribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(Attribute) == 72 && sizeof(Config) == 56);

class BareLaunch {
 public:
  BareLaunch(const Driver& driver, unsigned grid) : driver_(driver), grid_(grid) {
    driver_.check(driver_.device_get(&device_, 0), "cuDeviceGet");
    void* context = nullptr;
    driver_.check(driver_.primary_retain(&context, device_), "cuDevicePrimaryCtxRetain");
    driver_.check(driver_.context_set_current(context), "cuCtxSetCurrent");
    driver_.check(driver_.stream_create(&stream_, mkrt::test::stream_non_blocking), "cuStreamCreate");
    driver_.check(driver_.module_load(&module_, empty_kernel), "cuModuleLoadData");
    driver_.check(driver_.module_function(&kernel_, module_, "empty"), "cuModuleGetFunction");
  }
  BareLaunch(const BareLaunch&) = delete;
  BareLaunch& operator=(const BareLaunch&) = delete;
  ~BareLaunch() {
    driver_.module_unload(module_);
    driver_.stream_destroy(stream_);
    driver_.context_set_current(nullptr);
    driver_.primary_release(device_);
  }

  void plain() {
    void* parameters[] = {parameters_.data()};
    driver_.check(driver_.launch(kernel_, grid_, 1, 1, block_threads, 1, 1, 0, stream_, parameters, nullptr),
                  "cuLaunchKernel");
  }
  void cooperative() {
    void* parameters[] = {parameters_.data()};
    Attribute attribute;
    Config config;
    config.grid[0] = grid_;
    config.block[0] = block_threads;
    config.stream = stream_;
    config.attributes = &attribute;
    config.attribute_count = 1;
    driver_.check(driver_.launch_extended(&config, kernel_, parameters, nullptr), "cuLaunchKernelEx");
  }
  void wait() { driver_.check(driver_.stream_synchronize(stream_), "cuStreamSynchronize"); }

 private:
  const Driver& driver_;
  unsigned grid_;
  int device_ = 0;
  void* stream_ = nullptr;
  void* module_ = nullptr;
  void* kernel_ = nullptr;
  std::array<char, parameter_bytes> parameters_{};
};

// Microseconds a call of each of `launches` in a row.
template <class Launch, class Wait>
double time_round(Launch launch, Wait wait) {
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < launches; ++i) launch();
  const double microseconds = seconds_since(begin) * 1e6 / launches;
  wait();
  return microseconds;
}

ordered_json measure(const char* package) {
  const mkrt::Runtime runtime;
  const mkrt::Mesh mesh(runtime, cuda());
  const mkrt::Program program(runtime, package);
  const mkrt::Executable executable(program, mesh);
  mkrt::Session session(executable);
  const mkrt::DeviceInfo device = mesh.device_info();
  const Driver driver;
  BareLaunch bare(driver, device.worker_count);
  int driver_version = 0;
  driver.check(driver.driver_version(&driver_version), "cuDriverGetVersion");

  mkrt_execute_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.step_count = 1;
  uint64_t value = 0;
  mkrt_error error = MKRT_ERROR_INIT;
  const auto execute = [&] {
    if (mkrt_execute(session.get(), &desc, &value, &error) != MKRT_OK) throw mkrt::Error(error);
  };
  std::vector<double> plain, cooperative, executes, statics;
  for (int round = -warm_up_rounds; round < rounds; ++round) {
    const double a = time_round([&] { bare.plain(); }, [&] { bare.wait(); });
    desc.queue_mode = MKRT_QUEUE_DYNAMIC;
    const double b = time_round(execute, [&] { session.wait(value); });
    const double c = time_round([&] { bare.cooperative(); }, [&] { bare.wait(); });
    desc.queue_mode = MKRT_QUEUE_STATIC;
    const double d = time_round(execute, [&] { session.wait(value); });
    if (round < 0) continue;
    plain.push_back(a);
    executes.push_back(b);
    cooperative.push_back(c);
    statics.push_back(d);
  }
  const double ratio = percentile(executes, 0.5) / percentile(plain, 0.5);
  std::fprintf(stderr, "mkrt_execute %.2f us, bare cuLaunchKernel %.2f us, bare cooperative %.2f us: ratio %.2f\n",
               percentile(executes, 0.5), percentile(plain, 0.5), percentile(cooperative, 0.5), ratio);
  return {{"benchmark", "execute_cost"},
          {"device", describe(device)},
          {"cuda_version", driver_version},
          {"unit", "microseconds of the calling thread for one call, in rows of 60 without waiting"},
          {"bare_launch", summary(plain)},
          {"bare_cooperative_launch", summary(cooperative)},
          {"mkrt_execute", summary(executes)},
          {"mkrt_execute_static", summary(statics)},
          {"ratio_to_bare_launch", ratio},
          {"ratio_to_bare_cooperative_launch", percentile(executes, 0.5) / percentile(cooperative, 0.5)},
          {"target_ratio", 1.3}};
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    std::fprintf(stderr, "usage: execute_cost PACKAGE\n");
    return 2;
  }
  return report("execute_cost", [&] { return measure(arguments[1]); });
}
