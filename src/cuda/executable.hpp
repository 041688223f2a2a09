// A program on a GPU: image loaded, weights resident.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/hooks.hpp"
#include "cuda/image.hpp"
#include "cuda/memory.hpp"
#include "cuda/mesh.hpp"
#include "device/device.hpp"
#include "memory/layout.hpp"
#include "package/program.hpp"

namespace mkrt::cuda {

class Executable final : public device::Executable {
 public:
  // Returns when the weights are on the device. Throws Failure.
  Executable(std::shared_ptr<const base::Hooks> hooks, RankDevice rank, std::shared_ptr<const package::Program> program,
             const device::LoadOptions& options);

  std::unique_ptr<device::Session> create_session() override;

  const RankDevice& rank() const noexcept { return rank_; }
  const package::Program& program() const noexcept { return *program_; }
  const memory::Layout& layout() const noexcept { return layout_; }
  const LoadedImage& image() const noexcept { return *image_; }
  const std::shared_ptr<DeviceHeap>& heap() const noexcept { return heap_; }
  // Address of each weight tensor, by the tensor's index; others are 0.
  std::span<const uint64_t> weights() const noexcept { return weights_; }

 private:
  void place_weights(uint32_t loader_threads);

  std::shared_ptr<const base::Hooks> hooks_;
  RankDevice rank_;
  std::shared_ptr<const package::Program> program_;
  memory::Layout layout_;
  std::unique_ptr<LoadedImage> image_;
  std::shared_ptr<DeviceHeap> heap_;
  DeviceMemory weight_memory_;
  std::vector<uint64_t> weights_;
};

}  // namespace mkrt::cuda
