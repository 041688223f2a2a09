#include "cli/byte_pairs.hpp"

#include <cassert>
#include <queue>
#include <tuple>

namespace mkrt::cli {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr int32_t kNone = -1;

// A token of the piece so far, linked to its neighbours; `id` is kNone once it became part of its left neighbour.
struct Symbol {
  int32_t id;
  int32_t previous;
  int32_t next;
};

// A merge that was possible when it was found. It is out of date when one of its tokens has changed since.
struct Candidate {
  uint32_t rank;
  int32_t left;  // index of the left symbol
  // Smallest rank first, then leftmost; priority_queue puts the greatest on top.
  bool operator<(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
};

}  // namespace

void BytePairs::add_token(std::string_view bytes, int32_t id) {
  tokens_.emplace(bytes, id);
  if (bytes.size() == 1) byte_tokens_[static_cast<uint8_t>(bytes[0])] = id;
}

void BytePairs::add_merge(int32_t left, int32_t right, int32_t merged) {
  merges_.emplace(pair_key(left, right), Merge{static_cast<uint32_t>(merges_.size()), merged});
}

std::optional<uint8_t> BytePairs::missing_byte() const {
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    if (byte_tokens_[byte] == kNone) return static_cast<uint8_t>(byte);
  }
  return std::nullopt;
}

const BytePairs::Merge* BytePairs::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (whole_pieces_first_) {
    if (const auto whole = tokens_.find(piece); whole != tokens_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  const auto size = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    const int32_t id = byte_tokens_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])];
    assert(id != kNone);
    symbols.push_back({id, i - 1, i + 1 < size ? i + 1 : kNone});
  }

  std::priority_queue<Candidate> candidates;
  const auto consider = [&](int32_t left) {
    if (left == kNone || symbols[left].next == kNone) return;
    const Merge* merge = find_merge(symbols[left].id, symbols[symbols[left].next].id);
    if (merge != nullptr) candidates.push({merge->rank, left});
  };
  for (int32_t i = 0; i + 1 < size; ++i) consider(i);

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[best.left];
    if (left.id == kNone || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = find_merge(left.id, right.id);
    if (merge == nullptr || merge->rank != best.rank) continue;  // out of date
    left.id = merge->merged;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) symbols[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (int32_t i = size > 0 ? 0 : kNone; i != kNone; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace mkrt::cli
