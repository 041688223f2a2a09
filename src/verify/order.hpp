// Which tiles are finished before which others start, whatever the workers do. README.md has the argument.
//
// For every counter that somebody waits for, on every rank, two sets of such counters: those that are complete (have
// got everything that a step adds) in the same step, and those complete in the step before, once the counter is. A
// tile is after all tiles that signal a counter of the sets of what it waits for.
#pragma once

#include <vector>

#include "verify/effort.hpp"
#include "verify/groups.hpp"
#include "verify/report.hpp"

namespace mkrt::verify {

class Order {
 public:
  // The counters that are complete before a tile starts, as two rows of the bit matrix: of its step, and of the step
  // before. Tiles with equal ones are after the same tiles.
  struct Before {
    uint32_t same_step = 0;
    uint32_t previous_step = 0;

    bool operator==(const Before&) const = default;
    auto operator<=>(const Before&) const = default;
    uint32_t row(uint32_t steps_apart) const { return steps_apart == 0 ? same_step : previous_step; }
  };

  // Tiles that may precede others, by the counters that they signal.
  class Signallers {
   public:
    // `columns` of the bit matrix, of one kind of tile.
    void add(const std::vector<uint32_t>& columns);

   private:
    friend class Order;
    struct Word {
      uint32_t index;
      uint64_t bits;
    };
    // Kinds of tiles that signal one counter each are tested 64 at a time. The usual case: with a counter for each
    // head and sequence this made the check of a batch of 16 four times as fast.
    std::vector<Word> single_;
    std::vector<std::vector<uint32_t>> other_;  // columns of each other kind
  };
  struct Preceding {
    bool all = true;
    bool any = false;
  };

  // Refuses schedules in which a counter that is waited for can get counts of two steps mixed up.
  // The waits' totals are known.
  Order(const Context& context, const std::vector<RecordGroups>& groups, Effort& effort);

  Before before(uint32_t record, uint32_t rank, uint32_t group) const {
    return before_[record][size_t{rank} * groups_[record].groups.size() + group];
  }
  // Whether the tiles of `group` signal a counter of `row`: then they precede every tile that has this row.
  bool signals_into(uint32_t record, uint32_t rank, uint32_t group, uint32_t row) const;
  // The columns of the counters that the tiles of `group` signal, as far as somebody waits for them.
  std::vector<uint32_t> signalled_columns(uint32_t record, uint32_t rank, uint32_t group) const;
  // How many kinds of `signallers` precede the tiles that have this row.
  Preceding preceding(const Signallers& signallers, uint32_t row) const;

 private:
  // The rows that the waits of one group on one rank name, to be joined.
  using Rows = std::vector<uint32_t>;

  void number_columns();
  void number_column(uint32_t counter);
  void set_up_rows();
  uint32_t column(uint32_t rank, uint32_t counter) const { return rank * column_count_ + column_[counter]; }
  uint32_t same_step_row(uint32_t column) const { return 1 + column; }
  uint32_t previous_step_row(uint32_t column) const { return 1 + all_columns_ + column; }
  bool bit(uint32_t row, uint32_t column) const {
    return (bits_[row * words_ + column / 64] >> (column % 64) & 1) != 0;
  }
  void join(uint32_t into, uint32_t row);
  uint32_t new_row();
  void find_order(uint32_t steps_apart);
  void find_order_of(uint32_t record, uint32_t rank, uint32_t steps_apart);
  uint32_t joined_row(const Rows& rows);
  void rows_waited_for(uint32_t record, uint32_t rank, const Group& group, uint32_t steps_apart, Rows& rows) const;
  bool is_full(uint32_t record, size_t wait) const {
    const package::Wait& of = context_.entry.records[record].waits[wait];
    return of.value == 0 || of.value == of.step_total;
  }
  // Calls visit(column) until it returns true; says whether it did.
  template <class Visit>
  bool any_signalled_column(uint32_t record, uint32_t rank, const Group& group, Visit&& visit) const;
  void check_phases();
  void check_phase(uint32_t record, uint32_t rank, uint32_t group, uint32_t column);

  const Context& context_;
  const std::vector<RecordGroups>& groups_;
  Effort& effort_;
  std::vector<uint32_t> column_;   // of each counter, kNoColumn where nothing waits for it
  std::vector<uint32_t> counter_;  // of each column of one rank
  uint32_t column_count_ = 0;      // of one rank
  uint32_t all_columns_ = 0;       // of all ranks: the bits of a row
  size_t words_ = 0;               // of a row
  // Rows: 0 is empty, then the same-step sets of all columns, then their previous-step sets, then joined ones.
  std::vector<uint64_t> bits_;
  std::vector<std::vector<Before>> before_;  // of each record: of each rank and group
};

}  // namespace mkrt::verify
