// One stream of work on an executable.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.hpp"
#include "mkrt/mkrt.h"
#include "runtime/executable.hpp"

namespace mkrt::runtime {

// Checks what is asked for and hands it to the device. Its functions but trace throw nothing, and but trace and a
// collective reset they allocate nothing; they report through a status and `out_error`, which may be NULL. Only query,
// wait and cancel may overlap with other calls.
class Session {
 public:
  Session(std::shared_ptr<Executable> executable, std::unique_ptr<device::Session> work) noexcept;

  // `desc` was checked for form. `out_value` may be NULL.
  mkrt_status execute(const mkrt_execute_desc& desc, uint64_t* out_value, mkrt_error* out_error) noexcept;
  mkrt_status query(uint64_t* out_value, mkrt_error* out_error) noexcept { return work_->query(out_value, out_error); }
  mkrt_status wait(uint64_t value, uint64_t timeout_ns, mkrt_error* out_error) noexcept {
    return work_->wait(value, timeout_ns, out_error);
  }
  void cancel() noexcept { work_->cancel(); }
  mkrt_status reset(mkrt_error* out_error) noexcept { return work_->reset(out_error); }
  mkrt_status write(uint32_t rank, uint32_t tensor, uint64_t offset, const void* data, uint64_t size,
                    mkrt_error* out_error) noexcept;
  mkrt_status read(uint32_t rank, uint32_t tensor, uint64_t offset, uint64_t size, void* out_data,
                   mkrt_error* out_error) noexcept;
  mkrt_status tensor_address(uint32_t rank, uint32_t tensor, void** out_address, mkrt_error* out_error) noexcept;
  // Throws Failure.
  void trace(uint32_t tiles_per_worker) { work_->trace(tiles_per_worker); }
  mkrt_status read_trace(uint32_t worker, uint32_t count, mkrt_trace_tile* out_tiles, mkrt_error* out_error) noexcept {
    return work_->read_trace(worker, count, out_tiles, out_error);
  }

 private:
  enum class Use : uint8_t { write, read, address };
  mkrt_status check_tensor(uint32_t rank, uint32_t tensor, Use use, mkrt_error* out_error) const noexcept;
  mkrt_status check_range(uint32_t tensor, uint64_t offset, uint64_t size, mkrt_error* out_error) const noexcept;

  std::shared_ptr<Executable> executable_;  // first, so that it goes last
  const package::Program& package_;
  const device::ProcessGroup& group_;
  std::unique_ptr<device::Session> work_;
};

// Throws Failure (OUT_OF_MEMORY, DRIVER).
std::shared_ptr<Session> create_session(std::shared_ptr<Executable> executable);

}  // namespace mkrt::runtime
