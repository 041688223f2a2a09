#include "verify/counters.hpp"

#include <algorithm>

#include "base/failure.hpp"
#include "verify/arithmetic.hpp"

namespace mkrt::verify {
namespace {

using package::Record;
using package::Wait;

// Totals of all counters of all ranks take 50 MB at most. The format's specification states it.
constexpr uint64_t kMostCounters = uint64_t{1} << 22;

// `target` is a wait or a signal that names `count` counters.
template <class Target>
void check_range(const Context& context, uint32_t record_index, const Target& target, uint32_t count,
                 const char* what) {
  const Record& record = context.entry.records[record_index];
  const package::CounterArray& array = context.entry.counters[target.array];
  const std::string name = base::text(what, " counter ", base::quoted(array.name));
  Checked end = Checked(target.counter) + count;
  for (size_t d = 0; d < record.grid.size(); ++d) {
    if (target.divide[d] == 0) fail_record(context, record_index, name + " with a division by zero");
    end = end + Checked((record.grid[d] - 1) / target.divide[d]) * target.strides[d];
  }
  const uint64_t array_end = uint64_t{array.first} + array.size;
  if (target.counter < array.first || !end.fits() || end.value() > array_end) {
    fail_record(context, record_index, base::text(name, " outside its ", array.size, " counters"));
  }
}

// Totals of one step and last signallers of all counters on all ranks.
class Totals {
 public:
  Totals(const Context& context, const std::vector<RecordGroups>& groups, Effort& effort);

  uint64_t total(uint32_t rank, uint32_t counter) const { return totals_[place(rank, counter)]; }
  // Meaningful where the total is not 0.
  uint32_t last_signaller(uint32_t rank, uint32_t counter) const { return last_[place(rank, counter)]; }

 private:
  size_t place(uint32_t rank, uint32_t counter) const { return size_t{rank} * counter_count_ + counter; }
  void add(const Context& context, uint32_t record, const Group& group, Effort& effort);
  void check_overflow(const Context& context) const;

  uint32_t counter_count_;
  std::vector<uint64_t> totals_;
  std::vector<uint32_t> last_;
};

Totals::Totals(const Context& context, const std::vector<RecordGroups>& groups, Effort& effort)
    : counter_count_(context.entry.counter_count) {
  const uint64_t places = uint64_t{counter_count_} * context.rank_count();
  if (places > kMostCounters) {
    throw base::Failure(MKRT_ERROR_SCHEDULE,
                        base::text("entry ", base::quoted(context.entry.name), " has ", places,
                                   " counters on all ranks together; at most ", kMostCounters, " are allowed"));
  }
  effort.charge(places);
  totals_.resize(places);
  last_.resize(places);
  for (uint32_t r = 0; r < groups.size(); ++r) {
    for (const Group& group : groups[r].groups) add(context, r, group, effort);
  }
  check_overflow(context);
}

void Totals::add(const Context& context, uint32_t record_index, const Group& group, Effort& effort) {
  const Record& record = context.entry.records[record_index];
  const uint32_t rank_count = context.rank_count();
  for (size_t s = 0; s < record.signals.size(); ++s) {
    for (uint32_t own = 0; own < rank_count; ++own) {
      const Ranks ranks = selected_ranks(record.signals[s].rank, own, group.box.first, rank_count);
      effort.charge(ranks.count);
      for (uint32_t k = 0; k < ranks.count; ++k) {
        const size_t at = place((ranks.first + k) % rank_count, group.signal[s]);
        totals_[at] += group.box.tile_count();
        last_[at] = record_index;
      }
    }
  }
}

void Totals::check_overflow(const Context& context) const {
  const auto over =
      std::find_if(totals_.begin(), totals_.end(), [](uint64_t total) { return total > package::max_counter_value; });
  if (over == totals_.end()) return;
  const auto at = static_cast<size_t>(over - totals_.begin());
  fail_record(context, last_[at],
              base::text("signals ", counter_text(context, static_cast<uint32_t>(at % counter_count_)), " of rank ",
                         at / counter_count_, ", which then gets ", *over, " in a step; at most ",
                         package::max_counter_value, " are allowed"));
}

// One wait of one record, for the tiles of all groups and all ranks.
class Resolver {
 public:
  Resolver(const Context& context, const Totals& totals, uint32_t record, const Wait& wait)
      : context_(context), totals_(totals), record_(record), wait_(wait) {}

  void take(const Group& group, uint32_t first_counter) {
    for (uint32_t rank = 0; rank < context_.rank_count(); ++rank) {
      for (uint32_t k = 0; k < wait_.count; ++k) take_counter(group, rank, first_counter + k);
    }
  }

  // What a step adds to each of the counters: the same on every rank, 1 to 2^30.
  uint32_t step_total() const { return static_cast<uint32_t>(total_); }

 private:
  void take_counter(const Group& group, uint32_t rank, uint32_t counter) {
    const uint64_t total = totals_.total(rank, counter);
    if (total == 0) fail(group, rank, counter, "which no tile signals on this rank");
    if (wait_.step_offset == 0 && totals_.last_signaller(rank, counter) >= record_) {
      fail(group, rank, counter,
           base::text("which ", record_text(context_, totals_.last_signaller(rank, counter)),
                      " signals; only earlier records may"));
    }
    if (wait_.value > total) {
      fail(group, rank, counter, base::text("to get ", wait_.value, ", but a step adds ", total));
    }
    if (total_ != 0 && total != total_) {
      fail(
          group, rank, counter,
          base::text("to which a step adds ", total, ", but it adds ", total_, " to another counter of the same wait"));
    }
    total_ = total;
  }

  [[noreturn]] void fail(const Group& group, uint32_t rank, uint32_t counter, const std::string& problem) const {
    fail_tile(context_, record_, tile_number(context_.entry.records[record_], group.box.first), rank,
              base::text("waits for ", counter_text(context_, counter), ", ", problem));
  }

  const Context& context_;
  const Totals& totals_;
  uint32_t record_;
  const Wait& wait_;
  uint64_t total_ = 0;
};

uint32_t resolve(const Context& context, const Totals& totals, uint32_t record, size_t number,
                 const RecordGroups& groups, Effort& effort) {
  const Wait& wait = context.entry.records[record].waits[number];
  Resolver resolver(context, totals, record, wait);
  const Group* previous = nullptr;
  for (const Group& group : groups.groups) {
    if (previous != nullptr && previous->wait[number] == group.wait[number]) continue;
    previous = &group;
    effort.charge(uint64_t{context.rank_count()} * wait.count);
    resolver.take(group, group.wait[number]);
  }
  return resolver.step_total();
}

}  // namespace

void check_counter_ranges(const Context& context, uint32_t record_index) {
  const Record& record = context.entry.records[record_index];
  for (const Wait& wait : record.waits) {
    if (wait.count == 0) fail_record(context, record_index, "waits for no counter");
    if (wait.step_offset != 0 && wait.step_offset != -1) {
      fail_record(context, record_index, base::text("waits for step ", wait.step_offset, "; only 0 and -1 exist"));
    }
    check_range(context, record_index, wait, wait.count, "waits for");
  }
  for (const package::Signal& signal : record.signals) {
    check_range(context, record_index, signal, 1, "signals");
    check_rank_selector(context, record_index, signal.rank,
                        "the signal of counter " + base::quoted(context.entry.counters[signal.array].name));
  }
}

void resolve_waits(const Context& context, const std::vector<RecordGroups>& groups, Effort& effort,
                   package::Entry& entry) {
  const Totals totals(context, groups, effort);
  for (uint32_t r = 0; r < groups.size(); ++r) {
    std::vector<Wait>& waits = entry.records[r].waits;
    for (size_t w = 0; w < waits.size(); ++w) waits[w].step_total = resolve(context, totals, r, w, groups[r], effort);
  }
}

}  // namespace mkrt::verify
