// The double must see what it is there to see.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <thread>

#ifdef __linux__
#include <unistd.h>
#endif

#include "cuda/pages.hpp"
#include "driver_double.hpp"

using namespace mkrt;
using namespace mkrt::cuda;
using namespace mkrt::cuda::test;

namespace {

// Violations so far, joined.
std::string seen(DriverDouble& gpu) {
  std::string all;
  for (const std::string& violation : gpu.take_violations()) all += violation + "; ";
  return all;
}

struct Retained {
  explicit Retained(const DriverDouble& gpu, int ordinal = 0) : driver(gpu.driver()) {
    REQUIRE(driver->device_get(&device, ordinal) == result_success);
    REQUIRE(driver->primary_context_retain(&context, device) == result_success);
    REQUIRE(driver->context_push(context) == result_success);
  }
  ~Retained() {
    Context popped = nullptr;
    driver->context_pop(&popped);
    driver->primary_context_release(device);
  }
  std::shared_ptr<const Driver> driver;
  DeviceNumber device = 0;
  Context context = nullptr;
};

}  // namespace

TEST_CASE("the double sees what is freed twice, never, or is not its own") {
  DriverDouble gpu;
  {
    const Retained retained(gpu);
    const Driver& driver = *retained.driver;
    DevicePointer memory = 0;
    REQUIRE(driver.memory_allocate(&memory, 100) == result_success);
    CHECK(driver.memory_free(memory) == result_success);
    CHECK(seen(gpu).empty());
    CHECK(driver.memory_free(memory) != result_success);
    CHECK(seen(gpu).find("freed already") != std::string::npos);
    CHECK(driver.memory_free(memory + 8) != result_success);
    CHECK(seen(gpu).find("not allocated") != std::string::npos);
    int own = 0;
    CHECK(driver.host_free(&own) != result_success);
    CHECK(seen(gpu).find("pinned memory") != std::string::npos);
    const DevicePointer theirs = gpu.allocate(retained.context, 100);
    driver.memory_free(theirs);
    CHECK(seen(gpu).find("of the application") != std::string::npos);
  }
  DevicePointer left = 0;
  {
    const Retained retained(gpu);
    REQUIRE(retained.driver->memory_allocate(&left, 100) == result_success);
    CHECK(gpu.live_objects() == 2);  // it and the context
  }
  CHECK(seen(gpu).find("device memory outlives its context") != std::string::npos);
  CHECK(gpu.live_objects() == 1);  // what the double's end would report
  const Retained retained(gpu);
  CHECK(retained.driver->memory_free(left) == result_success);
}

#ifdef __linux__
TEST_CASE("the double sees what becomes of memory that is registered") {
  DriverDouble gpu;
  const Retained retained(gpu);
  const Driver& driver = *retained.driver;
  std::optional<Pages> pages(4096);
  REQUIRE(!pages->empty());
  std::byte* const memory = pages->data();
  CHECK(driver.host_unregister(memory) != result_success);
  CHECK(seen(gpu).find("not registered") != std::string::npos);
  CHECK(driver.host_register(memory, 4096, host_memory_portable) != result_success);
  REQUIRE(driver.host_register(memory, 4096, 0) == result_success);
  CHECK(gpu.live_objects() == 2);  // it and the context
  CHECK(driver.host_register(memory + 1024, 1024, 0) != result_success);
  CHECK(seen(gpu).find("pinned already") != std::string::npos);
  CHECK(driver.host_unregister(memory + 1024) != result_success);
  CHECK(seen(gpu).find("not registered") != std::string::npos);
  CHECK(driver.host_unregister(memory) == result_success);
  CHECK(seen(gpu).empty());
  CHECK(driver.host_unregister(memory) != result_success);
  CHECK(seen(gpu).find("unregistered already") != std::string::npos);

  REQUIRE(driver.host_register(memory, 4096, 0) == result_success);
  pages.reset();
  CHECK(driver.host_unregister(memory) == result_success);
  CHECK(seen(gpu).find("freed while it was registered") != std::string::npos);
  CHECK(driver.host_register(memory, 4096, 0) != result_success);
  CHECK(gpu.live_objects() == 1);
}

TEST_CASE("the double sees that memory is unregistered while a copy from it is on its way") {
  DriverDouble gpu;
  const Retained retained(gpu);
  const Driver& driver = *retained.driver;
  constexpr size_t bytes = size_t{32} << 20;
  const Pages pages(bytes);
  DevicePointer target = 0;
  Stream stream = nullptr;
  REQUIRE(driver.memory_allocate(&target, bytes) == result_success);
  REQUIRE(driver.stream_create(&stream, stream_non_blocking) == result_success);
  REQUIRE(driver.host_register(pages.data(), bytes, 0) == result_success);
  for (int i = 0; i < 8; ++i) driver.copy_to_device(target, pages.data(), bytes, stream);
  CHECK(driver.host_unregister(pages.data()) == result_success);
  CHECK(seen(gpu).find("unregistered that a stream still uses") != std::string::npos);
  driver.stream_destroy(stream);
  driver.memory_free(target);
}

TEST_CASE("the double sees registered memory that outlives its context") {
  DriverDouble gpu;
  const Pages pages(4096);
  {
    const Retained retained(gpu);
    REQUIRE(retained.driver->host_register(pages.data(), 4096, 0) == result_success);
  }
  CHECK(seen(gpu).find("registered memory outlives its context") != std::string::npos);
  CHECK(gpu.live_objects() == 1);
  const Retained retained(gpu);
  CHECK(retained.driver->host_unregister(pages.data()) == result_success);
}
#endif

namespace {

// A stream and memory of all kinds, which a test gives back itself.
struct Taken : Retained {
  static constexpr size_t bytes = 4096;
  explicit Taken(const DriverDouble& gpu) : Retained(gpu) {
    REQUIRE(driver->memory_allocate(&memory, bytes) == result_success);
    REQUIRE(driver->host_allocate(&pinned, bytes, 0) == result_success);
    REQUIRE(driver->stream_create(&stream, stream_non_blocking) == result_success);
  }
  ~Taken() {
    CHECK(driver->host_free(pinned) == result_success);
    CHECK(driver->memory_free(memory) == result_success);
    CHECK(driver->stream_destroy(stream) == result_success);
  }
  DevicePointer memory = 0;
  void* pinned = nullptr;
  Stream stream = nullptr;
};

}  // namespace

TEST_CASE("the double sees that memory is freed while a copy that uses it is on its way, after a failure too") {
  DriverDouble gpu;
  gpu.put_work_off(true);
  for (const bool failed : {false, true}) {
    {
      const Taken taken(gpu);
      if (failed) {
        DevicePointer other = 0;
        gpu.fail_call(1, 999);
        REQUIRE(taken.driver->memory_allocate(&other, 100) == 999);
      }
      REQUIRE(taken.driver->copy_to_device(taken.memory, taken.pinned, Taken::bytes, taken.stream) == result_success);
    }
    CHECK(seen(gpu).find("memory is freed that a stream still uses") != std::string::npos);
    {
      const Taken taken(gpu);
      REQUIRE(taken.driver->copy_to_device(taken.memory, taken.pinned, Taken::bytes, taken.stream) == result_success);
      REQUIRE(taken.driver->stream_synchronize(taken.stream) == result_success);
    }
    CHECK(seen(gpu).empty());
    gpu.fail_none();
  }
  const Taken taken(gpu);
  // A stream that is destroyed goes on with what it has.
  Stream destroyed = nullptr;
  REQUIRE(taken.driver->stream_create(&destroyed, stream_non_blocking) == result_success);
  REQUIRE(taken.driver->copy_to_device(taken.memory, taken.pinned, Taken::bytes, destroyed) == result_success);
  REQUIRE(taken.driver->stream_destroy(destroyed) == result_success);
  DevicePointer other = 0;
  REQUIRE(taken.driver->memory_allocate(&other, Taken::bytes) == result_success);
  CHECK(taken.driver->memory_free(other) == result_success);  // and waits for all that there is
  CHECK(seen(gpu).empty());
  REQUIRE(taken.driver->copy_to_device(taken.memory, taken.pinned, Taken::bytes, taken.stream) == result_success);
  gpu.fail_call(1, 999);
  CHECK(taken.driver->stream_synchronize(taken.stream) == 999);  // nobody can know what is still used
}

TEST_CASE("a lost context fails every call in it until it is made anew, and takes back what it gave") {
  DriverDouble gpu(std::vector<SimulatedDevice>(2));
  const Retained other(gpu, 1);
  {
    const Retained retained(gpu);
    const Driver& driver = *retained.driver;
    DevicePointer memory = 0;
    Stream stream = nullptr, second = nullptr;
    REQUIRE(driver.memory_allocate(&memory, 100) == result_success);
    REQUIRE(driver.stream_create(&stream, stream_non_blocking) == result_success);
    REQUIRE(driver.stream_create(&second, stream_non_blocking) == result_success);
    gpu.lose(retained.context, 719);
    char data[4] = {};
    CHECK(driver.stream_query(stream) == 719);
    CHECK(driver.stream_query(second) == 719);
    CHECK(driver.copy_to_host(data, memory, sizeof(data), stream) == 719);
    CHECK(driver.memory_allocate(&memory, 100) == 719);
    CHECK(driver.memory_free(memory) == 719);
    CHECK(driver.stream_destroy(stream) == 719);
    CHECK(driver.stream_destroy(second) == 719);
  }
  CHECK(gpu.live_objects() == 1);  // the other device's context, which works
  DevicePointer memory = 0;
  REQUIRE(other.driver->memory_allocate(&memory, 100) == result_success);
  CHECK(other.driver->memory_free(memory) == result_success);
  const Retained anew(gpu);
  REQUIRE(anew.driver->memory_allocate(&memory, 100) == result_success);
  CHECK(anew.driver->memory_free(memory) == result_success);
}

TEST_CASE("the double keeps what is captured for later, and sees who spoils a capture") {
  DriverDouble gpu;
  const Taken taken(gpu);
  const Driver& driver = *taken.driver;
  Stream const stream = gpu.create_stream(taken.context);
  CaptureStatus status{};
  CHECK(driver.capture_status(stream, &status) == result_success);
  CHECK(status == capture_none);
  gpu.begin_capture(stream);
  CHECK(driver.capture_status(stream, &status) == result_success);
  CHECK(status != capture_none);
  std::memset(taken.pinned, 0x11, Taken::bytes);
  REQUIRE(driver.copy_to_device(taken.memory, taken.pinned, 1, stream) == result_success);
  CHECK(driver.stream_synchronize(taken.stream) != result_success);
  CHECK(seen(gpu).find("stream_synchronize while a stream is capturing") != std::string::npos);
  CaptureMode mode = capture_relaxed;
  REQUIRE(driver.capture_mode(&mode) == result_success);
  CHECK(driver.stream_query(taken.stream) == result_success);
  CHECK(seen(gpu).empty());
  CHECK(driver.stream_query(stream) != result_success);
  CHECK(seen(gpu).find("stream_query of a stream that is capturing") != std::string::npos);
  REQUIRE(driver.capture_mode(&mode) == result_success);
  CHECK(mode == capture_relaxed);
  const DriverDouble::Graph graph = gpu.end_capture(stream);

  unsigned char byte = 0;
  const auto read = [&] {
    REQUIRE(driver.copy_to_host(&byte, taken.memory, 1, stream) == result_success);
    REQUIRE(driver.stream_synchronize(stream) == result_success);
    return byte;
  };
  CHECK(read() != 0x11);
  for (const unsigned char value : {0x22, 0x33}) {
    std::memset(taken.pinned, value, Taken::bytes);
    gpu.replay(graph, stream);
    CHECK(read() == value);
  }
}

TEST_CASE("the double knows the most memory that was taken, and tells before any goes back") {
  DriverDouble gpu;
  const Retained retained(gpu);
  DevicePointer first = 0, second = 0;
  REQUIRE(retained.driver->memory_allocate(&first, 300) == result_success);
  REQUIRE(retained.driver->memory_allocate(&second, 200) == result_success);
  size_t live = 0;
  gpu.on_release([&] { live = gpu.live_objects(); });
  CHECK(retained.driver->memory_free(first) == result_success);
  CHECK(live == 3);  // both and the context
  CHECK(retained.driver->memory_free(second) == result_success);
  CHECK(live == 2);
  CHECK(gpu.most_memory(0) == 500);
}

TEST_CASE("the double sees contexts that are missing, wrong, or out of balance") {
  DriverDouble gpu(std::vector<SimulatedDevice>(2));
  const std::shared_ptr<const Driver> driver = gpu.driver();
  DevicePointer memory = 0;
  Stream stream = nullptr;
  Context popped = nullptr;
  CHECK(driver->memory_allocate(&memory, 100) != result_success);
  CHECK(seen(gpu).find("memory_allocate without a current context") != std::string::npos);
  CHECK(driver->context_pop(&popped) != result_success);
  CHECK(seen(gpu).find("was not pushed") != std::string::npos);
  {
    const Retained first(gpu);
    REQUIRE(driver->stream_create(&stream, stream_non_blocking) == result_success);
    {
      const Retained second(gpu, 1);
      CHECK(driver->stream_synchronize(stream) != result_success);
      CHECK(seen(gpu).find("in another's context") != std::string::npos);
    }
    CHECK(driver->stream_synchronize(stream) == result_success);
    CHECK(driver->stream_destroy(stream) == result_success);
    CHECK(driver->stream_synchronize(nullptr) != result_success);
    CHECK(seen(gpu).find("on the default stream") != std::string::npos);
    std::thread([&] { driver->context_push(first.context); }).join();
    CHECK(seen(gpu).find("did not pop") != std::string::npos);
  }
  CHECK(seen(gpu).empty());
}

TEST_CASE("the double sees addresses outside of the device's memory") {
  DriverDouble gpu;
  const Retained retained(gpu);
  const Driver& driver = *retained.driver;
  DevicePointer memory = 0;
  Stream stream = nullptr;
  REQUIRE(driver.memory_allocate(&memory, 100) == result_success);
  REQUIRE(driver.stream_create(&stream, stream_non_blocking) == result_success);
  char data[128] = {};
  CHECK(driver.copy_to_device(memory, data, 100, stream) == result_success);
  CHECK(driver.copy_to_device(memory, data, 101, stream) != result_success);
  CHECK(driver.copy_to_host(data, memory + 99, 2, stream) != result_success);
  CHECK(driver.fill_bytes(reinterpret_cast<uintptr_t>(data), 0, 4, stream) != result_success);
  CHECK(gpu.take_violations().size() == 3);
  CHECK(driver.stream_synchronize(stream) == result_success);
  driver.stream_destroy(stream);
  driver.memory_free(memory);
}

TEST_CASE("the double keeps books of mapped memory: who reaches it, and in which order it goes back") {
  DriverDouble gpu(std::vector<SimulatedDevice>(3));
  gpu.set_path(0, 2, false, false);
  const Retained retained(gpu);
  const Driver& driver = *retained.driver;
  Stream stream = nullptr;
  REQUIRE(driver.stream_create(&stream, stream_non_blocking) == result_success);
  DeviceNumber devices[3] = {};
  for (int i = 0; i < 3; ++i) REQUIRE(driver.device_get(&devices[i], i) == result_success);
  MemoryProperties properties{};
  properties.type = memory_pinned_on_device;
  properties.location = {memory_location_device, devices[2]};
  size_t size = 0;
  REQUIRE(driver.memory_granularity(&size, &properties, granularity_recommended) == result_success);
  DevicePointer range = 0;
  PhysicalMemory memory = 0;
  CHECK(driver.address_reserve(&range, size + 1, size, 0, 0) != result_success);
  REQUIRE(driver.address_reserve(&range, 2 * size, size, 0, 0) == result_success);
  CHECK(driver.memory_create(&memory, size - 1, &properties, 0) != result_success);
  REQUIRE(driver.memory_create(&memory, size, &properties, 0) == result_success);
  CHECK(gpu.live_objects() == 4);  // and the context and the stream
  CHECK(driver.memory_map(range + 1, size, 0, memory, 0) != result_success);
  CHECK(driver.memory_map(range + 2 * size, size, 0, memory, 0) != result_success);
  REQUIRE(driver.memory_map(range + size, size, 0, memory, 0) == result_success);
  CHECK(driver.memory_map(range, size, 0, memory, 0) != result_success);  // it is mapped

  // Nobody reaches it before it is said who may, and no device without a path ever does.
  CHECK(driver.fill_bytes(range + size, 1, 4, stream) != result_success);
  CHECK(seen(gpu).find("lies in no memory of the device") != std::string::npos);
  const MemoryAccess access[] = {{{memory_location_device, devices[0]}, memory_access_read_write},
                                 {{memory_location_device, devices[1]}, memory_access_read_write}};
  CHECK(driver.memory_set_access(range + size, size, access, 2) != result_success);
  gpu.set_path(0, 2, true, true);
  CHECK(driver.memory_set_access(range + size, size, access, 2) == result_success);
  CHECK(driver.fill_bytes(range + size, 1, size, stream) == result_success);
  CHECK(driver.fill_bytes(range + size, 1, size + 1, stream) != result_success);
  CHECK(driver.fill_bytes(range, 1, 4, stream) != result_success);
  CHECK(gpu.take_violations().size() == 2);
  REQUIRE(driver.stream_synchronize(stream) == result_success);

  CHECK(driver.address_free(range, 2 * size) != result_success);
  CHECK(seen(gpu).find("where memory is mapped") != std::string::npos);
  CHECK(driver.memory_release(memory) != result_success);
  CHECK(seen(gpu).find("is mapped") != std::string::npos);
  CHECK(driver.memory_unmap(range, size) != result_success);
  CHECK(seen(gpu).find("not mapped") != std::string::npos);
  CHECK(driver.memory_unmap(range + size, size) == result_success);
  CHECK(driver.memory_release(memory) == result_success);
  CHECK(driver.memory_release(memory) != result_success);
  CHECK(seen(gpu).find("released already") != std::string::npos);
  CHECK(driver.address_free(range, 2 * size) == result_success);
  CHECK(driver.address_free(range, 2 * size) != result_success);
  CHECK(seen(gpu).find("freed already") != std::string::npos);
  driver.stream_destroy(stream);
}

#ifdef __linux__
TEST_CASE("the double hands memory on, in every kind of handle, and keeps it until the last who has it gives it back") {
  DriverDouble gpu(std::vector<SimulatedDevice>{{.fabric_handles = true}});
  const Retained retained(gpu);
  const Driver& driver = *retained.driver;
  Stream stream = nullptr;
  REQUIRE(driver.stream_create(&stream, stream_non_blocking) == result_success);
  for (const int type : {memory_handle_posix, memory_handle_fabric}) {
    MemoryProperties properties{};
    properties.type = memory_pinned_on_device;
    properties.location = {memory_location_device, retained.device};
    properties.handle_types = type;
    size_t size = 0;
    REQUIRE(driver.memory_granularity(&size, &properties, granularity_recommended) == result_success);
    PhysicalMemory memory[2] = {};
    REQUIRE(driver.memory_create(&memory[0], size, &properties, 0) == result_success);
    union {
      int descriptor;
      FabricHandle fabric;
    } handle{};
    const int other = memory_handle_posix + memory_handle_fabric - type;
    CHECK(driver.memory_export(&handle, memory[0], other, 0) != result_success);  // it was not asked for
    REQUIRE(driver.memory_export(&handle, memory[0], type, 0) == result_success);
    const auto passed = [&] {
      return type == memory_handle_fabric ? static_cast<void*>(&handle.fabric)
                                          : reinterpret_cast<void*>(static_cast<intptr_t>(handle.descriptor));
    };
    REQUIRE(driver.memory_import(&memory[1], passed(), type) == result_success);
    const size_t before = gpu.live_objects();
    if (type == memory_handle_posix) {
      CHECK(::close(handle.descriptor) == 0);
      CHECK(gpu.live_objects() == before - 1);
      CHECK(driver.memory_import(&memory[1], passed(), type) != result_success);
    }
    DevicePointer ranges[2] = {};
    const MemoryAccess access{{memory_location_device, retained.device}, memory_access_read_write};
    for (int i = 0; i < 2; ++i) {
      REQUIRE(driver.address_reserve(&ranges[i], size, size, 0, 0) == result_success);
      REQUIRE(driver.memory_map(ranges[i], size, 0, memory[i], 0) == result_success);
      REQUIRE(driver.memory_set_access(ranges[i], size, &access, 1) == result_success);
    }
    const auto byte_at = [&](DevicePointer address) {
      unsigned char byte = 0;
      REQUIRE(driver.copy_to_host(&byte, address, 1, stream) == result_success);
      REQUIRE(driver.stream_synchronize(stream) == result_success);
      return byte;
    };
    REQUIRE(driver.fill_bytes(ranges[0], 0x17, size, stream) == result_success);
    CHECK(byte_at(ranges[1] + size - 1) == 0x17);
    // Who made it goes first.
    CHECK(driver.memory_unmap(ranges[0], size) == result_success);
    CHECK(driver.memory_release(memory[0]) == result_success);
    CHECK(byte_at(ranges[1]) == 0x17);
    gpu.set_free_memory(0, 0);
    CHECK(driver.memory_create(&memory[0], size, &properties, 0) == result_out_of_memory);
    CHECK(driver.memory_unmap(ranges[1], size) == result_success);
    CHECK(driver.memory_release(memory[1]) == result_success);
    REQUIRE(driver.memory_create(&memory[0], size, &properties, 0) == result_success);
    CHECK(driver.memory_release(memory[0]) == result_success);
    for (const DevicePointer range : ranges) CHECK(driver.address_free(range, size) == result_success);
  }
  driver.stream_destroy(stream);
}
#endif

TEST_CASE("the double fails the call that it is told to, and gives back nevertheless") {
  DriverDouble gpu;
  const Retained retained(gpu);
  const Driver& driver = *retained.driver;
  DevicePointer memory = 0;
  gpu.fail_call(2, result_out_of_memory);
  REQUIRE(driver.memory_allocate(&memory, 100) == result_success);
  DevicePointer other = 0;
  CHECK(driver.memory_allocate(&other, 100) == result_out_of_memory);
  CHECK(other == 0);
  CHECK(gpu.failed_call() == "memory_allocate");
  CHECK(gpu.call_count() == 2);
  gpu.fail_call(1, 999, true);
  CHECK(driver.memory_free(memory) == 999);
  CHECK(driver.memory_allocate(&other, 100) == 999);
  gpu.fail_none();
  CHECK(gpu.live_objects() == 1);
}
