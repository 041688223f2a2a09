// Reads tokenizer.json. Every field that changes what a text becomes is either understood here or refused by name.
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/failure.hpp"
#include "base/mapped_file.hpp"
#include "cli/error.hpp"
#include "cli/tokenizer.hpp"
#include "package/json.hpp"

namespace mkrt::cli {
namespace {

using nlohmann::json;
using Cut = TokenizerDefinition::Cut;

// Contractions, letters, digits and the rest, each with a space before it: the expression that ByteLevel stands for.
constexpr const char* kByteLevelExpression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Largest token number that is accepted: 32 times what today's largest vocabularies have, and few enough that a table
// with a place for each number is no danger.
constexpr int64_t kMaxToken = (1 << 23) - 1;

// A member's name as a JSON pointer (RFC 6901) writes it.
std::string pointer_key(const std::string& key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

// A place in the file: its name for sentences, and the value there.
struct Node {
  const json* value;
  std::string pointer;
  const std::string* path;

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(*path + ": " + (pointer.empty() ? "the file" : pointer) + " " + why);
  }
  bool is_null() const { return value->is_null(); }
  // A member of an object; null where it is missing.
  Node operator[](const std::string& key) const {
    static const json kNull;
    if (!value->is_object()) refuse("must be an object");
    const auto found = value->find(key);
    return {found == value->end() ? &kNull : &*found, pointer + "/" + pointer_key(key), path};
  }
  std::vector<Node> items() const {
    if (!value->is_array()) refuse("must be an array");
    std::vector<Node> out;
    for (size_t i = 0; i < value->size(); ++i) out.push_back({&(*value)[i], pointer + "/" + std::to_string(i), path});
    return out;
  }
  const std::string& string() const {
    if (!value->is_string()) refuse("must be a string");
    return value->get_ref<const std::string&>();
  }
  bool boolean(bool missing) const {
    if (is_null()) return missing;
    if (!value->is_boolean()) refuse("must be true or false");
    return value->get<bool>();
  }
  int32_t token() const {
    if (!value->is_number_integer() || *value < 0 || *value > kMaxToken) {
      refuse("must be a token number from 0 to " + std::to_string(kMaxToken));
    }
    return value->get<int32_t>();
  }
  // For features that are not there: null, false, "" and 0 say that the tokenizer does not use them.
  void expect_unused() const {
    const bool empty_string = value->is_string() && string().empty();
    if (is_null() || empty_string || *value == false || *value == 0) return;
    refuse("is " + value->dump() + ", which mkrt does not support");
  }
};

// Vocabularies write each byte as one printable character: itself where it is one in Latin-1, otherwise the next
// free character from U+0100 on. This is the table from characters to bytes; -1 for characters that stand for none.
std::vector<int> make_character_bytes() {
  std::vector<int> bytes(0x144, -1);
  size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[printable ? static_cast<size_t>(byte) : next++] = byte;
  }
  return bytes;
}

// The bytes that a vocabulary's token is written for; nothing where a character stands for no byte. `token` is UTF-8,
// as every string that the JSON reader lets pass.
std::optional<std::string> bytes_of(std::string_view token) {
  static const std::vector<int> kCharacterBytes = make_character_bytes();
  std::string out;
  for (size_t i = 0; i < token.size();) {
    const auto lead = static_cast<uint8_t>(token[i]);
    if (lead >= 0xE0) return std::nullopt;  // above U+07FF
    const size_t character = lead < 0x80 ? lead : (lead & 0x1FU) << 6 | (static_cast<uint8_t>(token[i + 1]) & 0x3FU);
    i += lead < 0x80 ? 1 : 2;
    if (character >= kCharacterBytes.size() || kCharacterBytes[character] < 0) return std::nullopt;
    out += static_cast<char>(kCharacterBytes[character]);
  }
  return out;
}

void set_token(const Node& where, TokenizerDefinition& out, int32_t id, std::string bytes, bool special) {
  const auto index = static_cast<size_t>(id);
  if (index >= out.tokens.size()) out.tokens.resize(index + 1);
  if (!out.tokens[index].bytes.empty() && out.tokens[index].bytes != bytes) {
    where.refuse("gives number " + std::to_string(id) + ", which another token has");
  }
  out.tokens[index] = {std::move(bytes), special};
}

void read_merges(const Node& model, const std::unordered_map<std::string, int32_t>& numbers, BytePairs& out) {
  for (const Node& merge : model["merges"].items()) {
    std::string left, right;
    if (merge.value->is_string()) {  // "a b"; newer files have ["a", "b"]
      const size_t space = merge.string().find(' ');
      if (space == std::string::npos) merge.refuse("must be two tokens with a space between them");
      left = merge.string().substr(0, space);
      right = merge.string().substr(space + 1);
    } else {
      const std::vector<Node> pair = merge.items();
      if (pair.size() != 2) merge.refuse("must be two tokens");
      left = pair[0].string();
      right = pair[1].string();
    }
    const auto number = [&](const std::string& token) {
      const auto found = numbers.find(token);
      if (found == numbers.end()) merge.refuse("names \"" + token + "\", which is not in the vocabulary");
      return found->second;
    };
    const int32_t left_number = number(left), right_number = number(right);
    out.add_merge(left_number, right_number, number(left + right));
  }
}

void read_model(const Node& model, TokenizerDefinition& out) {
  // Files of the first years have no type; what they contain tells.
  if (!model["type"].is_null() && model["type"].string() != "BPE") {
    model["type"].refuse("is " + model["type"].value->dump() + ", and mkrt reads \"BPE\" only");
  }
  for (const char* feature : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    model[feature].expect_unused();
  }
  const Node vocabulary = model["vocab"];
  if (!vocabulary.value->is_object()) vocabulary.refuse("must be an object");
  std::unordered_map<std::string, int32_t> numbers;
  numbers.reserve(vocabulary.value->size());
  std::unordered_set<int32_t> taken;
  taken.reserve(vocabulary.value->size());
  for (const auto& [token, value] : vocabulary.value->items()) {
    const Node entry{&value, vocabulary.pointer + "/" + pointer_key(token), vocabulary.path};
    const int32_t id = entry.token();
    if (token.empty()) entry.refuse("must have a name");
    if (!taken.insert(id).second) entry.refuse("is the number of two tokens");
    const std::optional<std::string> bytes = bytes_of(token);
    set_token(entry, out, id, bytes.value_or(token), false);
    if (bytes) out.byte_pairs.add_token(*bytes, id);
    numbers.emplace(token, id);
  }
  if (const auto byte = out.byte_pairs.missing_byte()) {
    vocabulary.refuse("has no token for byte " + std::to_string(*byte) + ", so it is not a byte-level one");
  }
  out.byte_pairs.set_whole_pieces_first(model["ignore_merges"].boolean(false));
  read_merges(model, numbers, out.byte_pairs);
}

void read_added_tokens(const Node& list, TokenizerDefinition& out) {
  if (list.is_null()) return;
  for (const Node& token : list.items()) {
    for (const char* feature : {"single_word", "lstrip", "rstrip"}) token[feature].expect_unused();
    const std::string& content = token["content"].string();
    if (content.empty()) token["content"].refuse("must not be empty");
    const int32_t id = token["id"].token();
    const bool special = token["special"].boolean(false);
    // The vocabulary may hold the token too, in its own writing of bytes; the content is what is meant.
    const auto index = static_cast<size_t>(id);
    if (index < out.tokens.size() && out.tokens[index].bytes == bytes_of(content)) out.tokens[index].bytes.clear();
    set_token(token["id"], out, id, content, special);
    out.added_tokens.push_back({content, id, token["normalized"].boolean(!special)});
  }
}

void read_normalizer(const Node& normalizer, TokenizerDefinition& out) {
  if (normalizer.is_null()) return;
  const std::string& type = normalizer["type"].string();
  if (type == "NFC") {
    out.nfc = true;
  } else if (type == "Sequence") {
    for (const Node& member : normalizer["normalizers"].items()) read_normalizer(member, out);
  } else {
    normalizer["type"].refuse("is \"" + type + "\", which mkrt does not support");
  }
}

Pattern read_pattern(const Node& pattern) {
  const Node regex = pattern["Regex"], literal = pattern["String"];
  if (regex.is_null() == literal.is_null()) pattern.refuse("must have one of Regex and String");
  try {
    return regex.is_null() ? Pattern(literal.string(), Pattern::Syntax::kLiteral) : Pattern(regex.string());
  } catch (const Error& error) {
    pattern.refuse(std::string("is not supported: ") + error.what());
  }
}

void read_split(const Node& split, TokenizerDefinition& out) {
  const std::string& behavior = split["behavior"].string();
  const bool invert = split["invert"].boolean(false);
  if (behavior == "Isolated" && !invert) {
    out.cuts.push_back({Cut::Kind::kIsolate, read_pattern(split["pattern"])});
  } else if (behavior == "Removed" && invert) {
    out.cuts.push_back({Cut::Kind::kMatches, read_pattern(split["pattern"])});
  } else {
    split["behavior"].refuse("is \"" + behavior + "\" with invert " + (invert ? "true" : "false") +
                             ", which mkrt does not support");
  }
}

// `done` says whether ByteLevel came: after it texts are written in its own characters, and nothing may follow.
void read_pre_tokenizer(const Node& stage, TokenizerDefinition& out, bool& done) {
  const std::string& type = stage["type"].string();
  if (done) stage.refuse("comes after ByteLevel, which mkrt does not support");
  if (type == "Sequence") {
    for (const Node& member : stage["pretokenizers"].items()) read_pre_tokenizer(member, out, done);
  } else if (type == "ByteLevel") {
    if (stage["add_prefix_space"].boolean(true)) out.cuts.push_back({Cut::Kind::kPrefixSpace});
    if (stage["use_regex"].boolean(true)) out.cuts.push_back({Cut::Kind::kIsolate, Pattern(kByteLevelExpression)});
    done = true;
  } else if (type == "Split") {
    read_split(stage, out);
  } else if (type == "Digits") {
    const bool individual = stage["individual_digits"].boolean(false);
    out.cuts.push_back({Cut::Kind::kIsolate, Pattern(individual ? R"(\p{N})" : R"(\p{N}+)")});
  } else {
    stage["type"].refuse("is \"" + type + "\", which mkrt does not support");
  }
}

void read_template(const Node& processor, TokenizerDefinition& out) {
  bool after_text = false;
  for (const Node& piece : processor["single"].items()) {
    if (!piece["Sequence"].is_null()) {
      if (after_text) piece.refuse("repeats the text, which mkrt does not support");
      after_text = true;
      continue;
    }
    const std::string& name = piece["SpecialToken"]["id"].string();
    for (const Node& id : processor["special_tokens"][name]["ids"].items()) {
      (after_text ? out.suffix : out.prefix).push_back(id.token());
    }
  }
  if (!after_text) processor["single"].refuse("does not contain the text");
}

void read_post_processor(const Node& processor, TokenizerDefinition& out) {
  if (processor.is_null()) return;
  const std::string& type = processor["type"].string();
  if (type == "Sequence") {
    for (const Node& member : processor["processors"].items()) read_post_processor(member, out);
  } else if (type == "TemplateProcessing") {
    if (!out.prefix.empty() || !out.suffix.empty()) processor.refuse("is a second template");
    read_template(processor, out);
  } else if (type != "ByteLevel") {  // ByteLevel corrects offsets, which nobody asks for here
    processor["type"].refuse("is \"" + type + "\", which mkrt does not support");
  }
}

// Strictly: members that are there twice are refused, so that no two readers of a file differ in which one counts.
json parse_file(const std::string& path) {
  try {
    const base::MappedFile file(path);
    return package::parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
  } catch (const base::Failure& failure) {
    throw Error(failure.message());
  }
}

}  // namespace

TokenizerDefinition read_tokenizer_file(const std::string& path) {
  const json document = parse_file(path);
  const Node root{&document, "", &path};
  TokenizerDefinition out;
  read_model(root["model"], out);
  read_added_tokens(root["added_tokens"], out);
  read_normalizer(root["normalizer"], out);
  bool byte_level = false;
  if (!root["pre_tokenizer"].is_null()) read_pre_tokenizer(root["pre_tokenizer"], out, byte_level);
  if (!byte_level) root["pre_tokenizer"].refuse("must contain ByteLevel: mkrt reads byte-level tokenizers only");
  if (root["decoder"]["type"].string() != "ByteLevel") root["decoder"]["type"].refuse("must be \"ByteLevel\"");
  read_post_processor(root["post_processor"], out);
  // "truncation" and "padding" are defaults for training, which inference libraries switch off as well.
  return out;
}

}  // namespace mkrt::cli
