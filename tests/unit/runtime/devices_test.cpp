// Which devices there are, and which one a mesh gets: with a simulated driver, with one that fails, with none.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "base/failure.hpp"
#include "driver_double.hpp"
#ifdef __linux__
#include "meeting.hpp"
#endif
#include "runtime/mesh.hpp"
#include "runtime/runtime.hpp"

namespace {

using mkrt::base::Failure;
using mkrt::cuda::Driver;
using mkrt::cuda::test::DriverDouble;
using mkrt::cuda::test::SimulatedDevice;
using mkrt::runtime::create_mesh;
using mkrt::runtime::create_runtime;
using mkrt::runtime::Runtime;

std::atomic<int> opened{0};

std::shared_ptr<const Driver> open_double() {
  ++opened;
  return DriverDouble::open();
}
std::shared_ptr<const Driver> open_nothing() {
  ++opened;
  throw Failure(MKRT_ERROR_DEVICE, "there is no CUDA driver on this machine: libcuda.so.1 is missing");
}

// A runtime whose log is kept.
struct Logged {
  explicit Logged(mkrt::runtime::CudaDevices::OpenDriver open) {
    opened = 0;
    mkrt_runtime_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.user_data = this;
    desc.log = [](void* self, uint32_t level, const char* message) {
      CHECK(level == MKRT_LOG_WARNING);
      static_cast<Logged*>(self)->lines.emplace_back(message);
    };
    runtime = create_runtime(&desc, {}, open);
  }
  std::vector<std::string> lines;
  std::shared_ptr<Runtime> runtime;
};

mkrt_rank_desc rank_of(uint32_t kind) {
  mkrt_rank_desc rank{};
  rank.struct_size = sizeof(rank);
  rank.kind = kind;
  return rank;
}

uint32_t kind_taken(const std::shared_ptr<Runtime>& runtime, const std::vector<mkrt_rank_desc>& ranks) {
  return create_mesh(runtime, ranks, {})->device_info(0).kind;
}

Failure refusal(const std::shared_ptr<Runtime>& runtime, const std::vector<mkrt_rank_desc>& ranks,
                const mkrt_device_memory_extension* device_memory = nullptr) {
  try {
    create_mesh(runtime, ranks, {device_memory});
  } catch (const Failure& failure) {
    return failure;
  }
  FAIL("a mesh was made");
  return {MKRT_OK, ""};
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the driver is opened by the first call that asks for devices, once, from whichever threads") {
  DriverDouble gpu(std::vector<SimulatedDevice>(2));
  const Logged logged(open_double);
  CHECK(kind_taken(logged.runtime, {rank_of(MKRT_DEVICE_HOST)}) == MKRT_DEVICE_HOST);
  CHECK(opened == 0);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { right += logged.runtime->device_count() == 3 ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 8);
  CHECK(kind_taken(logged.runtime, {rank_of(MKRT_DEVICE_CUDA)}) == MKRT_DEVICE_CUDA);
  CHECK(opened == 1);
}

TEST_CASE("CUDA devices are listed first and the host last; one that does not answer is left out with a warning") {
  DriverDouble gpu({{.name = "First", .multiprocessors = 5}, {.name = "Second", .major = 8, .minor = 6}});
  {
    const Logged logged(open_double);
    REQUIRE(logged.runtime->device_count() == 3);
    const mkrt_device_info first = logged.runtime->device_info(0);
    CHECK(first.kind == MKRT_DEVICE_CUDA);
    CHECK(std::string(first.name) == "First");
    CHECK(first.worker_count == 5);
    CHECK(first.memory_free == 0);  // asking takes a context
    CHECK(std::string(logged.runtime->device_info(1).target) == "sm_86");
    CHECK(logged.runtime->device_info(1).ordinal == 1);
    CHECK(logged.runtime->device_info(2).kind == MKRT_DEVICE_HOST);
    CHECK_THROWS_AS(logged.runtime->device_info(3), Failure);
    CHECK(logged.lines.empty());
  }
  const Logged logged(open_double);
  gpu.fail_call(5, 999);  // the first device's attributes
  CHECK(logged.runtime->device_count() == 2);
  CHECK(std::string(logged.runtime->device_info(0).name) == "Second");
  REQUIRE(logged.lines.size() == 1);
  CHECK(contains(logged.lines[0], "CUDA device 0 is left out"));
}

TEST_CASE("without a driver there is the host, and asking for CUDA says what the driver said") {
  const Logged logged(open_nothing);
  CHECK(logged.runtime->device_count() == 1);
  CHECK(logged.runtime->device_info(0).kind == MKRT_DEVICE_HOST);
  const Failure failure = refusal(logged.runtime, {rank_of(MKRT_DEVICE_CUDA)});
  CHECK(failure.status() == MKRT_ERROR_DEVICE);
  CHECK(contains(failure.message(), "libcuda.so.1 is missing"));
  CHECK(logged.lines.empty());
  CHECK(kind_taken(logged.runtime, {rank_of(MKRT_DEVICE_DEFAULT)}) == MKRT_DEVICE_HOST);
  REQUIRE(logged.lines.size() == 1);
  CHECK(contains(logged.lines[0], "the default device is the host: there is no CUDA driver on this machine"));
  CHECK(opened == 1);
}

TEST_CASE("a driver that fails to start is no driver") {
  DriverDouble gpu;
  const Logged logged(open_double);
  gpu.fail_call(1, 100);
  CHECK(logged.runtime->device_count() == 1);
  const Failure failure = refusal(logged.runtime, {rank_of(MKRT_DEVICE_CUDA)});
  CHECK(failure.status() == MKRT_ERROR_DEVICE);
  CHECK(failure.driver_code() == 100);
}

TEST_CASE("the default is the first CUDA device that can be used, and what is passed over is logged") {
  DriverDouble gpu({{.name = "Old", .major = 7, .minor = 5}, {.name = "Odd", .cooperative = false}, {.name = "Good"}});
  const Logged logged(open_double);
  const auto mesh = create_mesh(logged.runtime, std::vector{rank_of(MKRT_DEVICE_DEFAULT)}, {});
  CHECK(std::string(mesh->device_info(0).name) == "Good");
  REQUIRE(logged.lines.size() == 2);
  CHECK(contains(logged.lines[0], "CUDA device 0 (Old) cannot be used: its compute capability is 7.5"));
  CHECK(contains(logged.lines[1], "CUDA device 1 (Odd) cannot be used"));
  // Asked for by number, an old device is taken: the package decides whether it has kernels for it.
  CHECK(kind_taken(logged.runtime, {rank_of(MKRT_DEVICE_CUDA)}) == MKRT_DEVICE_CUDA);
}

TEST_CASE("where no CUDA device can be used the default is the host, with the reason") {
  DriverDouble gpu({{.name = "Old", .major = 7, .minor = 5}});
  const Logged logged(open_double);
  CHECK(kind_taken(logged.runtime, {rank_of(MKRT_DEVICE_DEFAULT)}) == MKRT_DEVICE_HOST);
  REQUIRE(logged.lines.size() == 1);
  CHECK(contains(logged.lines[0], "the default device is the host: CUDA device 0 (Old) cannot be used"));
}

TEST_CASE(
    "several ranks by default take a device each where there are enough that reach each other, or share the first") {
  DriverDouble gpu({{.name = "Old", .major = 7}, {.name = "First"}, {.name = "Second"}});
  const Logged logged(open_double);
  const auto defaults = [](size_t count) { return std::vector(count, rank_of(MKRT_DEVICE_DEFAULT)); };
  {
    const auto mesh = create_mesh(logged.runtime, defaults(2), {});
    REQUIRE(mesh->rank_count() == 2);
    CHECK(mesh->device_info(0).ordinal == 1);
    CHECK(mesh->device_info(1).ordinal == 2);
    CHECK(mesh->device_info(1).worker_count == 4);
    CHECK(logged.lines.empty());
  }
  {
    const auto mesh = create_mesh(logged.runtime, defaults(3), {});
    for (uint32_t rank = 0; rank < 3; ++rank) {
      CHECK(mesh->device_info(rank).ordinal == 1);
      CHECK(mesh->device_info(rank).worker_count == 1);  // of 4
    }
  }
  gpu.set_path(1, 2, false, false);
  const auto mesh = create_mesh(logged.runtime, defaults(2), {});
  CHECK(mesh->device_info(1).ordinal == 1);
  CHECK(mesh->device_info(1).worker_count == 2);
  REQUIRE(!logged.lines.empty());
  CHECK(contains(logged.lines[1], "the ranks share a device: rank 0 (CUDA device 1, First) and rank 1"));
  // More ranks than a device has SMs.
  const auto many = create_mesh(logged.runtime, defaults(5), {});
  CHECK(many->device_info(0).kind == MKRT_DEVICE_HOST);
  CHECK(contains(logged.lines.back(), "the default device is the host"));
}

#ifdef __linux__
TEST_CASE(
    "the ranks of several processes by default take a device each, of those that all see or that each was given") {
  for (const size_t devices : {3, 2, 1}) {
    DriverDouble gpu(std::vector<SimulatedDevice>(devices, SimulatedDevice{.multiprocessors = 6}));
    mkrt::cuda::test::Meeting meeting(2);
    std::vector<uint32_t> ordinals[2];
    meeting.run([&](uint32_t process) {
      const Logged logged(open_double);
      const std::vector<mkrt_rank_desc> ranks(process + 1, rank_of(MKRT_DEVICE_DEFAULT));
      const mkrt_process_extension extension = meeting.extension(process);
      const auto mesh = create_mesh(logged.runtime, ranks, {.processes = &extension});
      REQUIRE(mesh->rank_count() == 3);
      for (size_t i = 0; i < ranks.size(); ++i) {
        ordinals[process].push_back(mesh->device_info(static_cast<uint32_t>(process + i)).ordinal);
      }
    });
    CHECK(ordinals[0] == std::vector<uint32_t>{0});
    CHECK(ordinals[1] == (devices == 3   ? std::vector<uint32_t>{1, 2}
                          : devices == 2 ? std::vector<uint32_t>{0, 1}
                                         : std::vector<uint32_t>{0, 0}));
  }
}
#endif

TEST_CASE("ranks that name CUDA are on the devices that they name") {
  DriverDouble gpu(std::vector<SimulatedDevice>(2));
  const Logged logged(open_double);
  std::vector ranks(3, rank_of(MKRT_DEVICE_CUDA));
  ranks[1].ordinal = 1;
  std::memset(ranks[2].uuid, 0x11, sizeof(ranks[2].uuid));  // device 1
  const auto mesh = create_mesh(logged.runtime, ranks, {});
  CHECK(mesh->device_info(0).ordinal == 0);
  CHECK(mesh->device_info(1).ordinal == 1);
  CHECK(mesh->device_info(2).ordinal == 1);
  ranks[2].ordinal = 7;
  std::memset(ranks[2].uuid, 0, sizeof(ranks[2].uuid));
  const Failure failure = refusal(logged.runtime, ranks);
  CHECK(failure.status() == MKRT_ERROR_DEVICE);
  CHECK(failure.rank() == 2);
}

TEST_CASE("a rank without a kind takes the others', or CUDA where it names what only CUDA has") {
  DriverDouble gpu(std::vector<SimulatedDevice>(2));
  const Logged logged(open_double);
  CHECK(kind_taken(logged.runtime, {rank_of(MKRT_DEVICE_DEFAULT), rank_of(MKRT_DEVICE_HOST)}) == MKRT_DEVICE_HOST);
  mkrt_rank_desc rank = rank_of(MKRT_DEVICE_DEFAULT);
  std::memset(rank.uuid, 0x11, sizeof(rank.uuid));
  const auto mesh = create_mesh(logged.runtime, std::vector{rank}, {});
  CHECK(mesh->device_info(0).ordinal == 1);
  std::memset(rank.uuid, 0x55, sizeof(rank.uuid));  // no such device: never another one instead
  CHECK(refusal(logged.runtime, {rank}).status() == MKRT_ERROR_DEVICE);
  rank = rank_of(MKRT_DEVICE_DEFAULT);
  rank.context = gpu.create_context(1);
  CHECK(create_mesh(logged.runtime, std::vector{rank}, {})->device_info(0).ordinal == 1);
  CHECK(logged.lines.empty());
}

TEST_CASE("the application's device memory is for CUDA ranks") {
  DriverDouble gpu;
  const Logged logged(open_double);
  mkrt_device_memory_extension memory{};
  CHECK(refusal(logged.runtime, {rank_of(MKRT_DEVICE_HOST)}, &memory).status() == MKRT_ERROR_UNSUPPORTED);
  memory.allocate = [](void*, uint32_t, uint64_t, uint64_t) { return uint64_t{0}; };
  memory.release = [](void*, uint32_t, uint64_t, uint64_t) {};
  CHECK(create_mesh(logged.runtime, std::vector{rank_of(MKRT_DEVICE_DEFAULT)}, {&memory})->device_info(0).kind ==
        MKRT_DEVICE_CUDA);
}
