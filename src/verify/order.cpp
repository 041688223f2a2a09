#include "verify/order.hpp"

#include <algorithm>
#include <map>

#include "base/failure.hpp"

namespace mkrt::verify {
namespace {

constexpr uint32_t kNoColumn = UINT32_MAX;
// 64 ranks with 640 counters each. Two sets for each of them take 420 MB at this limit, which no real schedule is
// near (an 8B model on 8 ranks has some 4000: 4 MB). The format's specification states it.
constexpr uint64_t kMostColumns = 40960;
// Joined rows, one for each different combination of waits, may take as much again.
constexpr uint64_t kMostBitWords = 3 * kMostColumns * (kMostColumns / 64);
// Work of joining is counted in cache lines of a row; that of new rows in words, as memory that is touched for the
// first time costs many times as much.
constexpr size_t kWordsPerStep = 8;

}  // namespace

Order::Order(const Context& context, const std::vector<RecordGroups>& groups, Effort& effort)
    : context_(context), groups_(groups), effort_(effort) {
  number_columns();
  set_up_rows();
  before_.resize(groups.size());
  for (size_t r = 0; r < groups.size(); ++r) {
    effort.charge(groups[r].groups.size() * context.rank_count());
    before_[r].resize(groups[r].groups.size() * context.rank_count());
  }
  find_order(0);
  find_order(1);
  check_phases();
}

void Order::number_columns() {
  column_.assign(context_.entry.counter_count, kNoColumn);
  for (size_t r = 0; r < groups_.size(); ++r) {
    const std::vector<package::Wait>& waits = context_.entry.records[r].waits;
    for (size_t w = 0; w < waits.size(); ++w) {
      const Group* previous = nullptr;
      for (const Group& group : groups_[r].groups) {
        // Many groups that differ only in what they signal may wait for the same million counters.
        if (previous != nullptr && previous->wait[w] == group.wait[w]) continue;
        previous = &group;
        effort_.charge(waits[w].count);
        for (uint32_t k = 0; k < waits[w].count; ++k) number_column(group.wait[w] + k);
      }
    }
  }
  const uint64_t all = counter_.size() * context_.rank_count();
  if (all > kMostColumns) {
    throw base::Failure(MKRT_ERROR_SCHEDULE,
                        base::text("entry ", base::quoted(context_.entry.name), " waits for ", all,
                                   " counters on all ranks together; at most ", kMostColumns, " are allowed"));
  }
  column_count_ = static_cast<uint32_t>(counter_.size());
  all_columns_ = static_cast<uint32_t>(all);
  words_ = (all_columns_ + 63) / 64;
}

void Order::number_column(uint32_t counter) {
  if (column_[counter] != kNoColumn) return;
  column_[counter] = static_cast<uint32_t>(counter_.size());
  counter_.push_back(counter);
}

void Order::set_up_rows() {
  effort_.charge((1 + 2 * size_t{all_columns_}) * (1 + words_));
  bits_.resize((1 + 2 * size_t{all_columns_}) * words_);
  for (uint32_t c = 0; c < all_columns_; ++c) bits_[same_step_row(c) * words_ + c / 64] |= uint64_t{1} << (c % 64);
}

void Order::join(uint32_t into, uint32_t row) {
  if (row == 0 || row == into) return;
  effort_.charge(1 + words_ / kWordsPerStep);
  uint64_t* to = &bits_[into * words_];
  const uint64_t* from = &bits_[row * words_];
  for (size_t w = 0; w < words_; ++w) to[w] |= from[w];
}

uint32_t Order::new_row() {
  const size_t row = bits_.size() / words_;
  if (bits_.size() + words_ > kMostBitWords) effort_.charge(Effort::kLimit);
  effort_.charge(1 + words_);
  bits_.resize(bits_.size() + words_);
  return static_cast<uint32_t>(row);
}

// Waits of step 0 name counters that only earlier records signal, so when a record's turn comes, the sets of what it
// waits for are final. The sets of the previous step build on finished ones of the same step.
void Order::find_order(uint32_t steps_apart) {
  for (uint32_t r = 0; r < groups_.size(); ++r) {
    for (uint32_t rank = 0; rank < context_.rank_count(); ++rank) find_order_of(r, rank, steps_apart);
  }
}

void Order::find_order_of(uint32_t record, uint32_t rank, uint32_t steps_apart) {
  const std::vector<Group>& groups = groups_[record].groups;
  effort_.charge(groups.size() * Effort::kLookup);
  std::map<std::array<uint32_t, MKRT_RECORD_WAITS>, uint32_t> row_of_waits;
  Rows rows;
  for (uint32_t g = 0; g < groups.size(); ++g) {
    const auto [place, is_new] = row_of_waits.try_emplace(groups[g].wait, 0);
    if (is_new) {
      rows_waited_for(record, rank, groups[g], steps_apart, rows);
      place->second = joined_row(rows);
    }
    Before& before = before_[record][size_t{rank} * groups.size() + g];
    (steps_apart == 0 ? before.same_step : before.previous_step) = place->second;
    for (uint32_t column : signalled_columns(record, rank, g)) {
      join(steps_apart == 0 ? same_step_row(column) : previous_step_row(column), place->second);
    }
  }
}

void Order::rows_waited_for(uint32_t record, uint32_t rank, const Group& group, uint32_t steps_apart,
                            Rows& rows) const {
  rows.clear();
  const std::vector<package::Wait>& waits = context_.entry.records[record].waits;
  for (size_t w = 0; w < waits.size(); ++w) {
    if (!is_full(record, w)) continue;
    if (steps_apart == 0 && waits[w].step_offset != 0) continue;
    const bool is_same_step_set = waits[w].step_offset != 0 || steps_apart == 0;
    for (uint32_t k = 0; k < waits[w].count; ++k) {
      const uint32_t c = column(rank, group.wait[w] + k);
      rows.push_back(is_same_step_set ? same_step_row(c) : previous_step_row(c));
    }
  }
}

uint32_t Order::joined_row(const Rows& rows) {
  if (rows.empty()) return 0;
  if (rows.size() == 1) return rows.front();
  const uint32_t joined = new_row();
  for (uint32_t row : rows) join(joined, row);
  return joined;
}

template <class Visit>
bool Order::any_signalled_column(uint32_t record, uint32_t rank, const Group& group, Visit&& visit) const {
  const std::vector<package::Signal>& signals = context_.entry.records[record].signals;
  for (size_t s = 0; s < signals.size(); ++s) {
    if (column_[group.signal[s]] == kNoColumn) continue;
    const Ranks ranks = selected_ranks(signals[s].rank, rank, group.box.first, context_.rank_count());
    for (uint32_t k = 0; k < ranks.count; ++k) {
      effort_.charge(1);
      if (visit(column((ranks.first + k) % context_.rank_count(), group.signal[s]))) return true;
    }
  }
  return false;
}

bool Order::signals_into(uint32_t record, uint32_t rank, uint32_t group, uint32_t row) const {
  if (row == 0) return false;
  return any_signalled_column(record, rank, groups_[record].groups[group],
                              [&](uint32_t column) { return bit(row, column); });
}

std::vector<uint32_t> Order::signalled_columns(uint32_t record, uint32_t rank, uint32_t group) const {
  std::vector<uint32_t> columns;
  any_signalled_column(record, rank, groups_[record].groups[group], [&](uint32_t column) {
    columns.push_back(column);
    return false;
  });
  return columns;
}

void Order::Signallers::add(const std::vector<uint32_t>& columns) {
  if (columns.size() != 1) {
    other_.push_back(columns);
    return;
  }
  const uint32_t index = columns[0] / 64;
  const uint64_t mask = uint64_t{1} << (columns[0] % 64);
  if (single_.empty() || single_.back().index != index) single_.push_back({index, 0});
  single_.back().bits |= mask;
}

Order::Preceding Order::preceding(const Signallers& signallers, uint32_t row) const {
  Preceding result;
  effort_.charge(1 + signallers.single_.size() + signallers.other_.size());
  for (const Signallers::Word& word : signallers.single_) {
    const uint64_t found = bits_[row * words_ + word.index] & word.bits;
    result.any = result.any || found != 0;
    result.all = result.all && found == word.bits;
  }
  for (const std::vector<uint32_t>& columns : signallers.other_) {
    if (result.any && !result.all) break;
    const auto at = std::find_if(columns.begin(), columns.end(), [&](uint32_t column) { return bit(row, column); });
    effort_.charge(static_cast<uint64_t>(at - columns.begin()));
    const bool found = at != columns.end();
    result.any = result.any || found;
    result.all = result.all && found;
  }
  return result;
}

void Order::check_phases() {
  for (uint32_t r = 0; r < groups_.size(); ++r) {
    for (uint32_t rank = 0; rank < context_.rank_count(); ++rank) {
      for (uint32_t g = 0; g < groups_[r].groups.size(); ++g) {
        for (uint32_t column : signalled_columns(r, rank, g)) check_phase(r, rank, g, column);
      }
    }
  }
}

// The group's signals of a step come after all signals of the step before to the same counter.
void Order::check_phase(uint32_t record, uint32_t rank, uint32_t group, uint32_t target) {
  const uint32_t row = before(record, rank, group).previous_step;
  effort_.charge(1);
  if (bit(row, target)) return;  // the usual case: the counter itself is complete
  for (uint32_t r = 0; r < groups_.size(); ++r) {
    for (uint32_t other = 0; other < context_.rank_count(); ++other) {
      for (uint32_t g = 0; g < groups_[r].groups.size(); ++g) {
        effort_.charge(1);
        const bool signals_target =
            any_signalled_column(r, other, groups_[r].groups[g], [&](uint32_t column) { return column == target; });
        if (!signals_target || signals_into(r, other, g, row)) continue;
        const uint64_t late = tile_number(context_.entry.records[r], groups_[r].groups[g].box.first);
        const uint64_t early = tile_number(context_.entry.records[record], groups_[record].groups[group].box.first);
        fail_tile(context_, record, early, rank,
                  base::text("can signal ", counter_text(context_, counter_[target % column_count_]), " of rank ",
                             target / column_count_, " before ", tile_text(context_, r, late, other),
                             " did so for the step before, so that counts of two steps mix"));
      }
    }
  }
}

}  // namespace mkrt::verify
