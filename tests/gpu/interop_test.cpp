// Working inside an application that uses CUDA itself: its context, its stream, its graphs.
#include <chrono>
#include <thread>

#include "driver.hpp"
#include "gpu.hpp"

namespace {

using namespace mkrt::test;

// An application's context and stream; nothing is current when it is made.
class Application {
 public:
  Application() {
    int device = 0;
    driver.check(driver.device_get(&device, 0), "cuDeviceGet");
    driver.check(driver.context_create(&context, 0, device), "cuCtxCreate");
    driver.check(driver.stream_create(&stream, stream_non_blocking), "cuStreamCreate");
    driver.check(driver.context_set_current(nullptr), "cuCtxSetCurrent");
  }
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;
  ~Application() {
    driver.context_set_current(context);
    driver.stream_destroy(stream);
    driver.context_destroy(context);
  }

  Target target(uint32_t ranks = 1) const {
    Target target = gpu_ranks(ranks);
    target.rank.context = context;
    target.rank.stream = stream;
    return target;
  }
  void* current() const {
    void* now = nullptr;
    driver.check(driver.context_get_current(&now), "cuCtxGetCurrent");
    return now;
  }
  void synchronize() const { driver.check(driver.stream_synchronize(stream), "cuStreamSynchronize"); }

  Driver driver;
  void* context = nullptr;
  void* stream = nullptr;
};

// Current while it lives, as in an application that works between its calls of mkrt.
class Current {
 public:
  explicit Current(const Application& application) : driver_(application.driver) {
    driver_.check(driver_.context_set_current(application.context), "cuCtxSetCurrent");
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() { driver_.context_set_current(nullptr); }

 private:
  const Driver& driver_;
};

std::vector<int32_t> tokens_of(Model& model, size_t count) {
  std::vector<int32_t> tokens(count);
  model.session().read<int32_t>(model.program().find_tensor("tokens"), tokens);
  return tokens;
}

// The tokens of a golden case, `count` steps from a reset, on a mesh of the library's own.
std::vector<int32_t> plain_tokens(const Novelist& novelist, const Golden& golden, uint32_t count, uint32_t ranks = 1) {
  Model model(novelist.package(), gpu_ranks(ranks));
  model.start(0, golden.prompt_ids);
  model.step({MKRT_QUEUE_DYNAMIC, 0}, count);
  return tokens_of(model, count + 1);
}

}  // namespace

TEST_CASE("work goes onto the application's stream, between what it has queued before and after") {
  const Novelist novelist;
  const Golden golden = read_golden().front();
  const std::vector<int32_t> expected = plain_tokens(novelist, golden, 40);
  const Application application;
  const Driver& driver = application.driver;
  Model model(novelist.package(), application.target());
  model.start(0, golden.prompt_ids);
  // The prompt's first token is wrong until a copy on the stream puts it right, just before the execute.
  model.set("tokens", 0, golden.prompt_ids[0] ^ 1);
  const auto address =
      reinterpret_cast<uint64_t>(model.session().tensor_address(model.program().find_tensor("tokens")));
  std::vector<int32_t> tokens(41, -1);
  {
    const Current current(application);
    driver.check(driver.copy_to_device(address, golden.prompt_ids.data(), sizeof(int32_t), application.stream), "copy");
    mkrt::ExecuteOptions options;
    options.step_count = 40;
    model.session().execute(options);
    driver.check(driver.copy_to_host(tokens.data(), address, tokens.size() * sizeof(int32_t), application.stream),
                 "copy");
    application.synchronize();
  }
  CHECK(tokens == expected);
}

TEST_CASE("every call leaves the thread's current context as it was, none included") {
  const Novelist novelist;
  const Golden golden = read_golden().front();
  const Application application;
  for (const bool lent : {false, true}) {
    for (const bool has_current : {false, true}) {
      CAPTURE(lent);
      CAPTURE(has_current);
      void* const expected = has_current ? application.context : nullptr;
      application.driver.check(application.driver.context_set_current(expected), "cuCtxSetCurrent");
      {
        const mkrt::Runtime runtime;
        CHECK(runtime.device_count() >= 2);
        CHECK(application.current() == expected);
        Model model(novelist.package(), lent ? application.target() : gpu());
        CHECK(application.current() == expected);
        model.start(0, golden.prompt_ids);
        CHECK(application.current() == expected);
        const uint64_t value = model.session().execute();
        CHECK(application.current() == expected);
        model.session().wait(value);
        CHECK(application.current() == expected);
        model.session().execute();
        model.session().cancel();
        CHECK(application.current() == expected);
        CHECK_THROWS_AS(mkrt::Executable(model.program(), model.mesh(), 1), mkrt::Error);
        CHECK(application.current() == expected);
      }
      CHECK(application.current() == expected);
    }
  }
  application.driver.check(application.driver.context_set_current(nullptr), "cuCtxSetCurrent");
}

namespace {

void check_replays(uint32_t ranks) {
  CAPTURE(ranks);
  const Novelist novelist(gpu_ranks(ranks));
  const Golden golden = read_golden().front();
  const std::vector<int32_t> expected = plain_tokens(novelist, golden, 60, ranks);
  const Application application;
  const Driver& driver = application.driver;
  for (const uint32_t queue_mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
    CAPTURE(queue_mode);
    Model model(novelist.package(), application.target(ranks));
    const Current current(application);
    model.start(0, golden.prompt_ids);
    model.step({MKRT_QUEUE_DYNAMIC, 0}, 3);  // replays do not begin with the first step

    mkrt::ExecuteOptions options;
    options.step_count = 2;
    options.queue_mode = queue_mode;
    driver.check(driver.capture_begin(application.stream, capture_thread_local), "cuStreamBeginCapture");
    std::string refusal;
    uint64_t value = 0;
    try {
      value = model.session().execute(options);
    } catch (const mkrt::Error& error) {
      refusal = error.what();
    }
    void* graph = nullptr;
    const int captured = driver.capture_end(application.stream, &graph);
    INFO("the execute while capturing: " << refusal << "; the end of the capture: " << driver.describe(captured));
    REQUIRE(refusal.empty());
    REQUIRE(captured == 0);
    void* executable = nullptr;
    driver.check(driver.graph_instantiate(&executable, graph, 0), "cuGraphInstantiate");
    constexpr int replays = 20;
    for (int i = 0; i < replays; ++i) {
      driver.check(driver.graph_launch(executable, application.stream), "cuGraphLaunch");
    }
    application.synchronize();
    model.session().wait(value);
    CHECK(model.get("positions", 0) == 3 + 2 * replays);

    model.step({queue_mode, 0}, 60 - 3 - 2 * replays);  // goes on where the replays ended
    CHECK(tokens_of(model, 61) == expected);
    driver.check(driver.graph_executable_destroy(executable), "cuGraphExecDestroy");
    driver.check(driver.graph_destroy(graph), "cuGraphDestroy");
  }
}

}  // namespace

TEST_CASE("an execute that is captured in a graph counts its steps on the device when it is replayed") {
  check_replays(1);
}

TEST_CASE("an execute of 2 ranks that share a GPU is one node of a graph") { check_replays(2); }

namespace {

// Far longer than any test: steps at the context's end, which go on there.
mkrt::ExecuteOptions endless() {
  mkrt::ExecuteOptions options;
  options.step_count = 10'000'000;
  return options;
}

mkrt_status status_of(Model& model, uint64_t value) {
  return mkrt_session_wait(model.session().get(), value, UINT64_MAX, nullptr);
}

}  // namespace

TEST_CASE("a cancel reaches every launch of a graph, holds for those that follow, and a reset ends it") {
  using Clock = std::chrono::steady_clock;
  const Novelist novelist;
  const Golden golden = read_golden().front();
  const Application application;
  const Driver& driver = application.driver;
  Model model(novelist.package(), application.target());
  const Current current(application);
  model.start(0, golden.prompt_ids);
  driver.check(driver.capture_begin(application.stream, capture_thread_local), "cuStreamBeginCapture");
  const uint64_t value = model.session().execute(endless());
  void* graph = nullptr;
  driver.check(driver.capture_end(application.stream, &graph), "cuStreamEndCapture");
  void* executable = nullptr;
  driver.check(driver.graph_instantiate(&executable, graph, 0), "cuGraphInstantiate");
  for (int launch = 0; launch < 3; ++launch) {
    CAPTURE(launch);
    driver.check(driver.graph_launch(executable, application.stream), "cuGraphLaunch");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Clock::time_point begin = Clock::now();
    model.session().cancel();
    application.synchronize();
    CHECK(Clock::now() - begin < std::chrono::seconds(1));
    CHECK(status_of(model, value) == MKRT_ERROR_CANCELLED);
    driver.check(driver.graph_launch(executable, application.stream), "cuGraphLaunch");
    application.synchronize();  // leaves at once
    CHECK(Clock::now() - begin < std::chrono::seconds(2));
    model.reset();
    model.start(0, golden.prompt_ids);
  }
  driver.check(driver.graph_executable_destroy(executable), "cuGraphExecDestroy");
  driver.check(driver.graph_destroy(graph), "cuGraphDestroy");
}

TEST_CASE("queries and waits spoil no capture of the application, on its thread or another") {
  const Novelist novelist;
  const Application application;
  const Driver& driver = application.driver;
  Model model(novelist.package(), application.target());
  const Current current(application);
  model.start(0, read_golden().front().prompt_ids);
  const uint64_t value = model.session().execute(endless());
  for (const int mode : {capture_thread_local, capture_global}) {
    CAPTURE(mode);
    driver.check(driver.capture_begin(application.stream, mode), "cuStreamBeginCapture");
    const auto look = [&] {
      // Longer than a query goes without asking the driver.
      CHECK(mkrt_session_wait(model.session().get(), value, 150'000'000, nullptr) == MKRT_ERROR_TIMEOUT);
      uint64_t reached = 0;
      CHECK(mkrt_session_query(model.session().get(), &reached, nullptr) == MKRT_OK);
      CHECK(reached < value);
    };
    look();
    std::thread(look).join();
    void* graph = nullptr;
    const int captured = driver.capture_end(application.stream, &graph);
    CHECK_MESSAGE(captured == 0, driver.describe(captured));
    if (captured == 0) driver.check(driver.graph_destroy(graph), "cuGraphDestroy");
  }
  model.session().cancel();
  CHECK(status_of(model, value) == MKRT_ERROR_CANCELLED);
}
