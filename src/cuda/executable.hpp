// A program on GPUs: images loaded, weights resident.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cuda/image.hpp"
#include "cuda/memory.hpp"
#include "cuda/mesh.hpp"
#include "cuda/upload.hpp"
#include "device/device.hpp"
#include "memory/layout.hpp"
#include "package/program.hpp"

namespace mkrt::cuda {

class Executable final : public device::Executable {
 public:
  // `mesh` outlives the executable. Returns when the weights are on the devices. Throws Failure.
  Executable(Mesh& mesh, std::shared_ptr<const package::Program> program, const device::LoadOptions& options);

  std::unique_ptr<device::Session> create_session() override;

  Mesh& mesh() const noexcept { return mesh_; }
  const package::Program& program() const noexcept { return *program_; }
  const memory::Layout& layout() const noexcept { return layout_; }
  // By the number of the mesh's device.
  const LoadedImage& image(uint32_t device) const noexcept { return *images_[device]; }
  std::span<const std::shared_ptr<DeviceHeap>> heaps() const noexcept { return heaps_; }  // of this process's ranks
  // Address of each weight tensor on a rank of this process, by the tensor's index; others are 0.
  std::span<const uint64_t> weights(uint32_t rank) const noexcept {
    return weights_[rank - mesh_.group().first_rank()];
  }

 private:
  void load_images();
  void place_weights(const RankDevice& rank, uint32_t loader_threads);
  void log(uint32_t rank, const UploadTimes& times) const;

  Mesh& mesh_;
  const uint32_t number_;  // the same in all processes
  std::shared_ptr<const package::Program> program_;
  memory::Layout layout_;
  std::vector<std::unique_ptr<LoadedImage>> images_;
  // These three for each rank of this process.
  std::vector<std::shared_ptr<DeviceHeap>> heaps_;
  std::vector<DeviceMemory> weight_memory_;
  std::vector<std::vector<uint64_t>> weights_;
};

}  // namespace mkrt::cuda
