#include "device/failures.hpp"

#include <cinttypes>
#include <cstring>
#include <string_view>

#include "base/report.hpp"

namespace mkrt::device {

namespace {

// A name as base::quoted shows it, without its allocation: at most 64 bytes, control characters as '?'.
class Quoted {
 public:
  explicit Quoted(std::string_view name) noexcept {
    size_t length = name.size();
    if (length > longest) {
      length = longest;
      while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xc0) == 0x80) --length;  // inside UTF-8
    }
    char* out = text_;
    *out++ = '"';
    for (size_t i = 0; i < length; ++i) *out++ = static_cast<unsigned char>(name[i]) < 0x20 ? '?' : name[i];
    if (length < name.size()) out = static_cast<char*>(std::memcpy(out, "...", 3)) + 3;
    *out++ = '"';
    *out = '\0';
  }
  const char* text() const noexcept { return text_; }

 private:
  static constexpr size_t longest = 64;
  char text_[longest + 6];  // two quotes, "..." and the zero
};

// Name of the array that a counter belongs to, and its place there.
struct CounterName {
  std::string_view array;
  uint32_t index;
};
CounterName name_of(const package::Entry& entry, uint32_t counter) noexcept {
  for (const package::CounterArray& array : entry.counters) {
    if (counter - array.first < array.size) return {array.name, counter - array.first};
  }
  return {"?", counter};
}

void set_place(const TilePlace& place, mkrt_error* error) noexcept {
  error->rank = static_cast<int32_t>(place.rank);
  error->worker = static_cast<int32_t>(place.worker);
  error->record = static_cast<int32_t>(place.record);
  error->tile = place.tile;
  error->step = place.step;
}

}  // namespace

void fill_deadline(const package::Entry& entry, const TilePlace& place, const MissedCounter& missed,
                   mkrt_error* out_error) noexcept {
  const Quoted label(entry.records[place.record].label);
  const CounterName counter = name_of(entry, missed.counter);
  base::report(out_error, MKRT_ERROR_DEADLINE,
               "rank %" PRIu32 ", %s %" PRIu32 ": record %" PRIu32 " %s, tile %" PRIu64 ", step %" PRIu64
               ": waited %" PRIu64 " us for counter %s[%" PRIu32 "] to reach %" PRIu32 ", saw %" PRIu32,
               place.rank, place.worker_kind, place.worker, place.record, label.text(), place.tile, place.step,
               missed.waited_ns / 1000, Quoted(counter.array).text(), counter.index, missed.wanted, missed.seen);
  set_place(place, out_error);
  out_error->counter = static_cast<int32_t>(missed.counter);
  out_error->value_seen = missed.seen;
  out_error->value_wanted = missed.wanted;
}

void fill_rank_deadline(const MissedRanks& missed, mkrt_error* out_error) noexcept {
  base::report(out_error, MKRT_ERROR_DEADLINE,
               "rank %" PRIu32 ": waited %" PRIu64 " us for all ranks to %s the execute, %" PRIu32 " of %" PRIu32
               " did",
               missed.rank, missed.waited_ns / 1000, missed.end ? "end" : "begin", missed.come, missed.rank_count);
  out_error->rank = static_cast<int32_t>(missed.rank);
  out_error->value_seen = missed.come;
  out_error->value_wanted = missed.rank_count;
}

void fill_fault(const package::IsaDefinition& isa, const package::Entry& entry, const TilePlace& place, uint32_t fault,
                mkrt_error* out_error) noexcept {
  const package::OpcodeDefinition& opcode = isa.opcodes[entry.records[place.record].opcode];
  const Quoted label(entry.records[place.record].label);
  const bool listed = fault != 0 && fault <= opcode.faults.size();
  base::report(out_error, MKRT_ERROR_FAULT,
               "rank %" PRIu32 ", %s %" PRIu32 ": record %" PRIu32 " %s, tile %" PRIu64 ", step %" PRIu64
               ": %s: fault %" PRIu32 ", %.200s",
               place.rank, place.worker_kind, place.worker, place.record, label.text(), place.tile, place.step,
               Quoted(opcode.name).text(), fault,
               listed ? opcode.faults[fault - 1].c_str() : "which its instruction set does not list");
  set_place(place, out_error);
}

}  // namespace mkrt::device
