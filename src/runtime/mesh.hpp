// The devices that programs run on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/device.hpp"
#include "mkrt/mkrt.h"
#include "runtime/runtime.hpp"

namespace mkrt::runtime {

class Mesh {
 public:
  Mesh(std::shared_ptr<Runtime> runtime, std::unique_ptr<device::Mesh> devices) noexcept
      : runtime_(std::move(runtime)), devices_(std::move(devices)) {}

  const std::shared_ptr<Runtime>& runtime() const noexcept { return runtime_; }
  device::Mesh& devices() noexcept { return *devices_; }
  uint32_t rank_count() const noexcept { return devices_->rank_count(); }
  // Throws Failure(ARGUMENT) where `rank` is out of range.
  mkrt_device_info device_info(uint32_t rank) const;

 private:
  std::shared_ptr<Runtime> runtime_;  // first, so that it goes last
  std::unique_ptr<device::Mesh> devices_;
};

// One rank for each description, 1 to MKRT_MAX_RANKS of them. `device_memory`, copied, is where CUDA ranks take their
// memory from; NULL: the driver. Throws Failure (ARGUMENT, UNSUPPORTED, DEVICE, OUT_OF_MEMORY, DRIVER).
std::shared_ptr<Mesh> create_mesh(std::shared_ptr<Runtime> runtime, std::span<const mkrt_rank_desc> ranks,
                                  const mkrt_device_memory_extension* device_memory);

}  // namespace mkrt::runtime
