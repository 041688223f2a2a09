// Runs the tests where there are the MKRT_TEST_DEVICES GPUs that they need, and says why not where there are fewer.
// CTest counts return code 77 as skipped; where MKRT_REQUIRE_GPU says that the machine has so many, it fails instead.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "gpu.hpp"
#include "kernel_images.hpp"

namespace mkrt::test {

std::string reason_to_skip() {
  if (kernel_images().empty()) return "this build has no kernels: there was no nvcc";
  try {
    mkrt::RankOptions rank;
    rank.kind = MKRT_DEVICE_CUDA;
    const mkrt::Runtime runtime;
    const mkrt::Mesh mesh(runtime, rank);
    const mkrt::DeviceInfo device = mesh.device_info();
    std::printf("device: %s, %s, %u SMs\n", device.name.c_str(), device.target.c_str(), device.worker_count);
    const uint32_t count = runtime.device_count() - 1;  // the last is the host
    if (count < MKRT_TEST_DEVICES) {
      return "this machine has " + std::to_string(count) + " CUDA devices, " + std::to_string(MKRT_TEST_DEVICES) +
             " are needed";
    }
    const Novelist novelist;
    const mkrt::Program program(runtime, novelist.package());
    const mkrt::Executable executable(program, mesh);
  } catch (const mkrt::Error& error) {
    // A device or image that does not fit is a reason; everything else is for the tests to find.
    if (error.status() == MKRT_ERROR_DEVICE || error.status() == MKRT_ERROR_UNSUPPORTED) return error.what();
    std::fprintf(stderr, "%s\n", error.what());
  }
  return "";
}

Target gpu_ranks(uint32_t ranks, uint32_t devices, const std::vector<uint32_t>& workers) {
  Target target = gpu(workers);
  target.ranks = ranks;
  target.devices = devices;
  return target;
}

Target gpu(const std::vector<uint32_t>& workers) {
  mkrt::RankOptions rank;
  rank.kind = MKRT_DEVICE_CUDA;
  return {rank, ways_with(workers), [](mkrt::compile::Options& options) { options.images = kernel_images(); }};
}

}  // namespace mkrt::test

int main(int argument_count, char** arguments) {
  // One of several processes that a test has started: that test knows that it can run.
  if (std::getenv("MKRT_TEST_PROCESS") != nullptr) return doctest::Context(argument_count, arguments).run();
  const std::string reason = mkrt::test::reason_to_skip();
  if (!reason.empty()) {
    const char* const there = std::getenv("MKRT_REQUIRE_GPU");
    const bool required = there != nullptr && std::atoi(there) >= MKRT_TEST_DEVICES;
    std::printf("%s: %s\n", required ? "failed, GPUs are required here" : "skipped", reason.c_str());
    return required ? 1 : 77;
  }
  return doctest::Context(argument_count, arguments).run();
}
