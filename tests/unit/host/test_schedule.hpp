// A small instruction set and a way to write schedules in code, for tests and benchmarks of the host device.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/hooks.hpp"
#include "device/device.hpp"
#include "host/mesh.hpp"
#include "mkrt/host_isa.h"
#include "package/program.hpp"

namespace mkrt::host::test {

// Opcodes of the set. All operands are u32.
enum Opcode : uint32_t {
  op_nothing,  // no operands
  op_mix,      // in, out: out[0] (at every rank that it means) = a hash of all of in, the parameter and the tile
  op_count,    // out: out[0] += 1
  op_log,      // no operands; appends to `log()`
  op_hold,     // no operands; returns when `hold()` is false
  op_fault,    // no operands; parameter: the fault that it returns
};

struct LogLine {
  uint32_t rank;
  uint32_t record;
  uint64_t tile;  // first index
  uint64_t step;
  const void* scratch;  // tells workers apart
};

// What op_log wrote since it was cleared.
class Log {
 public:
  void add(const LogLine& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
  }
  std::vector<LogLine> take() {
    const std::lock_guard lock(mutex_);
    return std::move(lines_);
  }

 private:
  std::mutex mutex_;
  std::vector<LogLine> lines_;
};
Log& log();
std::atomic<bool>& hold();
// Tiles of op_hold that have begun since the process started.
std::atomic<uint64_t>& held();

uint32_t mix(const uint32_t* in, uint64_t count, uint32_t parameter, uint64_t tile);

const mkrt_host_isa& test_isa();
package::IsaDefinition test_isa_definition();

// Builds a program whose ISA is the set above. Returned references stay valid until the next call of the same kind.
class ScheduleBuilder {
 public:
  explicit ScheduleBuilder(uint32_t rank_count = 1);

  uint32_t tensor(const std::string& name, uint64_t elements, uint32_t kind = MKRT_TENSOR_SCRATCH);
  void entry(const std::string& name);
  // Of the last entry; returns the number of its first counter.
  uint32_t counter(const std::string& name, uint32_t size = 1);
  package::Record& record(const std::string& label, uint32_t opcode, std::array<uint32_t, 4> grid = {1, 1, 1, 1});

  package::Operand slice(uint32_t tensor, uint64_t size, uint64_t stride = 0);
  package::Wait wait(uint32_t counter, uint32_t value = 0, int32_t step_offset = 0);
  package::Signal signal(uint32_t counter, mkrt_rank_selector rank = {MKRT_RANK_SELF, 0xff, 0});

  // Numbers the tiles, completes the waits as src/verify would, and gives the program away.
  std::shared_ptr<const package::Program> finish();

 private:
  package::Entry& last_entry() { return program_->entries.back(); }
  std::shared_ptr<package::Program> program_;
};

// A mesh with `workers` workers on each of `ranks` ranks that knows the set above.
std::unique_ptr<Mesh> make_mesh(uint32_t ranks, uint32_t workers);

device::ExecuteRequest request(uint32_t entry = 0, uint32_t steps = 1, uint32_t queue_mode = MKRT_QUEUE_DYNAMIC,
                               uint32_t worker_limit = 0, uint64_t wait_limit_ns = uint64_t{60} * 1'000'000'000);

mkrt_error make_error();

}  // namespace mkrt::host::test
