#include "verify/report.hpp"

#include "base/failure.hpp"

namespace mkrt::verify {

uint64_t tile_number(const package::Record& record, const Indices& indices) {
  uint64_t number = 0;
  for (size_t d = 0; d < indices.size(); ++d) number = number * record.grid[d] + indices[d];
  return number;
}

Indices tile_indices(const package::Record& record, uint64_t tile) {
  Indices indices{};
  for (size_t d = indices.size(); d-- > 0;) {
    indices[d] = static_cast<uint32_t>(tile % record.grid[d]);
    tile /= record.grid[d];
  }
  return indices;
}

std::string record_text(const Context& context, uint32_t record) {
  const std::string& label = context.entry.records[record].label;
  return base::text("record ", record, " (", base::quoted(label.empty() ? context.opcode(record).name : label), ")");
}

std::string tile_text(const Context& context, uint32_t record, uint64_t tile, uint32_t rank) {
  const package::Record& owner = context.entry.records[record];
  const Indices indices = tile_indices(owner, tile);
  std::string text = base::text("tile ", tile, " [");
  for (uint32_t d = 0; d < owner.dimensions; ++d) text += base::text(d == 0 ? "" : ", ", indices[d]);
  return base::text(text, "] of ", record_text(context, record), " on rank ", rank);
}

std::string counter_text(const Context& context, uint32_t counter) {
  for (const package::CounterArray& array : context.entry.counters) {
    if (counter >= array.first && counter - array.first < array.size) {
      return base::text("counter ", base::quoted(array.name), "[", counter - array.first, "]");
    }
  }
  return base::text("counter ", counter);
}

void fail_record(const Context& context, uint32_t record, const std::string& problem) {
  throw base::Failure(MKRT_ERROR_SCHEDULE, base::text("entry ", base::quoted(context.entry.name), ", ",
                                                      record_text(context, record), ": ", problem))
      .at_record(static_cast<int32_t>(record));
}

void fail_tile(const Context& context, uint32_t record, uint64_t tile, uint32_t rank, const std::string& problem) {
  throw base::Failure(MKRT_ERROR_SCHEDULE, base::text("entry ", base::quoted(context.entry.name), ", ",
                                                      tile_text(context, record, tile, rank), ": ", problem))
      .at_record(static_cast<int32_t>(record))
      .at_tile(tile)
      .at_rank(static_cast<int32_t>(rank));
}

}  // namespace mkrt::verify
