#include "memory/encode.hpp"

#include <algorithm>
#include <cassert>
#include <vector>

namespace mkrt::memory {

namespace {

mkrt_operand encode_operand(const package::Program& program, const package::Operand& operand, const Layout& layout,
                            const RankAddresses& addresses) {
  const package::Tensor& tensor = program.tensors[operand.tensor];
  const uint64_t element = package::dtype_size(tensor.dtype);
  const uint64_t base = tensor.kind == MKRT_TENSOR_WEIGHT ? addresses.weights[operand.tensor]
                                                          : addresses.heap + layout.tensor_offsets[operand.tensor];
  mkrt_operand out{};
  out.address = base + (operand.offset + addresses.rank * operand.rank_stride) * element;
  for (size_t d = 0; d < MKRT_TILE_DIMENSIONS; ++d) out.stride[d] = operand.strides[d] * element;
  out.size = operand.size * element;
  out.limit = operand.limit * element;
  out.row_stride = operand.row_stride * element;
  out.rows = operand.rows;
  out.rank = operand.rank;
  return out;
}

// For each of the entry's counter arrays, whether ranks signal each other there. What only the own rank signals needs
// no order between ranks, even where what is signalled was written at another: that rank is told by someone else.
std::vector<bool> arrays_across_ranks(const package::Entry& entry) {
  std::vector<bool> across(entry.counters.size());
  for (const package::Record& record : entry.records) {
    for (const package::Signal& signal : record.signals) {
      if (signal.rank.mode != MKRT_RANK_SELF) across[signal.array] = true;
    }
  }
  return across;
}

mkrt_wait encode_wait(const package::Wait& wait, bool across_ranks) {
  assert(wait.step_total > 0);  // verify/ has seen it
  mkrt_wait out{};
  out.first = wait.counter;
  out.count = wait.count;
  std::copy(wait.strides.begin(), wait.strides.end(), out.stride);
  std::copy(wait.divide.begin(), wait.divide.end(), out.divide);
  out.step_total = wait.step_total;
  out.value = wait.value == 0 ? wait.step_total : wait.value;
  out.step_offset = wait.step_offset;
  out.across_ranks = across_ranks;
  return out;
}

mkrt_signal encode_signal(const package::Signal& signal, bool across_ranks) {
  mkrt_signal out{};
  out.first = signal.counter;
  std::copy(signal.strides.begin(), signal.strides.end(), out.stride);
  std::copy(signal.divide.begin(), signal.divide.end(), out.divide);
  out.rank = signal.rank;
  out.across_ranks = across_ranks;
  return out;
}

}  // namespace

void encode_entry(const package::Program& program, const package::Entry& entry, const Layout& layout,
                  const RankAddresses& addresses, std::span<mkrt_record> out_records) {
  assert(out_records.size() == entry.records.size());
  const std::vector<bool> across = arrays_across_ranks(entry);
  const auto crosses = [&](uint32_t array) { return program.rank_count > 1 && across[array]; };
  for (size_t i = 0; i < entry.records.size(); ++i) {
    const package::Record& record = entry.records[i];
    mkrt_record& out = out_records[i] = mkrt_record{};
    out.opcode = record.opcode;
    out.index = static_cast<uint32_t>(i);
    out.first_tile = record.first_tile;
    out.tile_count = record.tile_count;
    std::copy(record.grid.begin(), record.grid.end(), out.grid);
    out.operand_count = static_cast<uint32_t>(record.operands.size());
    out.wait_count = static_cast<uint32_t>(record.waits.size());
    out.signal_count = static_cast<uint32_t>(record.signals.size());
    std::copy(record.parameters.begin(), record.parameters.end(), out.parameter);
    for (size_t k = 0; k < record.waits.size(); ++k) {
      out.wait[k] = encode_wait(record.waits[k], crosses(record.waits[k].array));
    }
    for (size_t k = 0; k < record.signals.size(); ++k) {
      out.signal[k] = encode_signal(record.signals[k], crosses(record.signals[k].array));
    }
    for (size_t k = 0; k < record.operands.size(); ++k) {
      if (record.operands[k]) out.operand[k] = encode_operand(program, *record.operands[k], layout, addresses);
    }
  }
}

}  // namespace mkrt::memory
