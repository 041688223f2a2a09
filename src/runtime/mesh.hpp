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
  device::ProcessGroup& group() const noexcept { return devices_->group(); }
  uint32_t rank_count() const noexcept { return group().rank_count(); }
  // Throws Failure(ARGUMENT) where `rank` is out of range or another process's.
  mkrt_device_info device_info(uint32_t rank) const;

 private:
  std::shared_ptr<Runtime> runtime_;  // first, so that it goes last
  std::unique_ptr<device::Mesh> devices_;
};

// What a mesh is made with besides its ranks.
struct MeshOptions {
  const mkrt_device_memory_extension* device_memory = nullptr;  // where CUDA ranks take memory from; NULL: the driver
  const mkrt_process_extension* processes = nullptr;            // NULL: this process alone
  std::shared_ptr<void> keep{};                                 // kept alive as long as their function may be called
};

// One rank of this process for each description, 1 to MKRT_MAX_RANKS of them. Collective where there are several
// processes. Throws Failure (ARGUMENT, UNSUPPORTED, DEVICE, OUT_OF_MEMORY, DRIVER, TIMEOUT, PEER).
std::shared_ptr<Mesh> create_mesh(std::shared_ptr<Runtime> runtime, std::span<const mkrt_rank_desc> ranks,
                                  const MeshOptions& options);

}  // namespace mkrt::runtime
