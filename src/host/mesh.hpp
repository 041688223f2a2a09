// Ranks of CPU threads.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/hooks.hpp"
#include "device/device.hpp"
#include "host/scheduler.hpp"
#include "mkrt/host_isa.h"

namespace mkrt::host {

class Mesh final : public device::Mesh {
 public:
  // `isas` is everything that programs may run with. Throws as create_mesh of host.hpp.
  Mesh(std::shared_ptr<const base::Hooks> hooks, std::shared_ptr<device::ProcessGroup> group,
       std::span<const mkrt_rank_desc> ranks, std::vector<const mkrt_host_isa*> isas);

  void describe(uint32_t rank, mkrt_device_info* out_info) const noexcept override;
  std::unique_ptr<device::Executable> load(std::shared_ptr<const package::Program> program,
                                           const device::LoadOptions& options) override;

 private:
  std::shared_ptr<const base::Hooks> hooks_;
  std::vector<const mkrt_host_isa*> isas_;
  Scheduler scheduler_;
};

}  // namespace mkrt::host
