// A device that is lost to a kernel of the application's. A program of its own: the driver promises nothing to a
// process after that.
#include <chrono>
#include <thread>

#include "driver.hpp"
#include "gpu.hpp"

namespace {

using namespace mkrt::test;

constexpr char failing_kernel[] = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry fail() { trap; }
)";

}  // namespace

TEST_CASE("whoever only queries learns that the device is lost, and everything can still be destroyed") {
  using Clock = std::chrono::steady_clock;
  const Novelist novelist;
  const Driver driver;
  int device = 0;
  void *context = nullptr, *stream = nullptr, *other = nullptr, *module = nullptr, *function = nullptr;
  driver.check(driver.device_get(&device, 0), "cuDeviceGet");
  driver.check(driver.context_create(&context, 0, device), "cuCtxCreate");
  driver.check(driver.stream_create(&stream, stream_non_blocking), "cuStreamCreate");
  driver.check(driver.stream_create(&other, stream_non_blocking), "cuStreamCreate");
  driver.check(driver.module_load(&module, failing_kernel), "cuModuleLoadData");
  driver.check(driver.module_function(&function, module, "fail"), "cuModuleGetFunction");

  // On the application's stream, where the library asks another one.
  Target target = gpu();
  target.rank.context = context;
  target.rank.stream = stream;
  Model model(novelist.package(), target);
  model.start(0, read_golden().front().prompt_ids);
  mkrt::ExecuteOptions options;
  options.step_count = 10'000'000;  // far longer than the test
  options.worker_limit = 1;         // the other SMs are free for the kernel that fails
  const uint64_t value = model.session().execute(options);
  uint64_t reached = 0;
  mkrt_error error = MKRT_ERROR_INIT;
  mkrt_status status = mkrt_session_query(model.session().get(), &reached, &error);
  CHECK(status == MKRT_OK);
  driver.check(driver.launch(function, 1, 1, 1, 32, 1, 1, 0, other, nullptr, nullptr), "cuLaunchKernel");
  const Clock::time_point begin = Clock::now();
  while (status == MKRT_OK && Clock::now() - begin < std::chrono::seconds(10)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    status = mkrt_session_query(model.session().get(), &reached, &error);
  }
  MESSAGE(std::chrono::duration<double, std::milli>(Clock::now() - begin).count() << " ms: " << error.message);
  CHECK(status == MKRT_ERROR_DRIVER);
  CHECK(error.driver_code != 0);
  CHECK(mkrt_session_wait(model.session().get(), value, 10'000'000'000, nullptr) == MKRT_ERROR_DRIVER);
  CHECK(mkrt_session_reset(model.session().get(), nullptr) == MKRT_ERROR_DRIVER);
}
