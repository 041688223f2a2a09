// Byte-pair encoding of one piece of text: the part of a tokenizer that is an algorithm.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mkrt::cli {

class BytePairs {
 public:
  BytePairs() { byte_tokens_.fill(-1); }

  // Building: tokens first, each with the bytes that it stands for; then merges in the order of their rank.
  void add_token(std::string_view bytes, int32_t id);
  void add_merge(int32_t left, int32_t right, int32_t merged);
  // A piece that is a token as a whole is not merged step by step.
  void set_whole_pieces_first(bool value) { whole_pieces_first_ = value; }

  // The first byte that no token stands for, if there is one: such a vocabulary cannot encode every text.
  std::optional<uint8_t> missing_byte() const;

  // Appends the tokens of `piece`: again and again the pair of neighbours with the lowest rank, the leftmost of equal
  // ones, becomes one token. Takes O(n log n) for a piece of n bytes. Needs every byte to have a token.
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
  };
  const Merge* find_merge(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_tokens_;
  std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>> tokens_;
  std::unordered_map<uint64_t, Merge> merges_;  // by the pair of token numbers
  bool whole_pieces_first_ = false;
};

}  // namespace mkrt::cli
