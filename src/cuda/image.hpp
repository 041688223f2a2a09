// A package's kernel image on a device: picked, loaded, and checked before anything is launched.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "cuda/context.hpp"
#include "mkrt/device/launch.h"
#include "package/program.hpp"

namespace mkrt::cuda {

// How well an image's target suits a device of compute capability major.minor; 0: not at all. The exact
// architecture-specific target ("sm_90a") is best, then the exact one, then the nearest older one of the same major
// version, then PTX ("compute_80") that the driver can translate.
int target_score(std::string_view target, int major, int minor) noexcept;

// The image with the best score. Throws Failure(UNSUPPORTED) that names the device's capability and the targets there
// are.
const package::Image& choose_image(const package::Program& program, int major, int minor);

// How a block's shared memory is divided for a program.
struct SharedMemoryPlan {
  uint32_t activation_bytes = 0;  // of each of the two buffers
  uint32_t page_count = 0;
  uint32_t total_bytes = 0;
};
// `device_bytes`: what the device has for a block. Throws Failure(UNSUPPORTED) where that is too little: with the
// record that needs most.
SharedMemoryPlan plan_shared_memory(const package::Program& program, const mkrt_image_info& info,
                                    uint32_t device_bytes);

class LoadedImage {
 public:
  // Loads the program's image for the context's device, whose context is current. Throws Failure.
  LoadedImage(std::shared_ptr<const DeviceContext> context, const package::Program& program);
  LoadedImage(const LoadedImage&) = delete;
  LoadedImage& operator=(const LoadedImage&) = delete;
  ~LoadedImage();

  Function kernel() const noexcept { return kernel_; }
  // For launches that are traced; nullptr where the image has none.
  Function traced_kernel() const noexcept { return traced_kernel_; }
  // Throws Failure(UNSUPPORTED): "image "NAME" " and why.
  [[noreturn]] void refuse(const std::string& why) const;
  const mkrt_image_info& info() const noexcept { return info_; }
  const SharedMemoryPlan& shared_memory() const noexcept { return shared_memory_; }

 private:
  void check(const package::Program& program);
  void check_ranks(const package::Program& program) const;
  void find_kernels();

  std::shared_ptr<const DeviceContext> context_;
  Module module_ = nullptr;
  Function kernel_ = nullptr, traced_kernel_ = nullptr;
  std::string name_;
  mkrt_image_info info_{};
  SharedMemoryPlan shared_memory_;
};

}  // namespace mkrt::cuda
