#include "verify/conflicts.hpp"

#include <set>
#include <tuple>
#include <utility>

#include "base/failure.hpp"
#include "verify/footprint.hpp"

namespace mkrt::verify {
namespace {

using package::Operand;
using package::Record;

// An operand of a record, as the tiles of one rank use it on the instance of a tensor that is being checked.
struct Access {
  uint32_t operand = 0;  // number in the opcode
  uint32_t rank = 0;     // whose tiles
  bool writes = false;
  bool appends = false;
  bool is_apart = false;  // no two different tiles of this access touch the same element, but for a shared slice
};

// All accesses of one record to one instance of a tensor.
struct Cluster {
  uint32_t record = 0;
  bool writes = false;
  std::vector<Access> accesses;
  std::vector<Order::Before> befores;  // of the tiles, each once
  Order::Signallers signallers;        // the tiles, as those that others may follow
  std::vector<Piece> pieces;           // sorted; empty until needed. `part` is the group
};

// How the tiles of a cluster follow those of another.
struct Follows {
  bool entirely = true;    // each after all of the other
  bool everywhere = true;  // each after at least one of the other
};

// Use of a tensor by a record, before ranks are looked at.
struct Use {
  uint32_t record = 0;
  uint32_t operand = 0;
};

// Checks one instance of one tensor: the one of rank `instance_`.
class InstanceCheck {
 public:
  InstanceCheck(const Context& context, const std::vector<RecordGroups>& groups, const Order& order, Effort& effort,
                uint32_t tensor, uint32_t instance)
      : context_(context), groups_(groups), order_(order), effort_(effort), tensor_(tensor), instance_(instance) {}

  void run(const std::vector<Use>& uses) {
    gather(uses);
    for (Cluster& cluster : clusters_) check_within(cluster);
    check_sequence();
  }

 private:
  void gather(const std::vector<Use>& uses);
  void add_accesses(Cluster& cluster, uint32_t operand_number);
  void find_order_of(Cluster& cluster);
  void check_within(Cluster& cluster);
  void check_apart(const Cluster& cluster, Access& access);
  void check_overlaps(Cluster& cluster);
  void check_tiles(const Cluster& cluster, const Access& a, const Access& b, const Box& box);
  void check_sequence();
  void check_pair(Cluster& earlier, Cluster& later, uint32_t steps_apart);
  Follows follows(const Cluster& earlier, const Cluster& later, uint32_t steps_apart) const;
  const std::vector<Piece>& pieces_of(Cluster& cluster);
  [[noreturn]] void fail(const Cluster& earlier, const Piece& first, const Cluster& later, const Piece& second,
                         uint32_t steps_apart) const;
  [[noreturn]] void fail_tiles(const Cluster& earlier, const Piece& first, uint64_t first_tile, const Cluster& later,
                               const Piece& second, uint64_t second_tile, uint32_t steps_apart) const;
  uint64_t tile_at(const Cluster& cluster, const Piece& piece, uint64_t element) const;

  const Record& record_of(const Cluster& cluster) const { return context_.entry.records[cluster.record]; }
  const Operand& operand_of(const Cluster& cluster, const Access& access) const {
    return *record_of(cluster).operands[access.operand];
  }
  uint64_t base_of(const Cluster& cluster, const Access& access) const {
    return slice_base(operand_of(cluster, access), access.rank);
  }
  bool touches(const Cluster& cluster, const Access& access, const Group& group) const {
    return selected_ranks(operand_of(cluster, access).rank, access.rank, group.box.first, context_.rank_count())
        .contains(instance_, context_.rank_count());
  }
  // Calls visit(group number) for the groups whose tiles touch the instance through the access.
  template <class Visit>
  void for_each_group(const Cluster& cluster, const Access& access, Visit&& visit) const {
    const std::vector<Group>& groups = groups_[cluster.record].groups;
    effort_.charge(groups.size());
    for (uint32_t g = 0; g < groups.size(); ++g) {
      if (touches(cluster, access, groups[g])) visit(g);
    }
  }

  const Context& context_;
  const std::vector<RecordGroups>& groups_;
  const Order& order_;
  Effort& effort_;
  uint32_t tensor_;
  uint32_t instance_;
  std::vector<Cluster> clusters_;  // in the order of their records
};

void InstanceCheck::gather(const std::vector<Use>& uses) {
  for (const Use& use : uses) {
    if (clusters_.empty() || clusters_.back().record != use.record) {
      clusters_.emplace_back();
      clusters_.back().record = use.record;
    }
    add_accesses(clusters_.back(), use.operand);
  }
  std::erase_if(clusters_, [](const Cluster& cluster) { return cluster.accesses.empty(); });
  for (Cluster& cluster : clusters_) find_order_of(cluster);
}

void InstanceCheck::add_accesses(Cluster& cluster, uint32_t operand_number) {
  const package::Access kind = context_.opcode(cluster.record).operands[operand_number].access;
  const mkrt_rank_selector& selector = record_of(cluster).operands[operand_number]->rank;
  Access access;
  access.operand = operand_number;
  access.writes = package::is_write(kind);
  access.appends = kind == package::Access::append;
  effort_.charge(context_.rank_count());
  for (uint32_t rank = 0; rank < context_.rank_count(); ++rank) {
    if (selector.mode == MKRT_RANK_SELF && rank != instance_) continue;
    access.rank = rank;
    bool touches_instance = false;
    for_each_group(cluster, access, [&](uint32_t) { touches_instance = true; });
    if (!touches_instance) continue;
    cluster.accesses.push_back(access);
    cluster.writes = cluster.writes || access.writes;
  }
}

void InstanceCheck::find_order_of(Cluster& cluster) {
  std::set<Order::Before> befores;
  std::set<std::pair<uint32_t, uint32_t>> signallers;  // rank, and a group for each set of signalled counters
  const RecordGroups& groups = groups_[cluster.record];
  for (const Access& access : cluster.accesses) {
    for_each_group(cluster, access, [&](uint32_t g) {
      effort_.charge(Effort::kLookup);
      befores.insert(order_.before(cluster.record, access.rank, g));
      signallers.emplace(access.rank, groups.class_member[groups.groups[g].signal_class]);
    });
  }
  cluster.befores.assign(befores.begin(), befores.end());
  for (const auto& [rank, group] : signallers) {
    cluster.signallers.add(order_.signalled_columns(cluster.record, rank, group));
  }
}

const std::vector<Piece>& InstanceCheck::pieces_of(Cluster& cluster) {
  if (!cluster.pieces.empty()) return cluster.pieces;
  for (uint32_t a = 0; a < cluster.accesses.size(); ++a) {
    const Access& access = cluster.accesses[a];
    for_each_group(cluster, access, [&](uint32_t g) {
      append_footprint(operand_of(cluster, access), groups_[cluster.record].groups[g].box, base_of(cluster, access),
                       {0, 0, a, access.writes, g}, cluster.pieces, effort_);
    });
  }
  sort_pieces(cluster.pieces);
  return cluster.pieces;
}

// ---- Tiles of one record in one step: nothing orders them, so they must be apart. ----

void InstanceCheck::check_within(Cluster& cluster) {
  if (!cluster.writes) return;
  for (Access& access : cluster.accesses) {
    if (access.writes) check_apart(cluster, access);
  }
  if (cluster.accesses.size() > 1 || !cluster.accesses.front().is_apart) check_overlaps(cluster);
}

// Finds out whether different tiles of one access are apart, and refuses tiles of one group that are not.
void InstanceCheck::check_apart(const Cluster& cluster, Access& access) {
  const Operand& operand = operand_of(cluster, access);
  Box whole{{}, record_of(cluster).grid};
  if (access.appends) {  // tiles may share a slice, as whole slices: one of them stands for all
    for (uint32_t d : context_.opcode(cluster.record).operands[access.operand].shared_dimensions) {
      if (operand.strides[d] == 0) whole.count[d] = 1;
    }
  }
  access.is_apart = slices_are_disjoint(operand, whole);
  if (access.is_apart) return;
  if (access.appends) {
    check_tiles(cluster, access, access, whole);
    access.is_apart = true;
    return;
  }
  for_each_group(cluster, access, [&](uint32_t g) {
    const Box& box = groups_[cluster.record].groups[g].box;
    if (!slices_are_disjoint(operand, box)) check_tiles(cluster, access, access, box);
  });
}

// Refuses overlaps between groups, and between the accesses of one group unless a tile overlaps only itself.
void InstanceCheck::check_overlaps(Cluster& cluster) {
  std::set<std::tuple<uint64_t, uint32_t, uint32_t>> inside_group;  // group, two accesses
  for_each_conflict_within(pieces_of(cluster), effort_, [&](const Piece& first, const Piece& second) {
    const Access& a = cluster.accesses[first.owner];
    const Access& b = cluster.accesses[second.owner];
    if (first.owner == second.owner && (a.is_apart || first.part == second.part)) return;  // check_apart saw to it
    if (a.rank != b.rank || first.part != second.part) fail(cluster, first, cluster, second, 0);
    // A tile may alias itself; for equal slices of a plain write, check_apart has shown that others do not.
    const bool is_same = same_slices(operand_of(cluster, a), operand_of(cluster, b), record_of(cluster));
    if (is_same && !a.appends && !b.appends) return;
    effort_.charge(Effort::kLookup);
    inside_group.emplace(first.part, std::min(first.owner, second.owner), std::max(first.owner, second.owner));
  });
  for (const auto& [group, a, b] : inside_group) {
    check_tiles(cluster, cluster.accesses[a], cluster.accesses[b], groups_[cluster.record].groups[group].box);
  }
}

// Refuses different tiles of the box that conflict, one through `a` and one through `b`; both on one rank.
void InstanceCheck::check_tiles(const Cluster& cluster, const Access& a, const Access& b, const Box& box) {
  const auto number = [&](const Access& access) { return static_cast<uint32_t>(&access - cluster.accesses.data()); };
  const auto tiles = [&](const Access& access) {
    std::vector<Piece> pieces;
    append_tiles(record_of(cluster), operand_of(cluster, access), box, base_of(cluster, access),
                 {0, 0, number(access), access.writes, 0}, pieces, effort_);
    sort_pieces(pieces);
    return pieces;
  };
  const auto refuse_different = [&](const Piece& first, const Piece& second) {
    if (first.part != second.part) fail_tiles(cluster, first, first.part, cluster, second, second.part, 0);
  };
  if (&a == &b) {
    for_each_conflict_within(tiles(a), effort_, refuse_different);
  } else {
    for_each_conflict_between(tiles(a), tiles(b), effort_, refuse_different);
  }
}

// ---- Tiles of different records or steps: those that conflict must be ordered. ----

// Looks at the clusters of two consecutive steps one after the other (README.md says why two suffice), each against
// those before it, from the nearest on. A cluster that entirely follows all before it is a barrier: what follows at
// least one tile of it everywhere follows all that lies behind it, so the look back ends there. In a chain of layers
// that reuse a buffer this makes the work linear.
void InstanceCheck::check_sequence() {
  const size_t count = clusters_.size();
  std::vector<bool> is_barrier(2 * count);
  for (size_t later = 0; later < 2 * count; ++later) {
    bool follows_all = true;
    for (size_t earlier = later; earlier-- > 0;) {
      Cluster& first = clusters_[earlier % count];
      Cluster& second = clusters_[later % count];
      const auto steps_apart = static_cast<uint32_t>(later / count - earlier / count);
      const Follows how = follows(first, second, steps_apart);
      follows_all = follows_all && how.entirely;
      const bool is_checked_already = earlier >= count;  // both in the second step
      if (!how.entirely && !is_checked_already) check_pair(first, second, steps_apart);
      if (is_barrier[earlier] && how.everywhere) break;
    }
    is_barrier[later] = follows_all;
  }
}

Follows InstanceCheck::follows(const Cluster& earlier, const Cluster& later, uint32_t steps_apart) const {
  Follows result;
  for (const Order::Before& before : later.befores) {
    const Order::Preceding preceding = order_.preceding(earlier.signallers, before.row(steps_apart));
    result.entirely = result.entirely && preceding.all;
    result.everywhere = result.everywhere && preceding.any;
    if (!result.everywhere) break;  // then not entirely either
  }
  return result;
}

void InstanceCheck::check_pair(Cluster& earlier, Cluster& later, uint32_t steps_apart) {
  if (!earlier.writes && !later.writes) return;
  pieces_of(earlier);
  pieces_of(later);
  for_each_conflict_between(earlier.pieces, later.pieces, effort_, [&](const Piece& first, const Piece& second) {
    const Order::Before before =
        order_.before(later.record, later.accesses[second.owner].rank, static_cast<uint32_t>(second.part));
    const bool is_ordered = order_.signals_into(earlier.record, earlier.accesses[first.owner].rank,
                                                static_cast<uint32_t>(first.part), before.row(steps_apart));
    if (!is_ordered) fail(earlier, first, later, second, steps_apart);
  });
}

// ---- Failures ----

uint64_t InstanceCheck::tile_at(const Cluster& cluster, const Piece& piece, uint64_t element) const {
  const Access& access = cluster.accesses[piece.owner];
  return tile_that_touches(record_of(cluster), operand_of(cluster, access),
                           groups_[cluster.record].groups[piece.part].box, base_of(cluster, access), element);
}

void InstanceCheck::fail(const Cluster& earlier, const Piece& first, const Cluster& later, const Piece& second,
                         uint32_t steps_apart) const {
  const uint64_t element = std::max(first.begin, second.begin);
  fail_tiles(earlier, first, tile_at(earlier, first, element), later, second, tile_at(later, second, element),
             steps_apart);
}

void InstanceCheck::fail_tiles(const Cluster& earlier, const Piece& first, uint64_t first_tile, const Cluster& later,
                               const Piece& second, uint64_t second_tile, uint32_t steps_apart) const {
  const Access& a = earlier.accesses[first.owner];
  const Access& b = later.accesses[second.owner];
  const auto operand = [&](const Cluster& cluster, const Access& access) {
    return base::quoted(context_.opcode(cluster.record).operands[access.operand].name);
  };
  fail_tile(context_, later.record, second_tile, b.rank,
            base::text(b.writes ? "writes" : "reads", " element ", std::max(first.begin, second.begin), " of tensor ",
                       base::quoted(context_.program.tensors[tensor_].name), " of rank ", instance_, " (operand ",
                       operand(later, b), "), which ", tile_text(context_, earlier.record, first_tile, a.rank),
                       steps_apart == 0 ? "" : ", of the step before,", a.writes ? " writes" : " reads", " (operand ",
                       operand(earlier, a), "); no counter orders the two"));
}

// The uses of each tensor that some record writes.
std::vector<std::vector<Use>> uses_of_written_tensors(const Context& context) {
  const size_t tensor_count = context.program.tensors.size();
  std::vector<std::vector<Use>> uses(tensor_count);
  std::vector<bool> is_written(tensor_count);
  for (uint32_t r = 0; r < context.entry.records.size(); ++r) {
    const std::vector<std::optional<Operand>>& operands = context.entry.records[r].operands;
    for (uint32_t o = 0; o < operands.size(); ++o) {
      if (!operands[o]) continue;
      uses[operands[o]->tensor].push_back({r, o});
      if (package::is_write(context.opcode(r).operands[o].access)) is_written[operands[o]->tensor] = true;
    }
  }
  for (size_t t = 0; t < tensor_count; ++t) {
    if (!is_written[t]) uses[t].clear();
  }
  return uses;
}

}  // namespace

void check_conflicts(const Context& context, const std::vector<RecordGroups>& groups, const Order& order,
                     Effort& effort) {
  effort.charge(context.program.tensors.size());
  const std::vector<std::vector<Use>> uses = uses_of_written_tensors(context);
  for (uint32_t tensor = 0; tensor < uses.size(); ++tensor) {
    if (uses[tensor].empty()) continue;
    for (uint32_t rank = 0; rank < context.rank_count(); ++rank) {
      InstanceCheck(context, groups, order, effort, tensor, rank).run(uses[tensor]);
    }
  }
}

}  // namespace mkrt::verify
