// A program on a mesh.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.hpp"
#include "runtime/mesh.hpp"
#include "runtime/program.hpp"

namespace mkrt::runtime {

class Executable {
 public:
  Executable(std::shared_ptr<Program> program, std::shared_ptr<Mesh> mesh,
             std::unique_ptr<device::Executable> loaded) noexcept
      : program_(std::move(program)), mesh_(std::move(mesh)), loaded_(std::move(loaded)) {}

  const std::shared_ptr<Program>& program() const noexcept { return program_; }
  const std::shared_ptr<Mesh>& mesh() const noexcept { return mesh_; }
  device::Executable& loaded() noexcept { return *loaded_; }

 private:
  std::shared_ptr<Program> program_;  // these two first, so that they go last
  std::shared_ptr<Mesh> mesh_;
  std::unique_ptr<device::Executable> loaded_;
};

// Loads `program` onto `mesh`. Collective where there are several processes. Throws Failure (ARGUMENT where the two are
// of different runtimes or rank counts, and what the device reports).
std::shared_ptr<Executable> create_executable(std::shared_ptr<Program> program, std::shared_ptr<Mesh> mesh,
                                              const device::LoadOptions& options);

}  // namespace mkrt::runtime
