#include "cli/tokenizer.hpp"

#include <algorithm>

#include "cli/error.hpp"
#include "cli/unicode.hpp"

namespace mkrt::cli {
namespace {

using AddedToken = TokenizerDefinition::AddedToken;
using Cut = TokenizerDefinition::Cut;

// The added token that `text` begins with, the longest of several; NULL where there is none.
const AddedToken* match_front(const std::vector<std::vector<AddedToken>>& added, std::string_view text) {
  for (const AddedToken& token : added[static_cast<uint8_t>(text[0])]) {
    if (text.starts_with(token.content)) return &token;
  }
  return nullptr;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerDefinition definition)
    : definition_(std::move(definition)), added_raw_(256), added_normalized_(256) {
  for (const AddedToken& token : definition_.added_tokens) {
    AddedTokens& table = token.normalized ? added_normalized_ : added_raw_;
    AddedToken copy = token;
    if (token.normalized && definition_.nfc) copy.content = compose_nfc(token.content);
    table[static_cast<uint8_t>(copy.content[0])].push_back(copy);
  }
  for (AddedTokens* table : {&added_raw_, &added_normalized_}) {
    for (auto& tokens : *table) {
      std::stable_sort(tokens.begin(), tokens.end(),
                       [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
    }
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    throw Error("the text is not UTF-8: byte " + std::to_string(at) + " does not belong to a code point");
  }
  std::vector<int32_t> out = definition_.prefix;
  encode_outside_added(text, added_raw_, out, &Tokenizer::encode_raw);
  out.insert(out.end(), definition_.suffix.begin(), definition_.suffix.end());
  return out;
}

// Appends the tokens of `added` that `text` contains, and what `rest` makes of the text between them.
void Tokenizer::encode_outside_added(std::string_view text, const AddedTokens& added, std::vector<int32_t>& out,
                                     void (Tokenizer::*rest)(std::string_view, std::vector<int32_t>&) const) const {
  size_t begin = 0;  // of the text since the last added token
  for (size_t i = 0; i < text.size();) {
    const AddedToken* token = match_front(added, text.substr(i));
    if (token == nullptr) {
      ++i;
      continue;
    }
    if (begin < i) (this->*rest)(text.substr(begin, i - begin), out);
    out.push_back(token->id);
    begin = i += token->content.size();
  }
  if (begin < text.size()) (this->*rest)(text.substr(begin), out);
}

void Tokenizer::encode_raw(std::string_view text, std::vector<int32_t>& out) const {
  if (definition_.nfc) {
    encode_outside_added(compose_nfc(text), added_normalized_, out, &Tokenizer::encode_normalized);
  } else {
    encode_outside_added(text, added_normalized_, out, &Tokenizer::encode_normalized);
  }
}

void Tokenizer::encode_normalized(std::string_view text, std::vector<int32_t>& out) const { cut(text, 0, out); }

// Cuts `text` by the stages from `stage` on, and encodes the pieces.
void Tokenizer::cut(std::string_view text, size_t stage, std::vector<int32_t>& out) const {
  if (text.empty()) return;
  if (stage == definition_.cuts.size()) {
    definition_.byte_pairs.encode(text, out);
    return;
  }
  const Cut& here = definition_.cuts[stage];
  if (here.kind == Cut::Kind::kPrefixSpace) {
    cut(text[0] == ' ' ? std::string(text) : " " + std::string(text), stage + 1, out);
    return;
  }
  for (size_t end = 0; end < text.size();) {
    Pattern::Match match = here.pattern->find(text, end);
    if (match.begin == std::string_view::npos) match = {text.size(), text.size()};
    if (here.kind == Cut::Kind::kIsolate) cut(text.substr(end, match.begin - end), stage + 1, out);
    cut(text.substr(match.begin, match.end - match.begin), stage + 1, out);
    end = match.end;
  }
}

std::string_view Tokenizer::bytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= definition_.tokens.size()) return {};
  const TokenizerDefinition::Token& token = definition_.tokens[static_cast<size_t>(id)];
  return token.special ? std::string_view() : std::string_view(token.bytes);
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) out += bytes(id);
  return out;
}

}  // namespace mkrt::cli
