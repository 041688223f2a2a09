#include "verify/footprint.hpp"

namespace mkrt::verify {
namespace {

using package::Operand;

// `count` copies, `stride` elements apart.
struct Repeat {
  uint64_t count;
  uint64_t stride;
};
using Repeats = std::vector<Repeat>;

void sort_by_stride(Repeats& repeats) {
  std::sort(repeats.begin(), repeats.end(), [](const Repeat& a, const Repeat& b) { return a.stride < b.stride; });
}

Repeats tile_repeats(const Operand& operand, const Box& box) {
  Repeats repeats;
  for (size_t d = 0; d < box.count.size(); ++d) {
    if (box.count[d] > 1) repeats.push_back({box.count[d], operand.strides[d]});
  }
  sort_by_stride(repeats);
  return repeats;
}

// Start of the slice of a tile, counted from the slice of the tile with indices 0.
uint64_t start_of(const Operand& operand, const Indices& indices) {
  uint64_t start = 0;
  for (size_t d = 0; d < indices.size(); ++d) start += operand.strides[d] * indices[d];
  return start;
}

uint64_t last_start(const Operand& operand, const Box& box) {
  Indices last = box.first;
  for (size_t d = 0; d < last.size(); ++d) last[d] += box.count[d] - 1;
  return start_of(operand, last);
}

bool is_cut(const Operand& operand, const Box& box) { return last_start(operand, box) + operand.size > operand.limit; }

// Joins copies that touch or overlap one another: takes them off the front of `repeats`, returns the joined extent.
uint64_t join_touching(Repeats& repeats, uint64_t extent) {
  size_t joined = 0;
  while (joined < repeats.size() && repeats[joined].stride <= extent) {
    extent += (repeats[joined].count - 1) * repeats[joined].stride;
    ++joined;
  }
  repeats.erase(repeats.begin(), repeats.begin() + static_cast<std::ptrdiff_t>(joined));
  return extent;
}

// Calls visit(sum) for the start of each copy.
template <class Visit>
void for_each_copy(std::span<const Repeat> repeats, uint64_t start, Visit&& visit) {
  if (repeats.empty()) {
    visit(start);
    return;
  }
  for (uint64_t i = 0; i < repeats.front().count; ++i) {
    for_each_copy(repeats.subspan(1), start + i * repeats.front().stride, visit);
  }
}

// Each copy becomes a piece, which takes 40 bytes and is sorted.
void charge_copies(const Repeats& repeats, uint64_t each, Effort& effort) {
  uint64_t copies = each * Effort::kLookup;  // fits: `each` has 32 bits
  for (const Repeat& repeat : repeats) {
    if (__builtin_mul_overflow(copies, repeat.count, &copies)) copies = Effort::kLimit;
  }
  effort.charge(copies);
}

// Whether copies of something of size `extent` are apart from each other; `extent` becomes the size of all of them.
bool are_apart(const Repeats& repeats, uint64_t& extent) {
  for (const Repeat& repeat : repeats) {
    if (repeat.stride < extent) return false;
    extent += (repeat.count - 1) * repeat.stride;
  }
  return true;
}

// Calls visit(indices) for the box's tiles in order until it returns true.
template <class Visit>
void for_each_tile(const Box& box, Visit&& visit) {
  Indices at = box.first;
  while (!visit(at)) {
    size_t d = at.size();
    while (d-- > 0) {
      if (++at[d] < box.first[d] + box.count[d]) break;
      at[d] = box.first[d];
      if (d == 0) return;
    }
  }
}

}  // namespace

void append_footprint(const Operand& operand, const Box& box, uint64_t base, const Piece& piece,
                      std::vector<Piece>& pieces, Effort& effort) {
  const uint64_t start = start_of(operand, box.first);
  Repeats repeats = tile_repeats(operand, box);
  const bool cut = is_cut(operand, box);
  if (!cut && operand.rows > 1) {  // rows are one more dimension
    repeats.push_back({operand.rows, operand.row_stride});
    sort_by_stride(repeats);
  }
  const uint64_t extent = join_touching(repeats, operand.size);
  const uint32_t rows = cut ? operand.rows : 1;
  charge_copies(repeats, rows, effort);
  for_each_copy(repeats, start, [&](uint64_t copy) {
    // Without a cut, `copy` may lie in any row, where the limit says nothing.
    const uint64_t end = cut ? std::min(copy + extent, operand.limit) : copy + extent;
    for (uint32_t row = 0; row < rows; ++row) {
      const uint64_t row_base = base + row * operand.row_stride;
      pieces.push_back({row_base + copy, row_base + end, piece.owner, piece.writes, piece.part});
    }
  });
}

void append_tiles(const package::Record& record, const Operand& operand, const Box& box, uint64_t base,
                  const Piece& piece, std::vector<Piece>& pieces, Effort& effort) {
  charge_copies({{box.tile_count(), 0}}, operand.rows, effort);
  for_each_tile(box, [&](const Indices& indices) {
    const uint64_t start = start_of(operand, indices);
    const uint64_t end = std::min(start + operand.size, operand.limit);
    for (uint32_t row = 0; row < operand.rows; ++row) {
      const uint64_t row_base = base + row * operand.row_stride;
      pieces.push_back({row_base + start, row_base + end, piece.owner, piece.writes, tile_number(record, indices)});
    }
    return false;
  });
}

bool slices_are_disjoint(const Operand& operand, const Box& box) {
  const Repeats tiles = tile_repeats(operand, box);
  // Rows somewhere among the tiles' dimensions, as in "each tile has its rows in one piece".
  Repeats all = tiles;
  if (operand.rows > 1) all.push_back({operand.rows, operand.row_stride});
  sort_by_stride(all);
  uint64_t extent = operand.size;
  if (are_apart(all, extent)) return true;
  // Rows outermost, as in a matrix: all tiles' parts of a row end at the limit at most.
  extent = operand.size;
  if (!are_apart(tiles, extent)) return false;
  extent = std::min(extent, operand.limit - start_of(operand, box.first));
  return operand.rows == 1 || operand.row_stride >= extent;
}

bool same_slices(const Operand& a, const Operand& b, const package::Record& record) {
  for (size_t d = 0; d < a.strides.size(); ++d) {
    if (record.grid[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return a.offset == b.offset && a.rank_stride == b.rank_stride && a.size == b.size && a.limit == b.limit &&
         a.rows == b.rows && (a.rows == 1 || a.row_stride == b.row_stride);
}

uint64_t tile_that_touches(const package::Record& record, const Operand& operand, const Box& box, uint64_t base,
                           uint64_t element) {
  uint64_t found = tile_number(record, box.first);
  uint64_t left = uint64_t{1} << 20;  // steps of the search: milliseconds
  for_each_tile(box, [&](const Indices& indices) {
    const uint64_t start = start_of(operand, indices);
    const uint64_t end = std::min(start + operand.size, operand.limit);
    for (uint32_t row = 0; row < operand.rows && left > 0; ++row, --left) {
      const uint64_t row_base = base + row * operand.row_stride;
      if (element < row_base + start || element >= row_base + end) continue;
      found = tile_number(record, indices);
      return true;
    }
    return left == 0;
  });
  return found;
}

}  // namespace mkrt::verify
