// The host device: what runtime/ needs to know of this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/hooks.hpp"
#include "device/device.hpp"
#include "mkrt/host_isa.h"
#include "mkrt/mkrt.h"

namespace mkrt::host {

// A mesh of CPU ranks, one of this process for each description, of which `worker_count` is read (0: the logical
// processors divided by the ranks of all processes, at least 1). Programs run with `isas`, which outlive the mesh, and
// with mkrt.llm. Throws Failure (ARGUMENT where a rank has too many workers, OUT_OF_MEMORY where the system refuses a
// thread). The mesh outlives its executables, these their sessions.
std::unique_ptr<device::Mesh> create_mesh(std::shared_ptr<const base::Hooks> hooks,
                                          std::span<const mkrt_rank_desc> ranks,
                                          std::span<const mkrt_host_isa* const> isas,
                                          std::shared_ptr<device::ProcessGroup> group);

// Fills every field but struct_size: this machine as device 0 of kind host, with `worker_count` workers (0: the logical
// processors).
void describe_host(uint32_t worker_count, mkrt_device_info* out_info) noexcept;

}  // namespace mkrt::host
