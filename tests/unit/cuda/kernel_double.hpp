// What a launch does on a simulated device: walks the encoded table as a kernel would.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "mkrt/device/launch.h"
#include "mkrt/host_isa.h"

namespace mkrt::cuda::test {

// Host memory behind `bytes` bytes at a device address, or nullptr (and a violation) where there is none.
using Translate = std::function<std::byte*(uint64_t address, uint64_t bytes, const char* what)>;

// Whether the device is lost: all kernels end where they are.
using Lost = std::function<bool()>;

// Runs a whole launch: each of its ranks in a thread of its own, tile after tile, as one resident block would. Returns
// "", or what is wrong with the launch.
std::string run_kernel(const mkrt_launch& launch, uint32_t grid, const mkrt_host_isa& isa, const Translate& translate,
                       const Lost& lost);

}  // namespace mkrt::cuda::test
