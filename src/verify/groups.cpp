#include "verify/groups.hpp"

#include <algorithm>
#include <map>

#include "base/failure.hpp"

namespace mkrt::verify {
namespace {

using package::Record;

// Groups of all records on all ranks together: far more than any schedule has tiles that are worth a counter each (an
// 8B model has 60 000 tiles a step), and few enough for 150 MB. The format's specification states it.
constexpr uint64_t kMostGroups = uint64_t{1} << 21;

[[noreturn]] void fail_too_many(const Context& context, uint32_t record) {
  fail_record(context, record,
              base::text("with this record the entry has more than ", kMostGroups, " groups of tiles ",
                         "with different counters or ranks, on all ranks together"));
}

bool depends_on(const mkrt_rank_selector& selector, uint32_t dimension, uint32_t rank_count) {
  return rank_count > 1 && selector.mode == MKRT_RANK_RELATIVE && selector.dimension == dimension;
}

// The widths after which something changes along dimension d, each once: an index i is in another group than i - 1
// where i is a multiple of one of them.
std::vector<uint32_t> widths_of_change(const Record& record, uint32_t d, uint32_t rank_count) {
  std::vector<uint32_t> widths;
  for (const package::Wait& wait : record.waits) {
    if (wait.strides[d] != 0) widths.push_back(wait.divide[d]);
  }
  for (const package::Signal& signal : record.signals) {
    if (signal.strides[d] != 0) widths.push_back(signal.divide[d]);
    if (depends_on(signal.rank, d, rank_count)) widths.push_back(1);
  }
  for (const auto& operand : record.operands) {
    if (operand && depends_on(operand->rank, d, rank_count)) widths.push_back(1);
  }
  std::sort(widths.begin(), widths.end());
  widths.erase(std::unique(widths.begin(), widths.end()), widths.end());
  return widths;
}

// First indices of the groups along dimension d, then the end.
std::vector<uint32_t> cuts(const Context& context, uint32_t record_index, uint32_t d, Effort& effort) {
  const Record& record = context.entry.records[record_index];
  const uint32_t end = record.grid[d];
  std::vector<uint32_t> result{0};
  for (uint32_t width : widths_of_change(record, d, context.rank_count())) {
    if ((end - 1) / width >= kMostGroups) fail_too_many(context, record_index);
    effort.charge((end - 1) / width);
    for (uint64_t index = width; index < end; index += width) result.push_back(static_cast<uint32_t>(index));
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  result.push_back(end);
  return result;
}

template <class Target>
uint32_t counter_of(const Target& target, const Indices& indices) {
  uint64_t counter = target.counter;
  for (size_t d = 0; d < indices.size(); ++d) counter += uint64_t{indices[d] / target.divide[d]} * target.strides[d];
  return static_cast<uint32_t>(counter);
}

Group make_group(const Record& record, const Box& box) {
  Group group;
  group.box = box;
  for (size_t w = 0; w < record.waits.size(); ++w) group.wait[w] = counter_of(record.waits[w], box.first);
  for (size_t s = 0; s < record.signals.size(); ++s) group.signal[s] = counter_of(record.signals[s], box.first);
  return group;
}

// Calls `visit` with every box that the cuts of the four dimensions make, in the order of tiles.
template <class Visit>
void for_each_box(const std::array<std::vector<uint32_t>, MKRT_TILE_DIMENSIONS>& all_cuts, Visit&& visit) {
  std::array<size_t, MKRT_TILE_DIMENSIONS> at{};
  while (true) {
    Box box;
    for (size_t d = 0; d < at.size(); ++d) {
      box.first[d] = all_cuts[d][at[d]];
      box.count[d] = all_cuts[d][at[d] + 1] - box.first[d];
    }
    visit(box);
    size_t d = at.size();
    while (d-- > 0) {
      if (++at[d] + 1 < all_cuts[d].size()) break;
      at[d] = 0;
      if (d == 0) return;
    }
  }
}

void number_signal_classes(const Record& record, uint32_t rank_count, RecordGroups& result) {
  // The counters, and for each signal the first rank that it means seen from rank 0.
  using Key = std::array<uint32_t, size_t{2} * MKRT_RECORD_SIGNALS>;
  std::map<Key, uint32_t> classes;
  for (uint32_t g = 0; g < result.groups.size(); ++g) {
    Group& group = result.groups[g];
    Key key{};
    for (size_t s = 0; s < record.signals.size(); ++s) {
      key[2 * s] = group.signal[s];
      key[2 * s + 1] = selected_ranks(record.signals[s].rank, 0, group.box.first, rank_count).first;
    }
    const auto [place, is_new] = classes.try_emplace(key, static_cast<uint32_t>(classes.size()));
    group.signal_class = place->second;
    if (is_new) result.class_member.push_back(g);
  }
}

// `most` is how many groups the record may have.
RecordGroups group_record(const Context& context, uint32_t record_index, uint64_t most, Effort& effort) {
  const Record& record = context.entry.records[record_index];
  std::array<std::vector<uint32_t>, MKRT_TILE_DIMENSIONS> all_cuts;
  uint64_t group_count = 1;
  for (uint32_t d = 0; d < all_cuts.size(); ++d) {
    all_cuts[d] = cuts(context, record_index, d, effort);
    group_count *= all_cuts[d].size() - 1;  // at most 2^21 times 24 widths of 2^21 cuts each
    if (group_count > most) fail_too_many(context, record_index);
  }
  effort.charge(group_count * Effort::kLookup);
  RecordGroups result;
  result.groups.reserve(group_count);
  for_each_box(all_cuts, [&](const Box& box) { result.groups.push_back(make_group(record, box)); });
  number_signal_classes(record, context.rank_count(), result);
  return result;
}

}  // namespace

Ranks selected_ranks(const mkrt_rank_selector& selector, uint32_t own, const Indices& indices, uint32_t rank_count) {
  switch (selector.mode) {
    case MKRT_RANK_ALL: return {0, rank_count};
    case MKRT_RANK_FIXED: return {selector.offset, 1};
    case MKRT_RANK_RELATIVE: {
      const uint64_t index = selector.dimension == 0xff ? 0 : indices[selector.dimension];
      return {static_cast<uint32_t>((own + selector.offset + index) % rank_count), 1};
    }
    default: return {own, 1};
  }
}

void check_rank_selector(const Context& context, uint32_t record, const mkrt_rank_selector& selector,
                         const std::string& what) {
  const uint32_t dimensions = context.entry.records[record].dimensions;
  if (selector.mode > MKRT_RANK_RELATIVE) {
    fail_record(context, record, base::text(what, " has the unknown rank mode ", uint32_t{selector.mode}));
  }
  if (selector.mode == MKRT_RANK_FIXED && selector.offset >= context.rank_count()) {
    fail_record(context, record,
                base::text(what, " names rank ", selector.offset, ", but the program has ", context.rank_count()));
  }
  if (selector.mode == MKRT_RANK_RELATIVE && selector.dimension != 0xff && selector.dimension >= dimensions) {
    fail_record(context, record,
                base::text(what, " takes its rank from dimension ", uint32_t{selector.dimension}, ", but the grid has ",
                           dimensions));
  }
}

std::vector<RecordGroups> group_tiles(const Context& context, Effort& effort) {
  std::vector<RecordGroups> result;
  uint64_t left = kMostGroups / context.rank_count();
  for (uint32_t r = 0; r < context.entry.records.size(); ++r) {
    result.push_back(group_record(context, r, left, effort));
    left -= result.back().groups.size();
  }
  return result;
}

}  // namespace mkrt::verify
