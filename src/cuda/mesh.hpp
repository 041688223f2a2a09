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

// What a rank of this process runs on.
struct RankDevice {
  uint32_t number = 0;                           // among the ranks of the mesh
  std::shared_ptr<const DeviceContext> context;  // that of its device
  uint32_t device = 0;                           // number among the mesh's devices
  mkrt_device_info info{};                       // worker_count: what the rank may use
  uint32_t wanted_workers = 0;                   // 0: a share
  DeviceAllocator allocator;
};

// A device of the mesh and the ranks of this process that share it: one launch runs them all, so that they are resident
// together.
struct MeshDevice {
  std::shared_ptr<const DeviceContext> context;
  Stream adopted_stream = nullptr;            // of the host application
  std::unique_ptr<StreamHandle> mesh_stream;  // of a mesh with several launches an execute that adopts none
  std::vector<uint32_t> ranks;                // numbers in the mesh, ascending
  uint32_t worker_count = 0;                  // all of its SMs

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

  // What ranks of different processes share of a device, whether they reach each other, and how they find each other's
  // memory.
  void connect() override;
  void describe(uint32_t number, mkrt_device_info* out_info) const noexcept override;
  std::unique_ptr<device::Executable> load(std::shared_ptr<const package::Program> program,
                                           const device::LoadOptions& options) override;

  const std::shared_ptr<const base::Hooks>& hooks() const noexcept { return hooks_; }
  std::span<const RankDevice> ranks() const noexcept { return ranks_; }  // of this process
  const RankDevice& rank(uint32_t number) const noexcept { return ranks_[number - group().first_rank()]; }
  std::span<const MeshDevice> devices() const noexcept { return devices_; }
  // Whether sessions' memory is mapped for all devices, which several ranks need unless they share one.
  bool maps_memory() const noexcept { return maps_memory_; }
  // How memory is handed to other processes: one of memory_handle_...; none where there are no others.
  int handle_type() const noexcept { return handle_type_; }

  // Held while an execute launches on several devices, so that launches of all sessions come in the same order on each:
  // a rank's launch holds its SMs while it waits for the others', and in different orders two would wait for ever.
  std::unique_lock<std::mutex> launch_order() noexcept {
    return devices_.size() > 1 ? std::unique_lock(launch_mutex_) : std::unique_lock<std::mutex>();
  }

 private:
  struct Neighbour;
  std::vector<Neighbour> gather_ranks();
  void share_workers(const std::vector<Neighbour>& all);
  void check_paths(const std::vector<Neighbour>& all) const;

  std::shared_ptr<const base::Hooks> hooks_;
  std::vector<RankDevice> ranks_;
  std::vector<MeshDevice> devices_;
  bool maps_memory_;
  int handle_type_ = memory_handle_none;
  std::mutex launch_mutex_;
};

}  // namespace mkrt::cuda
