// What the runtime asks of a kind of device. host/ and cuda/ implement it; runtime/ knows only this.
//
// Creation functions throw base::Failure. Functions marked noexcept are on the execute path: they allocate nothing and
// report through mkrt_status and mkrt_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/hooks.hpp"
#include "device/process_group.hpp"
#include "mkrt/device/launch.h"
#include "mkrt/mkrt.h"
#include "package/program.hpp"

namespace mkrt::device {

// One execute, as checked by the runtime: entry and limits are in range, defaults are resolved.
struct ExecuteRequest {
  uint32_t entry = 0;
  uint32_t step_count = 1;
  uint32_t queue_mode = MKRT_QUEUE_DYNAMIC;
  uint32_t worker_limit = 0;  // 0: all
  uint64_t wait_limit_ns = 0;
};

// One stream of work. Executes run in order. Only query, wait and cancel may overlap with other calls. Ranks are those
// of this process.
class Session {
 public:
  virtual ~Session() = default;  // cancels and waits

  virtual mkrt_status execute(const ExecuteRequest& request, uint64_t* out_value, mkrt_error* out_error) noexcept = 0;
  virtual mkrt_status query(uint64_t* out_value, mkrt_error* out_error) noexcept = 0;
  virtual mkrt_status wait(uint64_t value, uint64_t timeout_ns, mkrt_error* out_error) noexcept = 0;
  virtual void cancel() noexcept = 0;
  // MKRT_ERROR_BUSY while work is in flight, as do the two copies. Offsets and sizes are in range.
  virtual mkrt_status reset(mkrt_error* out_error) noexcept = 0;
  virtual mkrt_status write(uint32_t rank, uint32_t tensor, uint64_t offset, const void* data, uint64_t size,
                            mkrt_error* out_error) noexcept = 0;
  virtual mkrt_status read(uint32_t rank, uint32_t tensor, uint64_t offset, uint64_t size, void* out_data,
                           mkrt_error* out_error) noexcept = 0;
  virtual void* tensor_address(uint32_t rank, uint32_t tensor) noexcept = 0;

  // From the next execute on, each writes when what happened to the first `tiles_per_worker` tiles of every worker;
  // 0 ends it. Allocates; throws Failure (OUT_OF_MEMORY; UNSUPPORTED where the device does not trace).
  virtual void trace(uint32_t tiles_per_worker);
  // The last execute's trace of one worker: `count` tiles, zeros where it had fewer. MKRT_ERROR_BUSY while work is in
  // flight, MKRT_ERROR_ARGUMENT beyond what is traced.
  virtual mkrt_status read_trace(uint32_t worker, uint32_t count, mkrt_trace_tile* out_tiles,
                                 mkrt_error* out_error) noexcept;
};

// A program bound to a mesh: images loaded, weights resident.
class Executable {
 public:
  virtual ~Executable() = default;
  // Collective where there are several processes.
  virtual std::unique_ptr<Session> create_session() = 0;
};

// How a program is loaded.
struct LoadOptions {
  uint64_t memory_budget = 0;   // most bytes a rank for weights and sessions together; 0: no limit
  uint32_t loader_threads = 1;  // that bring weights to the device: the calling one, and others that end with the call
};

// Devices, one a rank, of one kind; those of this process.
class Mesh {
 public:
  explicit Mesh(std::shared_ptr<ProcessGroup> group) noexcept : group_(std::move(group)) {}
  virtual ~Mesh() = default;
  // Of all processes.
  uint32_t rank_count() const noexcept { return group_->rank_count(); }
  ProcessGroup& group() const noexcept { return *group_; }
  // Collective, when every process has made its mesh and all are of one kind; comes before anything else. What the
  // devices of different processes must know of each other.
  virtual void connect() {}
  // A rank of this process.
  virtual void describe(uint32_t rank, mkrt_device_info* out_info) const noexcept = 0;
  // `program` has passed verify/ and outlives the executable. It is the same in all processes.
  virtual std::unique_ptr<Executable> load(std::shared_ptr<const package::Program> program,
                                           const LoadOptions& options) = 0;

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace mkrt::device
