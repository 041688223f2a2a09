// One stream of work on host ranks: a heap for each rank, the encoded tables, and its place in the scheduler.
#pragma once

#include <memory>
#include <vector>

#include "base/hooks.hpp"
#include "device/device.hpp"
#include "host/executable.hpp"
#include "host/scheduler.hpp"
#include "host/shared_session.hpp"
#include "host/turn.hpp"

namespace mkrt::host {

class Session final : public device::Session {
 public:
  // `executable` outlives the session. `shared`: with other processes, or null. Throws Failure (OUT_OF_MEMORY, PEER).
  Session(Executable& executable, std::unique_ptr<SharedSession> shared);
  ~Session() override;

  mkrt_status execute(const device::ExecuteRequest& request, uint64_t* out_value,
                      mkrt_error* out_error) noexcept override;
  mkrt_status query(uint64_t* out_value, mkrt_error* out_error) noexcept override;
  mkrt_status wait(uint64_t value, uint64_t timeout_ns, mkrt_error* out_error) noexcept override;
  void cancel() noexcept override;
  mkrt_status reset(mkrt_error* out_error) noexcept override;
  mkrt_status write(uint32_t rank, uint32_t tensor, uint64_t offset, const void* data, uint64_t size,
                    mkrt_error* out_error) noexcept override;
  mkrt_status read(uint32_t rank, uint32_t tensor, uint64_t offset, uint64_t size, void* out_data,
                   mkrt_error* out_error) noexcept override;
  void* tensor_address(uint32_t rank, uint32_t tensor) noexcept override;

  // For tests of wrap-around, after one step since the last reset: puts the session into the state that it has after
  // `epoch` such steps, as far as counters go. Nothing is in flight.
  void start_at_epoch(uint32_t epoch) noexcept;

 private:
  void make_heaps();
  void encode();
  mkrt_status wait_for_others(mkrt_error* out_error) const noexcept;
  mkrt_status report_busy(mkrt_error* out_error) const noexcept;

  Executable& executable_;
  SessionBudget budget_;
  std::unique_ptr<SharedSession> shared_;
  uint64_t wait_limit_ns_;           // of the last execute
  std::vector<base::Block> blocks_;  // that the heaps are in; empty where processes share them
  std::vector<std::byte*> heaps_;    // of each rank of the mesh
  base::Block records_;              // of each entry, each rank of this process
  SessionTables tables_;
  Stream stream_;
};

}  // namespace mkrt::host
