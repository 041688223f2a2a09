// Text to token numbers and back, as a Hugging Face tokenizer.json describes it.
//
// Understood: byte-level byte-pair encoding with the pre-tokenizers ByteLevel, Split and Digits, alone or in a
// Sequence; the normalizer NFC; added tokens; templates that put tokens around a text. Anything else is refused by
// name when the file is read, so that no text is ever encoded almost right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/byte_pairs.hpp"
#include "cli/pattern.hpp"

namespace mkrt::cli {

// What a tokenizer.json says. `read_tokenizer_file` makes it, Tokenizer works with it.
struct TokenizerDefinition {
  struct Token {
    std::string bytes;     // empty for a number that no token has
    bool special = false;  // controls the model, is no text
  };
  // A token that is found in the text itself before anything else happens to it.
  struct AddedToken {
    std::string content;
    int32_t id;
    bool normalized;  // is looked for in the normalized text
  };
  // One stage of cutting a text into pieces, none of which a token may reach beyond.
  struct Cut {
    enum class Kind {
      kPrefixSpace,  // puts a space before a text that has none
      kIsolate,      // each match is a piece, and so is each gap between matches
      kMatches,      // each match is a piece, gaps are dropped
    };
    Kind kind;
    std::optional<Pattern> pattern = {};  // none for kPrefixSpace
  };

  std::vector<Token> tokens;  // by number
  std::vector<AddedToken> added_tokens;
  bool nfc = false;
  std::vector<Cut> cuts;
  BytePairs byte_pairs;
  std::vector<int32_t> prefix, suffix;  // what the template puts around one text
};

// Throws Error with the file, the field and what is wrong with it.
TokenizerDefinition read_tokenizer_file(const std::string& path);

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerDefinition definition);
  // Throws as read_tokenizer_file.
  static Tokenizer read(const std::string& path) { return Tokenizer(read_tokenizer_file(path)); }

  // Tokens of `text`, with those that the template adds. Throws Error where `text` is not UTF-8.
  std::vector<int32_t> encode(std::string_view text) const;

  // Bytes that a token stands for; none for special tokens and for numbers that no token has. A token's bytes need not
  // be whole code points.
  std::string_view bytes(int32_t id) const;
  // The bytes of all of them, one after the other.
  std::string decode(std::span<const int32_t> ids) const;

 private:
  // Added tokens that are looked for in one pass, those that begin with the same byte together, longest first.
  using AddedTokens = std::vector<std::vector<TokenizerDefinition::AddedToken>>;

  void encode_outside_added(std::string_view text, const AddedTokens& added, std::vector<int32_t>& out,
                            void (Tokenizer::*rest)(std::string_view, std::vector<int32_t>&) const) const;
  void encode_raw(std::string_view text, std::vector<int32_t>& out) const;
  void encode_normalized(std::string_view text, std::vector<int32_t>& out) const;
  void cut(std::string_view text, size_t stage, std::vector<int32_t>& out) const;

  TokenizerDefinition definition_;
  AddedTokens added_raw_, added_normalized_;
};

}  // namespace mkrt::cli
