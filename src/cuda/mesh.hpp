// Ranks on GPUs.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/hooks.hpp"
#include "cuda/memory.hpp"
#include "device/device.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::cuda {

// What a rank runs on.
struct RankDevice {
  std::shared_ptr<const DeviceContext> context;
  Stream adopted_stream = nullptr;  // of the host application; null: a stream of each session's own
  mkrt_device_info info{};          // worker_count: what the rank may use
  DeviceAllocator allocator;
};

class Mesh final : public device::Mesh {
 public:
  Mesh(std::shared_ptr<const base::Hooks> hooks, std::vector<RankDevice> ranks)
      : hooks_(std::move(hooks)), ranks_(std::move(ranks)) {}

  uint32_t rank_count() const noexcept override { return static_cast<uint32_t>(ranks_.size()); }
  void describe(uint32_t rank, mkrt_device_info* out_info) const noexcept override;
  std::unique_ptr<device::Executable> load(std::shared_ptr<const package::Program> program,
                                           const device::LoadOptions& options) override;

 private:
  std::shared_ptr<const base::Hooks> hooks_;
  std::vector<RankDevice> ranks_;
};

}  // namespace mkrt::cuda
