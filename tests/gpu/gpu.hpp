// What the tests on GPUs share: whether they can run, and packages for the device.
#pragma once

#include <string>
#include <vector>

#include "decoding.hpp"

namespace mkrt::test {

// Why these tests cannot run here; "" where they can.
std::string reason_to_skip();

// The first CUDA device, with packages that carry this build's kernels. `workers`: limits of SMs to run with, 0: all.
Target gpu(const std::vector<uint32_t>& workers = {0, 64, 1});

// So many ranks, on as many of the first CUDA devices as are given, in turn. `workers` are of each rank.
Target gpu_ranks(uint32_t ranks, uint32_t devices = 1, const std::vector<uint32_t>& workers = {0, 16, 1});

// A compiled novelist, in a folder of its own.
class Novelist {
 public:
  explicit Novelist(const Target& target = gpu()) { compile_novelist(target, package(), 1); }
  std::string package() const { return folder_.path("package"); }

 private:
  TemporaryFolder folder_;
};

// The error that `action` throws; a failed requirement where it throws none.
template <class Action>
mkrt_error error_of(Action action) {
  try {
    action();
  } catch (const mkrt::Error& error) {
    return error.error();
  }
  FAIL("nothing failed");
  return {};
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace mkrt::test
