// A program on host ranks: weights in place in their mapped files, scratch memory for the workers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/hooks.hpp"
#include "device/device.hpp"
#include "host/scheduler.hpp"
#include "memory/layout.hpp"
#include "mkrt/host_isa.h"
#include "package/program.hpp"

namespace mkrt::host {

class Executable final : public device::Executable {
 public:
  // Makes the weights present. `group` and `scheduler` outlive the executable. Throws Failure(OUT_OF_MEMORY).
  Executable(std::shared_ptr<const base::Hooks> hooks, device::ProcessGroup& group, Scheduler& scheduler,
             std::shared_ptr<const package::Program> program, const mkrt_host_isa& isa, uint64_t memory_budget);

  std::unique_ptr<device::Session> create_session() override;

  const std::shared_ptr<const base::Hooks>& hooks() const noexcept { return hooks_; }
  device::ProcessGroup& group() const noexcept { return group_; }
  Scheduler& scheduler() const noexcept { return scheduler_; }
  const package::Program& program() const noexcept { return *program_; }
  const mkrt_host_isa& isa() const noexcept { return isa_; }
  const memory::Layout& layout() const noexcept { return layout_; }
  // Address of each weight tensor on a rank of this process, by the tensor's index.
  std::span<const uint64_t> weights(uint32_t rank) const noexcept { return weights_[rank]; }
  // Scratch memory of the first worker of a rank, by its number among those of this process, and from one worker to the
  // next. Sessions share it: they take turns.
  std::byte* scratch(uint32_t number) const noexcept { return scratch_[number].data(); }
  size_t scratch_stride() const noexcept { return scratch_stride_; }

 private:
  friend class SessionBudget;

  void prefetch_weights() const;
  void place_weights();
  const std::byte* aligned(std::span<const std::byte> bytes, uint64_t element_size);
  void make_scratch();

  std::shared_ptr<const base::Hooks> hooks_;
  device::ProcessGroup& group_;
  const uint32_t number_;  // the same in all processes
  Scheduler& scheduler_;
  std::shared_ptr<const package::Program> program_;
  const mkrt_host_isa& isa_;
  memory::Layout layout_;
  uint64_t memory_budget_;
  std::atomic<uint64_t> session_count_{0};
  std::vector<std::vector<uint64_t>> weights_;
  std::vector<base::Block> copies_;  // of weights that cannot be used in place
  std::vector<base::Block> scratch_;
  size_t scratch_stride_ = 0;
};

// One session's share of the executable's memory budget, for as long as it lives.
class SessionBudget {
 public:
  // Throws Failure(OUT_OF_MEMORY) where the budget does not allow another session.
  explicit SessionBudget(Executable& executable);
  ~SessionBudget();
  SessionBudget(const SessionBudget&) = delete;
  SessionBudget& operator=(const SessionBudget&) = delete;

 private:
  Executable& executable_;
};

}  // namespace mkrt::host
