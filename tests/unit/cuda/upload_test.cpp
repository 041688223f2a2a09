// Weights on their way to a simulated GPU: they arrive whole, and the memory that they pass through is no more than
// they need.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
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
  std::memcpy(bytes.data(), words.data(), count);
  return bytes;
}

// Uploads tensors of these sizes, one behind the other, each at a multiple of 256 bytes, and reads them back.
class Upload {
 public:
  explicit Upload(DriverDouble& gpu, std::vector<size_t> sizes)
      : context_(std::make_shared<DeviceContext>(gpu.driver(), device_of(gpu))), sizes_(std::move(sizes)) {
    for (const size_t size : sizes_) bytes_ += (size + 255) / 256 * 256;
    weights_ = random_bytes(bytes_);
    scope_ = std::make_unique<ContextScope>(*context_);
    REQUIRE(driver().memory_allocate(&target_, bytes_ + guard) == result_success);
    stream_ = std::make_unique<StreamHandle>(context_, nullptr);
    driver().check(driver().fill_bytes(target_, 0x5a, bytes_ + guard, stream_->get()), "poison");
    driver().check(driver().stream_synchronize(stream_->get()), "wait");
  }
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;
  ~Upload() {
    driver().memory_free(target_);
    stream_.reset();
    scope_.reset();
  }

  // From memory, or from a file whose first byte is the first weight's.
  void run(uint32_t threads, const base::MappedFile* file = nullptr) {
    const std::byte* from = file != nullptr ? file->bytes().data() : weights_.data();
    std::vector<Transfer> transfers;
    uint64_t offset = 0;
    for (const size_t size : sizes_) {
      transfers.push_back({{from + offset, size}, target_ + offset, file});
      offset += (size + 255) / 256 * 256;
    }
    upload(context_, transfers, threads);
  }
  const std::vector<std::byte>& weights() const { return weights_; }

  // Compares all that lies in the device's memory, also between tensors and behind the last.
  void check() const {
    std::vector<std::byte> seen(bytes_ + guard);
    driver().check(driver().copy_to_host(seen.data(), target_, seen.size(), stream_->get()), "read");
    driver().check(driver().stream_synchronize(stream_->get()), "wait");
    std::vector<std::byte> expected(bytes_ + guard, std::byte{0x5a});
    size_t offset = 0;
    for (const size_t size : sizes_) {
      std::copy_n(weights_.begin() + static_cast<ptrdiff_t>(offset), size,
                  expected.begin() + static_cast<ptrdiff_t>(offset));
      offset += (size + 255) / 256 * 256;
    }
    CHECK(seen == expected);
  }

 private:
  static constexpr size_t guard = 4096;
  static DeviceNumber device_of(const DriverDouble& gpu) {
    DeviceNumber device = 0;
    gpu.driver()->check(gpu.driver()->device_get(&device, 0), "get the device");
    return device;
  }
  const Driver& driver() const { return context_->driver(); }

  std::shared_ptr<const DeviceContext> context_;
  std::vector<size_t> sizes_;
  size_t bytes_ = 0;
  std::vector<std::byte> weights_;
  std::unique_ptr<ContextScope> scope_;
  DevicePointer target_ = 0;
  std::unique_ptr<StreamHandle> stream_;
};

const std::vector<std::vector<size_t>> shapes = {
    {1},
    {4096, 1, 300},
    {megabyte, megabyte},
    {4096, 5 * megabyte + 12, 256, 3 * megabyte, 700},
    {13 * megabyte + 1, 0, 9 * megabyte},
    std::vector<size_t>(200, 1000),
};

}  // namespace

TEST_CASE("weights of every size arrive whole, by any number of threads, from memory and from files") {
  const mkrt::test::TemporaryFolder folder;
  for (const std::vector<size_t>& sizes : shapes) {
    for (const uint32_t threads : {0, 1, 2, 7, 64}) {
      CAPTURE(sizes.front());
      CAPTURE(threads);
      DriverDouble gpu;
      Upload from_memory(gpu, sizes);
      from_memory.run(threads);
      from_memory.check();
      Upload from_file(gpu, sizes);
      const std::string path = folder.path("weights");
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(from_file.weights().data()),
                 static_cast<std::streamsize>(from_file.weights().size()));
      const base::MappedFile file(path);
      from_file.run(threads, &file);
      from_file.check();
    }
  }
}

TEST_CASE("nothing to upload asks nothing of the driver") {
  DriverDouble gpu;
  DeviceNumber device = 0;
  REQUIRE(gpu.driver()->device_get(&device, 0) == result_success);
  const auto context = std::make_shared<DeviceContext>(gpu.driver(), device);
  gpu.fail_none();
  const Transfer nothing;
  upload(context, {}, 4);
  upload(context, {&nothing, 1}, 4);
  CHECK(gpu.call_count() == 0);
}

TEST_CASE("memory is pinned for what there is to upload, and never more than two pieces of 4 MB a thread") {
  const auto pinned = [](std::vector<size_t> sizes, uint32_t threads) {
    DriverDouble gpu;
    Upload upload(gpu, std::move(sizes));
    upload.run(threads);
    return gpu.most_pinned_bytes();
  };
  CHECK(pinned({1}, 8) == 1);
  CHECK(pinned({4096, 300, 4096}, 8) <= 2 * 4096);
  CHECK(pinned({megabyte / 2}, 8) == megabyte / 2);
  CHECK(pinned({3 * megabyte}, 1) <= 3 * megabyte + 4096);
  CHECK(pinned({64 * megabyte}, 1) == 8 * megabyte);
  CHECK(pinned({64 * megabyte}, 3) <= 24 * megabyte);
  // Pieces of 1 MB, so that no thread's place stays empty.
  CHECK(pinned({8 * megabyte}, 64) <= 16 * megabyte);
}

TEST_CASE("where memory cannot be registered, the driver's own is used") {
  const std::vector<size_t> sizes = {6 * megabyte, 100};
  for (const char* missing : {"host_register", "host_unregister"}) {
    CAPTURE(missing);
    DriverDouble gpu;
    gpu.forget(missing);
    Upload upload(gpu, sizes);
    upload.run(2);
    upload.check();
    CHECK(gpu.most_pinned_bytes() > 0);
  }
  DriverDouble gpu;
  Upload upload(gpu, sizes);
  for (uint64_t number = 1;; ++number) {
    gpu.fail_call(number, result_out_of_memory);
    try {
      upload.run(1);
    } catch (const base::Failure& failure) {
      CHECK(failure.status() == MKRT_ERROR_OUT_OF_MEMORY);
      CHECK(gpu.failed_call() != "host_register");
      continue;
    }
    const std::string failed = gpu.failed_call();
    gpu.fail_none();
    if (failed.empty()) break;
    upload.check();
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
