// The CUDA device: what runtime/ needs to know of this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/hooks.hpp"
#include "cuda/driver.hpp"
#include "device/device.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::cuda {

// Number of devices. Throws Failure(DEVICE).
uint32_t device_count(const Driver& driver);

// Fills every field but struct_size of a device. Throws Failure.
void describe_device(const std::shared_ptr<const Driver>& driver, uint32_t ordinal, mkrt_device_info* out_info);

// A mesh of ranks as described: device by UUID or ordinal, context and stream adopted where they are given. Several
// ranks may share a device, with one context and stream; its SMs are divided between them. Different devices must reach
// each other's memory. `device_memory`, copied, is the application's allocator, for meshes on one device; NULL: the
// driver's. Throws Failure (DEVICE, ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY, DRIVER). The mesh outlives its executables,
// these their sessions.
std::unique_ptr<device::Mesh> create_mesh(std::shared_ptr<const base::Hooks> hooks,
                                          const std::shared_ptr<const Driver>& driver,
                                          std::span<const mkrt_rank_desc> ranks,
                                          const mkrt_device_memory_extension* device_memory,
                                          std::shared_ptr<device::ProcessGroup> group);

}  // namespace mkrt::cuda
