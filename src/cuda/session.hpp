// One stream of work on GPUs.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "cuda/executable.hpp"
#include "cuda/memory.hpp"
#include "cuda/symmetric.hpp"
#include "device/device.hpp"
#include "mkrt/device/launch.h"

namespace mkrt::cuda {

class Session final : public device::Session {
 public:
  // `executable` outlives the session. `number` is the same in all processes. take_memory and fill come before
  // everything else. All three throw Failure.
  Session(Executable& executable, uint32_t number);
  ~Session() override;
  void take_memory();  // collective where there are several processes
  void fill();         // writes it

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
  // Pinned memory that a rank's launches write and the host reads; on lines of its own, as ranks write at once.
  struct alignas(128) Mailbox {
    uint64_t timeline;  // value that the last finished launch stored
    mkrt_report report;
    // What is copied to the device to end what runs there; constant.
    uint32_t cancelled_word, driver_word, peer_word;
  };
  using AbortWord = uint32_t Mailbox::*;

  // What the session has on a device of the mesh.
  struct Part {
    Part(const MeshDevice& device, const LoadedImage& image);

    // The stream that is asked whether the device is lost: that of the launches, but never the application's, which may
    // be capturing a graph. A lost device shows on every stream.
    Stream watched() const noexcept {
      return device.adopted_stream != nullptr ? side_stream.get() : launch_stream.get();
    }

    const MeshDevice& device;
    const LoadedImage& image;
    StreamHandle launch_stream;
    StreamHandle side_stream;  // for cancels; the session's own
    // Copies wait for what the application has queued on its stream, but not for launches of other sessions on a stream
    // of the mesh's.
    Stream copies;
    PinnedMemory mailboxes;  // of its ranks, in their order
  };

  // Where things lie in a session's memory, in bytes. Up to the tables they lie at the same place on every rank.
  struct Places {
    uint64_t control = 0;
    uint64_t epochs = 0;
    uint64_t cleared = 0;  // all before it: heap, control and epochs, which a reset makes zero
    uint64_t deltas = 0;
    std::vector<uint64_t> records, first_tiles, local_ranks;  // by entry
    uint64_t size = 0;
  };

  static std::vector<std::unique_ptr<Part>> make_parts(const Executable& executable);
  static Places plan_places(const Executable& executable);
  void find_mailboxes();
  mkrt_launch plan_launch(uint32_t rank, uint32_t entry) const;
  void encode(uint32_t rank, Stream stream);
  void share_launches(const Part& part);
  void set_trace_addresses(std::span<const uint64_t> addresses);
  void fill(const Part& part);

  Result enqueue_launch(const Part& part, const device::ExecuteRequest& request, uint64_t value) noexcept;
  void abandon(Result result, uint32_t rank) noexcept;
  bool notice_failure() noexcept;
  Result ask(const Part& part) const noexcept;
  void look_now_and_then() noexcept;
  void notice_loss() noexcept;
  bool ask_others() noexcept;
  bool is_sound(uint32_t rank, const mkrt_control& control) const noexcept;
  void send_aborts(AbortWord word) noexcept;
  Result settle(bool launches) noexcept;
  mkrt_status come_to_rest(mkrt_error* out_error) noexcept;
  mkrt_status clear(mkrt_error* out_error) noexcept;
  void begin_anew() noexcept;
  void reset_together();
  void finish_work() noexcept;
  mkrt_status copy_back(uint32_t rank, DevicePointer from, uint64_t size, void* out_data, const char* what,
                        mkrt_error* out_error) noexcept;

  bool busy() const noexcept;
  mkrt_status report_busy(mkrt_error* out_error) const noexcept;
  // OK, or what a launch reported.
  mkrt_status status(mkrt_error* out_error) const noexcept;
  mkrt_report first_report() const noexcept;
  mkrt_status fill_leaving(uint32_t abort, mkrt_error* out_error) const noexcept;
  mkrt_status fill_report(const mkrt_report& report, mkrt_error* out_error) const noexcept;
  uint64_t completed() const noexcept;
  static mkrt_report report_of(Mailbox& mailbox) noexcept;
  uint32_t local(uint32_t rank) const noexcept { return rank - group_.first_rank(); }
  mkrt_launch& launch_of(uint32_t rank, uint32_t entry) noexcept {
    return launches_[local(rank) * entry_count_ + entry];
  }
  const Part& part_of(uint32_t rank) const noexcept { return *parts_[mesh_.rank(rank).device]; }
  DevicePointer abort_word_of(uint32_t rank) const noexcept {
    return memory_->address(rank) + places_.control + offsetof(mkrt_control, abort);
  }

  Executable& executable_;
  Mesh& mesh_;
  device::ProcessGroup& group_;
  const uint32_t number_;
  const Driver& driver_;
  const uint32_t entry_count_;
  std::vector<std::unique_ptr<Part>> parts_;  // by the number of the mesh's device
  // By the number of the rank in this process, as traces and launches.
  std::vector<Mailbox*> mailboxes_;
  const Places places_;
  std::optional<SymmetricMemory> memory_;
  std::vector<DeviceMemory> trace_memory_;  // empty where nothing is traced
  uint32_t trace_tiles_ = 0;
  std::vector<mkrt_launch> launches_;  // for each rank and entry, complete but for what a request says
  std::vector<uint32_t> entry_of_;     // of the launches in flight, by timeline value modulo their number
  std::atomic<uint64_t> last_value_{0};
  std::atomic<std::chrono::steady_clock::rep> next_look_{0};  // of a query at the driver
  std::mutex cancel_mutex_;                                   // a cancel and a reset do not overlap
  std::atomic<bool> cancelled_{false};
  // An execute went into a graph of the application: from then on something may be in flight at any time.
  std::atomic<bool> captured_{false};
  // What a stream reported, once it did, or the launch of one rank after another's; and the rank. The rank is written
  // first.
  std::atomic<Result> driver_failure_{result_success};
  std::atomic<uint32_t> failed_rank_{0};

  // Several processes. One that was lost while executes needed it; when it was first seen to be.
  static constexpr uint32_t none = UINT32_MAX;
  std::atomic<uint32_t> lost_process_{none};
  std::chrono::steady_clock::time_point lost_since_{};
  // What their ranks reported, once they were asked; the report is written first. When that began.
  std::atomic<bool> asked_others_{false};
  std::chrono::steady_clock::time_point asking_since_{};
  std::atomic<uint64_t> wait_limit_ns_{0};  // of the last execute
  mkrt_report others_report_{};
  // A reset began and did not end everywhere: some ranks' memory is zero, others' is not.
  std::atomic<bool> half_reset_{false};
};

}  // namespace mkrt::cuda
