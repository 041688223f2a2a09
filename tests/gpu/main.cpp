// Runs the tests where there is a GPU for them, and says why not where there is none. CTest counts return code 77 as
// skipped; with MKRT_REQUIRE_GPU set, a machine that should have a GPU fails instead.
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

Target gpu(const std::vector<uint32_t>& workers) {
  mkrt::RankOptions rank;
  rank.kind = MKRT_DEVICE_CUDA;
  return {rank, ways_with(workers), [](mkrt::compile::Options& options) { options.images = kernel_images(); }};
}

}  // namespace mkrt::test

int main(int argument_count, char** arguments) {
  const std::string reason = mkrt::test::reason_to_skip();
  if (!reason.empty()) {
    const bool required = std::getenv("MKRT_REQUIRE_GPU") != nullptr;
    std::printf("%s: %s\n", required ? "failed, a GPU is required here" : "skipped", reason.c_str());
    return required ? 1 : 77;
  }
  return doctest::Context(argument_count, arguments).run();
}
