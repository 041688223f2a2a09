#include "test_schedule.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace mkrt::host::test {

namespace {

uint32_t do_nothing(const mkrt_host_tile*) { return 0; }

uint32_t do_mix(const mkrt_host_tile* tile) {
  const auto* in = static_cast<const uint32_t*>(mkrt_host_operand(tile, 0));
  auto* out = static_cast<std::byte*>(mkrt_host_operand(tile, 1));
  const uint32_t value =
      mix(in, mkrt_host_operand_size(tile, 0) / sizeof(uint32_t), tile->record->parameter[0], tile->index[0]);
  uint32_t first = 0;
  uint32_t count = 0;
  mkrt_host_operand_ranks(tile, 1, &first, &count);
  for (uint32_t i = 0; i < count; ++i) {
    *reinterpret_cast<uint32_t*>(out + tile->rank_delta[(first + i) % tile->rank_count]) = value;
  }
  return 0;
}

uint32_t do_count(const mkrt_host_tile* tile) {
  *static_cast<uint32_t*>(mkrt_host_operand(tile, 0)) += 1;
  return 0;
}

uint32_t do_log(const mkrt_host_tile* tile) {
  log().add({tile->rank, tile->record->index, tile->index[0], tile->step, tile->scratch});
  return 0;
}

uint32_t do_hold(const mkrt_host_tile*) {
  held().fetch_add(1);
  while (hold().load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return 0;
}

uint32_t do_fault(const mkrt_host_tile* tile) { return tile->record->parameter[0]; }

constexpr mkrt_host_instruction instructions[] = {do_nothing, do_mix, do_count, do_log, do_hold, do_fault};
constexpr uint64_t fingerprint = 0x7e57;

package::OpcodeDefinition opcode(std::string name, std::vector<package::OperandDefinition> operands,
                                 bool parameter = false) {
  package::OpcodeDefinition definition;
  definition.name = std::move(name);
  definition.operands = std::move(operands);
  if (parameter) definition.parameters.push_back({"parameter", package::ParameterType::u32});
  return definition;
}

}  // namespace

Log& log() {
  static Log lines;
  return lines;
}

std::atomic<bool>& hold() {
  static std::atomic<bool> flag{false};
  return flag;
}

std::atomic<uint64_t>& held() {
  static std::atomic<uint64_t> count{0};
  return count;
}

// Depends on the order of its inputs, so that any mistake shows.
uint32_t mix(const uint32_t* in, uint64_t count, uint32_t parameter, uint64_t tile) {
  uint32_t value = parameter * 0x9e3779b9u + static_cast<uint32_t>(tile) + 1;
  for (uint64_t i = 0; i < count; ++i) value = (value ^ in[i]) * 0x01000193u + (value >> 15);
  return value;
}

const mkrt_host_isa& test_isa() {
  // A scratch size that is no multiple of anything, to see that workers' scratch is aligned and apart all the same.
  static const mkrt_host_isa isa = {
      sizeof(mkrt_host_isa), std::size(instructions), fingerprint, "test", instructions, 200};
  return isa;
}

package::IsaDefinition test_isa_definition() {
  using package::Access;
  const std::vector<package::Dtype> u32 = {package::Dtype::u32};
  package::IsaDefinition isa;
  isa.name = "test";
  isa.version = 1;
  isa.fingerprint = fingerprint;
  isa.opcodes.push_back(opcode("nothing", {}));
  isa.opcodes.push_back(opcode("mix", {{"in", Access::read, u32}, {"out", Access::write, u32}}, true));
  isa.opcodes.push_back(opcode("count", {{"out", Access::read_write, u32}}));
  isa.opcodes.push_back(opcode("log", {}));
  isa.opcodes.push_back(opcode("hold", {}));
  isa.opcodes.push_back(opcode("fault", {}, true));
  isa.opcodes.back().faults = {"the token is outside the vocabulary"};
  return isa;
}

ScheduleBuilder::ScheduleBuilder(uint32_t rank_count) : program_(std::make_shared<package::Program>()) {
  program_->rank_count = rank_count;
  program_->isa = test_isa_definition();
}

uint32_t ScheduleBuilder::tensor(const std::string& name, uint64_t elements, uint32_t kind) {
  package::Tensor tensor;
  tensor.name = name;
  tensor.dtype = package::Dtype::u32;
  tensor.shape = {elements};
  tensor.elements = elements;
  tensor.size_bytes = elements * sizeof(uint32_t);
  tensor.kind = kind;
  program_->tensors.push_back(tensor);
  return static_cast<uint32_t>(program_->tensors.size() - 1);
}

void ScheduleBuilder::entry(const std::string& name) {
  program_->entries.emplace_back();
  last_entry().name = name;
}

uint32_t ScheduleBuilder::counter(const std::string& name, uint32_t size) {
  const uint32_t first = last_entry().counter_count;
  last_entry().counters.push_back({name, first, size});
  last_entry().counter_count += size;
  return first;
}

package::Record& ScheduleBuilder::record(const std::string& label, uint32_t opcode, std::array<uint32_t, 4> grid) {
  package::Record& record = last_entry().records.emplace_back();
  record.label = label;
  record.opcode = opcode;
  record.grid = grid;
  record.dimensions = MKRT_TILE_DIMENSIONS;
  record.parameters.assign(program_->isa.opcodes[opcode].parameters.size(), 0);
  return record;
}

package::Operand ScheduleBuilder::slice(uint32_t tensor, uint64_t size, uint64_t stride) {
  package::Operand operand;
  operand.tensor = tensor;
  operand.size = size;
  operand.strides[0] = stride;
  operand.limit = program_->tensors[tensor].elements;
  return operand;
}

package::Wait ScheduleBuilder::wait(uint32_t counter, uint32_t value, int32_t step_offset) {
  package::Wait wait;
  wait.counter = counter;
  wait.value = value;
  wait.step_offset = step_offset;
  return wait;
}

package::Signal ScheduleBuilder::signal(uint32_t counter, mkrt_rank_selector rank) {
  package::Signal signal;
  signal.counter = counter;
  signal.rank = rank;
  return signal;
}

namespace {

using Indices = std::array<uint32_t, MKRT_TILE_DIMENSIONS>;

template <class Visit>
void for_each_tile(const package::Record& record, const Visit& visit) {
  Indices i{};
  for (i[0] = 0; i[0] < record.grid[0]; ++i[0]) {
    for (i[1] = 0; i[1] < record.grid[1]; ++i[1]) {
      for (i[2] = 0; i[2] < record.grid[2]; ++i[2]) {
        for (i[3] = 0; i[3] < record.grid[3]; ++i[3]) visit(i);
      }
    }
  }
}

// What a step adds to a counter on rank 0, from all ranks. Counted here because src/verify would refuse the schedules
// of some tests, in which something never comes.
uint32_t step_total(const package::Entry& entry, uint32_t rank_count, uint32_t counter) {
  uint32_t total = 0;
  for (const package::Record& record : entry.records) {
    for (const package::Signal& signal : record.signals) {
      for_each_tile(record, [&](const Indices& indices) {
        uint32_t target = signal.counter;
        for (size_t d = 0; d < indices.size(); ++d) target += indices[d] / signal.divide[d] * signal.strides[d];
        if (target != counter) return;
        switch (signal.rank.mode) {
          case MKRT_RANK_ALL: total += rank_count; break;
          case MKRT_RANK_FIXED: total += signal.rank.offset == 0 ? rank_count : 0; break;
          default: total += 1;  // self, or relative: one of the ranks means this one
        }
      });
    }
  }
  return total;
}

}  // namespace

std::shared_ptr<const package::Program> ScheduleBuilder::finish() {
  for (package::Entry& entry : program_->entries) {
    for (package::Record& record : entry.records) {
      record.first_tile = entry.tile_count;
      record.tile_count = 1;
      for (const uint32_t size : record.grid) record.tile_count *= size;
      entry.tile_count += record.tile_count;
      for (package::Wait& wait : record.waits) {
        wait.step_total = step_total(entry, program_->rank_count, wait.counter);
      }
    }
  }
  return std::move(program_);
}

std::unique_ptr<Mesh> make_mesh(uint32_t ranks, uint32_t workers) {
  mkrt_rank_desc rank{};
  rank.struct_size = sizeof(rank);
  rank.kind = MKRT_DEVICE_HOST;
  rank.worker_count = workers;
  const std::vector<mkrt_rank_desc> descriptions(ranks, rank);
  return std::make_unique<Mesh>(std::make_shared<base::Hooks>(nullptr), std::make_shared<device::ProcessGroup>(ranks),
                                descriptions, std::vector<const mkrt_host_isa*>{&test_isa()});
}

device::ExecuteRequest request(uint32_t entry, uint32_t steps, uint32_t queue_mode, uint32_t worker_limit,
                               uint64_t wait_limit_ns) {
  return {entry, steps, queue_mode, worker_limit, wait_limit_ns};
}

mkrt_error make_error() { return MKRT_ERROR_INIT; }

}  // namespace mkrt::host::test
