// Ranks on GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/hooks.hpp"
#include "cuda/memory.hpp"
#include "device/device.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::cuda {

// What a rank runs on.
struct RankDevice {
  std::shared_ptr<const DeviceContext> context;  // that of its device
  uint32_t device = 0;                           // number among the mesh's devices
  mkrt_device_info info{};                       // worker_count: what the rank may use
  DeviceAllocator allocator;
};

// A device of the mesh and the ranks that share it: one launch runs them all, so that they are resident together.
struct MeshDevice {
  std::shared_ptr<const DeviceContext> context;
  Stream adopted_stream = nullptr;            // of the host application
  std::unique_ptr<StreamHandle> mesh_stream;  // of a mesh on several devices that adopts none
  std::vector<uint32_t> ranks;                // ascending

  // The stream for launches of all sessions; null: a stream of each session's own.
  Stream shared_stream() const noexcept { return mesh_stream ? mesh_stream->get() : adopted_stream; }
};

class Mesh final : public device::Mesh {
 public:
  Mesh(std::shared_ptr<const base::Hooks> hooks, std::shared_ptr<device::ProcessGroup> group,
       std::vector<RankDevice> ranks, std::vector<MeshDevice> devices, bool maps_memory)
      : device::Mesh(std::move(group)),
        hooks_(std::move(hooks)),
        ranks_(std::move(ranks)),
        devices_(std::move(devices)),
        maps_memory_(maps_memory) {}

  void describe(uint32_t rank, mkrt_device_info* out_info) const noexcept override;
  std::unique_ptr<device::Executable> load(std::shared_ptr<const package::Program> program,
                                           const device::LoadOptions& options) override;

  const std::shared_ptr<const base::Hooks>& hooks() const noexcept { return hooks_; }
  std::span<const RankDevice> ranks() const noexcept { return ranks_; }
  std::span<const MeshDevice> devices() const noexcept { return devices_; }
  // Whether sessions' memory is mapped for all devices, which several ranks need unless they share one.
  bool maps_memory() const noexcept { return maps_memory_; }

  // Held while an execute launches on several devices, so that launches of all sessions come in the same order on each:
  // a rank's launch holds its SMs while it waits for the others', and in different orders two would wait for ever.
  std::unique_lock<std::mutex> launch_order() noexcept {
    return devices_.size() > 1 ? std::unique_lock(launch_mutex_) : std::unique_lock<std::mutex>();
  }

 private:
  std::shared_ptr<const base::Hooks> hooks_;
  std::vector<RankDevice> ranks_;
  std::vector<MeshDevice> devices_;
  bool maps_memory_;
  std::mutex launch_mutex_;
};

}  // namespace mkrt::cuda
