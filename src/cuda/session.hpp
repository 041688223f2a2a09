// One stream of work on a GPU.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "cuda/executable.hpp"
#include "cuda/memory.hpp"
#include "device/device.hpp"
#include "mkrt/device/launch.h"

namespace mkrt::cuda {

class Session final : public device::Session {
 public:
  // `executable` outlives the session; its context is current. Throws Failure.
  explicit Session(Executable& executable);
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
  void trace(uint32_t tiles_per_worker) override;
  mkrt_status read_trace(uint32_t worker, uint32_t count, mkrt_trace_tile* out_tiles,
                         mkrt_error* out_error) noexcept override;

 private:
  // Pinned memory that the device writes and the host reads.
  struct Mailbox {
    uint64_t timeline;  // value that the last finished launch stored
    mkrt_report report;
    uint32_t abort_word;  // what a cancel copies to the device; constant
  };

  void plan_memory();
  void encode();
  void clear(const char* what);
  bool busy() const noexcept;
  mkrt_status report_busy(mkrt_error* out_error) const noexcept;
  // OK, or what a launch reported.
  mkrt_status status(mkrt_error* out_error) const noexcept;
  mkrt_status fill_report(const mkrt_report& report, mkrt_error* out_error) const noexcept;
  uint64_t completed() const noexcept;
  mkrt_report report() const noexcept;

  Executable& executable_;
  const Driver& driver_;
  StreamHandle stream_;
  StreamHandle cancel_stream_;
  PinnedMemory mailbox_memory_;
  Mailbox* mailbox_;
  DeviceMemory memory_;         // heap, control, epochs, tables
  uint64_t cleared_bytes_ = 0;  // heap, control and epochs: what a reset makes zero
  uint64_t control_offset_ = 0;
  DeviceMemory trace_memory_;
  uint32_t trace_tiles_ = 0;
  std::vector<mkrt_launch> launches_;  // one for each entry, complete but for what a request says
  std::vector<uint32_t> entry_of_;     // of the launches in flight, by timeline value modulo their number
  std::atomic<uint64_t> last_value_{0};
  std::mutex cancel_mutex_;  // a cancel and a reset do not overlap
  std::atomic<bool> cancelled_{false};
  std::atomic<Result> driver_failure_{result_success};  // what the stream reported, once it did
};

}  // namespace mkrt::cuda
