// Weights on their way to a simulated GPU: they arrive whole, and the memory that they pass through is no more than
// they need.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/failure.hpp"
#include "cuda/pages.hpp"
#include "cuda/upload.hpp"
#include "driver_double.hpp"
#include "temporary_folder.hpp"

using namespace mkrt;
using namespace mkrt::cuda;
using namespace mkrt::cuda::test;

namespace {

constexpr size_t megabyte = size_t{1} << 20;

std::vector<std::byte> random_bytes(size_t count) {
  std::vector<uint32_t> words(count / sizeof(uint32_t) + 1);
  std::mt19937 random(std::random_device{}());
  std::generate(words.begin(), words.end(), std::ref(random));
  std::vector<std::byte> bytes(count);
  if (count > 0) std::memcpy(bytes.data(), words.data(), count);
  return bytes;
}

// Blocks that are small, so that a few megabytes pass through every place many times.
constexpr UploadShape small_blocks{.block_bytes = 65'536, .slice_bytes = 4096, .place_count = 2};

// Tensors of these sizes on their way to a device, one behind the other, each at a multiple of 256 bytes.
class Weights {
 public:
  Weights(DriverDouble& gpu, const std::vector<size_t>& sizes, uint64_t budget = 0,
          const DeviceAllocator& allocator = {})
      : context_(std::make_shared<DeviceContext>(gpu.driver(), device_of(gpu))),
        heap_(std::make_shared<DeviceHeap>(context_, budget, allocator)) {
    for (const size_t size : sizes) {
      parts_.push_back({bytes_, size});
      bytes_ += (size + 255) / 256 * 256;
    }
    content_ = random_bytes(bytes_);
  }

  // From memory, or from a file that holds content().
  Uploaded upload(uint32_t threads, const base::MappedFile* file = nullptr, const UploadShape& shape = {}) {
    const std::byte* from = file != nullptr ? file->bytes().data() : content_.data();
    std::vector<Transfer> transfers;
    for (const Part& part : parts_) transfers.push_back({part.offset, {from + part.offset, part.size}, file});
    const ContextScope scope(*context_);
    context_->driver().check(scope.result(), "make the device's context current");
    return cuda::upload(heap_, bytes_, transfers, threads, shape);
  }
  const std::vector<std::byte>& content() const { return content_; }

  // Compares all of the device's memory: tensors, and zeros between them.
  void check(const DeviceMemory& memory) const {
    CHECK(memory.size() == bytes_);
    const ContextScope scope(*context_);
    const StreamHandle stream(context_, nullptr);
    const Driver& driver = context_->driver();
    std::vector<std::byte> seen(bytes_, std::byte{0x5a});
    driver.check(driver.copy_to_host(seen.data(), memory.address(), bytes_, stream.get()), "read");
    driver.check(driver.stream_synchronize(stream.get()), "wait");
    std::vector<std::byte> expected(bytes_);
    for (const Part& part : parts_) {
      std::copy_n(content_.data() + part.offset, part.size, expected.data() + part.offset);
    }
    CHECK(seen == expected);
  }

 private:
  struct Part {
    size_t offset, size;
  };
  static DeviceNumber device_of(const DriverDouble& gpu) {
    DeviceNumber device = 0;
    gpu.driver()->check(gpu.driver()->device_get(&device, 0), "get the device");
    return device;
  }

  std::shared_ptr<const DeviceContext> context_;
  std::shared_ptr<DeviceHeap> heap_;
  std::vector<Part> parts_;
  size_t bytes_ = 0;
  std::vector<std::byte> content_;
};

const std::vector<std::vector<size_t>> tensors = {
    {1},
    {4096, 1, 300},
    {megabyte, megabyte},
    {4096, 2 * megabyte + 12, 256, megabyte, 700},
    {7 * megabyte + 1, 0, 2 * megabyte},
    std::vector<size_t>(200, 1000),
};

}  // namespace

TEST_CASE("weights of every size arrive whole, by any number of threads, from memory and from files") {
  const mkrt::test::TemporaryFolder folder;
  const std::vector<UploadShape> shapes = {{}, small_blocks, {megabyte, megabyte, 1}};
  for (const std::vector<size_t>& sizes : tensors) {
    DriverDouble gpu;
    Weights weights(gpu, sizes);
    const std::string path = folder.path("weights");
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(weights.content().data()),
               static_cast<std::streamsize>(weights.content().size()));
    const base::MappedFile file(path);
    for (const UploadShape& shape : shapes) {
      for (const uint32_t threads : {0, 1, 2, 7, 64}) {
        CAPTURE(sizes.front());
        CAPTURE(shape.block_bytes);
        CAPTURE(threads);
        weights.check(weights.upload(threads, nullptr, shape).memory);
        weights.check(weights.upload(threads, &file, shape).memory);
      }
    }
  }
}

TEST_CASE("what an upload tells of its time is in order") {
  DriverDouble gpu;
  Weights weights(gpu, {6 * megabyte});
  for (const uint32_t threads : {1, 4}) {
    const UploadTimes times = weights.upload(threads, nullptr, small_blocks).times;
    CHECK(times.allocated > 0);
    CHECK(times.first_copy >= times.allocated);
    CHECK(times.all_places >= times.first_copy);
    CHECK(times.last_copy >= times.all_places);
    CHECK(times.end >= times.last_copy);
    CHECK(times.reading > 0);
    CHECK(times.reading <= threads * times.end);
  }
}

TEST_CASE("nothing to upload asks nothing of the driver") {
  DriverDouble gpu;
  for (const std::vector<size_t>& sizes : {std::vector<size_t>{}, {0, 0}}) {
    Weights weights(gpu, sizes);
    gpu.fail_none();
    CHECK(weights.upload(4).memory.size() == 0);
    CHECK(gpu.call_count() == 2);  // the test's own: it makes the context current, and the one before
  }
}

TEST_CASE("memory is pinned for what there is to upload, and never more than 48 MB") {
  const auto pinned = [](const std::vector<size_t>& sizes, uint32_t threads) {
    DriverDouble gpu;
    Weights(gpu, sizes).upload(threads);
    return gpu.most_pinned_bytes();
  };
  CHECK(pinned({1}, 8) == 256);
  CHECK(pinned({4096, 300, 4096}, 8) == 4096 + 512 + 4096);
  CHECK(pinned({3 * megabyte}, 1) == 3 * megabyte);
  CHECK(pinned({64 * megabyte}, 1) == 32 * megabyte);
  CHECK(pinned({64 * megabyte}, 3) == 48 * megabyte);
  CHECK(pinned({64 * megabyte}, 64) == 48 * megabyte);
}

TEST_CASE("the device memory is allocated once, by the calling thread, while the others read") {
  struct Application {
    DriverDouble& gpu;
    std::thread::id thread{};
    DevicePointer address = 0;
    int allocations = 0, releases = 0;
  };
  DriverDouble gpu;
  const Context context = gpu.create_context(0);
  Application application{gpu};
  application.address = gpu.allocate(context, 20 * megabyte);
  DeviceAllocator allocator;
  allocator.user_data = &application;
  allocator.allocate = [](void* user_data, uint32_t, uint64_t, uint64_t) {
    auto* self = static_cast<Application*>(user_data);
    ++self->allocations;
    self->thread = std::this_thread::get_id();
    // A second thread's context, and its stream.
    while (self->gpu.call_count() < 4) std::this_thread::yield();
    return uint64_t{self->address};
  };
  allocator.release = [](void* user_data, uint32_t, uint64_t, uint64_t) {
    ++static_cast<Application*>(user_data)->releases;
  };
  {
    gpu.fail_none();
    Weights weights(gpu, {20 * megabyte}, 0, allocator);
    const Uploaded uploaded = weights.upload(3);
    weights.check(uploaded.memory);
    CHECK(application.allocations == 1);
    CHECK(application.thread == std::this_thread::get_id());
    CHECK(application.releases == 0);
  }
  CHECK(application.releases == 1);
}

TEST_CASE("without device memory nothing is uploaded, whatever was read by then") {
  DriverDouble gpu;
  Weights weights(gpu, {40 * megabyte}, 30 * megabyte);
  for (const uint32_t threads : {1, 8}) {
    try {
      weights.upload(threads);
      FAIL("nothing was thrown");
    } catch (const base::Failure& failure) {
      CHECK(failure.status() == MKRT_ERROR_OUT_OF_MEMORY);
      CHECK(failure.message().find(" bytes are needed for the weights") != std::string::npos);
    }
    CHECK(gpu.live_objects() == 1);  // the context
  }
}

#ifndef _WIN32  // which lets nobody shorten a mapped file
TEST_CASE("a file that became shorter ends the upload while earlier blocks are on their way") {
  const mkrt::test::TemporaryFolder folder;
  DriverDouble gpu;
  Weights weights(gpu, {4 * megabyte});
  const std::string path = folder.path("weights");
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(weights.content().data()),
             static_cast<std::streamsize>(weights.content().size()));
  const base::MappedFile file(path);
  std::filesystem::resize_file(path, 3 * megabyte);
  for (int round = 0; round < 20; ++round) {
    for (const uint32_t threads : {1, 4}) {
      try {
        weights.upload(threads, &file, {.block_bytes = megabyte, .slice_bytes = megabyte / 4, .place_count = 4});
        FAIL("nothing was thrown");
      } catch (const base::Failure& failure) {
        CHECK(failure.status() == MKRT_ERROR_FILE);
      }
      CHECK(gpu.live_objects() == 1);  // the context
    }
  }
}
#endif

TEST_CASE("where memory cannot be registered, the driver's own is used") {
  const std::vector<size_t> sizes = {6 * megabyte, 100};
  for (const char* missing : {"host_register", "host_unregister"}) {
    CAPTURE(missing);
    DriverDouble gpu;
    gpu.forget(missing);
    Weights weights(gpu, sizes);
    weights.check(weights.upload(2).memory);
    CHECK(gpu.most_pinned_bytes() > 0);
  }
}

TEST_CASE("whichever call fails, the upload of many blocks ends with its status and gives everything back") {
  DriverDouble gpu;
  Weights weights(gpu, {2 * megabyte, 100, megabyte});
  const std::set<std::string> not_needed = {"host_register", "host_unregister", "context_push",
                                            "context_pop",   "memory_free",     "stream_destroy"};
  for (const uint32_t threads : {1, 3}) {
    for (const bool all_after : {false, true}) {
      std::set<std::string> failed_calls;
      for (uint64_t number = 1;; ++number) {
        CAPTURE(threads);
        CAPTURE(all_after);
        CAPTURE(number);
        Uploaded uploaded;
        gpu.fail_call(number, result_out_of_memory, all_after);
        try {
          uploaded = weights.upload(threads, nullptr, small_blocks);
        } catch (const base::Failure& failure) {
          CHECK(failure.status() == MKRT_ERROR_OUT_OF_MEMORY);
          CHECK(failure.driver_code() == result_out_of_memory);
        }
        const std::string call = gpu.failed_call();
        CAPTURE(call);
        gpu.fail_none();
        if (uploaded.memory.size() != 0) {
          CHECK((call.empty() || not_needed.count(call) != 0));
          weights.check(uploaded.memory);
          uploaded = {};
        }
        CHECK(gpu.live_objects() == 1);  // the context
        if (call.empty()) break;
        failed_calls.insert(call);
      }
      if (threads > 1) continue;  // which call has which number is chance
      for (const char* call : {"memory_allocate", "stream_create", "host_register", "copy_to_device",
                               "stream_synchronize", "host_unregister", "stream_destroy", "context_push"}) {
        CHECK(failed_calls.count(call) == 1);
      }
    }
  }
}

TEST_CASE("pages are aligned, zero and whole, and can be moved") {
  for (const size_t bytes : {size_t{1}, size_t{4096}, megabyte, 2 * megabyte, 4 * megabyte, 5 * megabyte + 3}) {
    CAPTURE(bytes);
    Pages pages(bytes);
    REQUIRE(!pages.empty());
    CHECK(pages.size() == bytes);
    CHECK(reinterpret_cast<uintptr_t>(pages.data()) % 4096 == 0);
    CHECK(std::all_of(pages.data(), pages.data() + bytes, [](std::byte byte) { return byte == std::byte{0}; }));
    std::memset(pages.data(), 1, bytes);
    const std::byte* const data = pages.data();
    const Pages moved = std::move(pages);
    CHECK(moved.data() == data);
    CHECK(moved.data()[bytes - 1] == std::byte{1});
  }
#ifdef __linux__
  CHECK(reinterpret_cast<uintptr_t>(Pages(4 * megabyte).data()) % (2 * megabyte) == 0);
#endif
  CHECK(Pages(SIZE_MAX / 2).empty());
}
