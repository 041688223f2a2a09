// One instance of the library: the host application's hooks and instruction sets, and the machine's devices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/hooks.hpp"
#include "mkrt/host_isa.h"
#include "mkrt/mkrt.h"
#include "runtime/cuda_devices.hpp"

namespace mkrt::runtime {

class Runtime {
 public:
  // `host_isas` are the host application's own; they outlive the runtime and were checked for form.
  Runtime(std::shared_ptr<const base::Hooks> hooks, std::vector<const mkrt_host_isa*> host_isas,
          CudaDevices::OpenDriver open_driver);

  const std::shared_ptr<const base::Hooks>& hooks() const noexcept { return hooks_; }
  const std::vector<const mkrt_host_isa*>& host_isas() const noexcept { return host_isas_; }

  // CUDA devices first, the host last.
  uint32_t device_count() { return static_cast<uint32_t>(cuda_.found().devices.size()) + 1; }
  // Throws Failure(ARGUMENT) where `index` is out of range.
  mkrt_device_info device_info(uint32_t index);
  CudaDevices& cuda() noexcept { return cuda_; }

  void log(uint32_t level, const std::string& message) const noexcept { hooks_->log(level, message.c_str()); }

 private:
  std::shared_ptr<const base::Hooks> hooks_;
  std::vector<const mkrt_host_isa*> host_isas_;
  CudaDevices cuda_;
};

// Creates a runtime in the memory of its own hooks. `desc` may be NULL; its fields were checked for form.
std::shared_ptr<Runtime> create_runtime(const mkrt_runtime_desc* desc, std::vector<const mkrt_host_isa*> host_isas,
                                        CudaDevices::OpenDriver open_driver = cuda::open_driver);

}  // namespace mkrt::runtime
