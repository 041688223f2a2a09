// Where the slices of a box of tiles lie in a tensor, exactly, and which of them overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "verify/effort.hpp"
#include "verify/groups.hpp"

namespace mkrt::verify {

// Elements [begin, end) that something touches.
struct Piece {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t owner = 0;  // the caller's number of the access
  bool writes = false;
  uint64_t part = 0;  // group, or tile number, of the access
};

// First element of the tile with indices 0 on rank `rank`.
inline uint64_t slice_base(const package::Operand& operand, uint32_t rank) {
  return operand.offset + operand.rank_stride * rank;
}

// Appends the elements that the box's tiles touch, as few pieces as the slices allow; begin, end and the rest of
// `piece` are filled in from `base` and `piece`. The operand must be in bounds (slices.hpp).
void append_footprint(const package::Operand& operand, const Box& box, uint64_t base, const Piece& piece,
                      std::vector<Piece>& pieces, Effort& effort);

// Appends the pieces of each of the box's tiles, `part` being the number of the tile in `record`.
void append_tiles(const package::Record& record, const package::Operand& operand, const Box& box, uint64_t base,
                  const Piece& piece, std::vector<Piece>& pieces, Effort& effort);

// Whether the strides alone show that the slices of any two of the box's tiles are disjoint. False says nothing.
bool slices_are_disjoint(const package::Operand& operand, const Box& box);

// Whether equal tiles touch equal elements through both operands (of one rank).
bool same_slices(const package::Operand& a, const package::Operand& b, const package::Record& record);

// The first tile of the box whose slice holds `element`; the box's first tile where the search would take too long.
uint64_t tile_that_touches(const package::Record& record, const package::Operand& operand, const Box& box,
                           uint64_t base, uint64_t element);

inline void sort_pieces(std::vector<Piece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
}

// The pieces of one side that a sweep has met and not yet left behind.
class ActivePieces {
 public:
  void add(const Piece& piece) { (piece.writes ? writers_ : readers_).push_back(&piece); }
  // Calls visit(other) for each that overlaps `piece`, at least one of the two writing.
  template <class Visit>
  void for_each_conflict(const Piece& piece, Effort& effort, Visit&& visit) {
    visit_overlapping(writers_, piece, effort, visit);
    if (piece.writes) visit_overlapping(readers_, piece, effort, visit);
  }

 private:
  template <class Visit>
  static void visit_overlapping(std::vector<const Piece*>& active, const Piece& piece, Effort& effort, Visit& visit) {
    effort.charge(active.size());
    for (size_t i = 0; i < active.size();) {
      if (active[i]->end > piece.begin) {
        visit(*active[i++]);
      } else {
        active[i] = active.back();
        active.pop_back();
      }
    }
  }

  std::vector<const Piece*> writers_;
  std::vector<const Piece*> readers_;
};

// Calls visit(a, b) for all overlapping pairs of one sorted list, at least one of them writing.
template <class Visit>
void for_each_conflict_within(std::span<const Piece> pieces, Effort& effort, Visit&& visit) {
  ActivePieces active;
  for (const Piece& piece : pieces) {
    active.for_each_conflict(piece, effort, [&](const Piece& other) { visit(other, piece); });
    active.add(piece);
  }
}

// Calls visit(a, b) for all overlapping pairs of an a of `as` and a b of `bs`, both sorted, at least one writing.
template <class Visit>
void for_each_conflict_between(std::span<const Piece> as, std::span<const Piece> bs, Effort& effort, Visit&& visit) {
  ActivePieces active_a, active_b;
  effort.charge(as.size() + bs.size());
  size_t a = 0, b = 0;
  while (a < as.size() || b < bs.size()) {
    if (b == bs.size() || (a < as.size() && as[a].begin <= bs[b].begin)) {
      active_b.for_each_conflict(as[a], effort, [&](const Piece& other) { visit(as[a], other); });
      active_a.add(as[a++]);
    } else {
      active_a.for_each_conflict(bs[b], effort, [&](const Piece& other) { visit(other, bs[b]); });
      active_b.add(bs[b++]);
    }
  }
}

}  // namespace mkrt::verify
