#include "cli/tokenizer.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/error.hpp"
#include "cli/unicode.hpp"

namespace mkrt::cli {
namespace {

using nlohmann::json;

const std::string kData = MKRT_TEST_DATA;

json read_json(const std::string& path) { return json::parse(std::ifstream(path)); }

std::string tokenizer_path(const std::string& name) {
  return name == "novelist" ? kData + "/novelist/tokenizer.json" : kData + "/tokenizers/" + name + ".json";
}

// A file of the system's temporary folder that is gone with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    path_ = (std::filesystem::temp_directory_path() /
             ("mkrt_tokenizer_" + std::to_string(std::random_device()()) + ".json"))
                .string();
    std::ofstream(path_, std::ios::binary) << content;
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string refusal(const std::string& content) {
  const TemporaryFile file(content);
  try {
    Tokenizer::read(file.path());
  } catch (const Error& error) {
    const std::string sentence = error.what();
    CHECK(sentence.starts_with(file.path()));
    return sentence.substr(file.path().size());
  }
  return "nothing was refused";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("texts become the token numbers that the reference library finds") {
  const json golden = read_json(kData + "/tokenizers/golden.json");
  CHECK(golden.size() == 6);
  for (const auto& [name, cases] : golden.items()) {
    const Tokenizer tokenizer = Tokenizer::read(tokenizer_path(name));
    for (const json& expected : cases) {
      const std::string text = expected["text"];
      CAPTURE(name);
      CAPTURE(expected["text"].dump());
      const std::vector<int32_t> ids = tokenizer.encode(text);
      CHECK(json(ids) == expected["ids"]);
      CHECK(to_text(tokenizer.decode(ids)) == expected["decoded"].get<std::string>());
    }
  }
}

TEST_CASE("the novelist's prompts and texts agree with its golden outputs") {
  const Tokenizer tokenizer = Tokenizer::read(tokenizer_path("novelist"));
  const json golden = read_json(kData + "/novelist/golden.json");
  for (const json& expected : golden["cases"]) {
    CHECK(json(tokenizer.encode(expected["prompt"].get<std::string>())) == expected["prompt_ids"]);
    std::vector<int32_t> ids = expected["prompt_ids"];
    for (const json& id : expected["greedy_ids"]) ids.push_back(id);
    CHECK(to_text(tokenizer.decode(ids)) == expected["text"].get<std::string>());
  }
}

TEST_CASE("decoding gives back every text that normalization leaves alone") {
  std::mt19937 random(20261130);
  for (const char* name : {"novelist", "gpt2", "llama3", "smollm"}) {
    const Tokenizer tokenizer = Tokenizer::read(tokenizer_path(name));
    for (int round = 0; round < 200; ++round) {
      std::string text;
      for (unsigned i = random() % 60; i > 0; --i) {
        const unsigned point = random() % (random() % 2 == 0 ? 0x80 : 0xD800);
        if (point < 0x80) {
          text += static_cast<char>(point);
        } else if (point < 0x800) {
          text += {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
        } else {
          text += {static_cast<char>(0xE0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3F)),
                   static_cast<char>(0x80 | (point & 0x3F))};
        }
      }
      CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    }
  }
}

TEST_CASE("a word of a million letters is encoded in seconds, not hours") {
  const Tokenizer tokenizer = Tokenizer::read(tokenizer_path("novelist"));
  const std::string text(1'000'000, 'a');
  const auto start = std::chrono::steady_clock::now();
  CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  // A quadratic merge takes about 10^12 steps here; the bound leaves sanitizers and busy machines room.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
  const std::string spaces(1'000'000, ' ');
  CHECK(tokenizer.decode(tokenizer.encode(spaces)) == spaces);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("text that is not UTF-8 is refused with the place of the byte") {
  const Tokenizer tokenizer = Tokenizer::read(tokenizer_path("novelist"));
  CHECK_THROWS_WITH_AS(tokenizer.encode("ab\xFF"), "the text is not UTF-8: byte 2 does not belong to a code point",
                       Error);
  CHECK_THROWS_AS(tokenizer.encode("\xC3"), Error);
  CHECK_THROWS_AS(tokenizer.encode("\xED\xA0\x80"), Error);
}

TEST_CASE("numbers that no token has decode to nothing") {
  const Tokenizer tokenizer = Tokenizer::read(tokenizer_path("novelist"));
  CHECK(tokenizer.bytes(-1).empty());
  CHECK(tokenizer.bytes(2048).empty());
  CHECK(tokenizer.bytes(INT32_MAX).empty());
  CHECK(tokenizer.bytes(1).empty());  // <|end|>, special
}

TEST_CASE("what a tokenizer file asks for and mkrt does not do is refused by name") {
  const json good = read_json(tokenizer_path("gpt2"));
  const auto refused_with = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    return refusal(changed.dump());
  };
  CHECK(contains(refused_with("/model/type", "Unigram"), ": /model/type is \"Unigram\""));
  CHECK(contains(refused_with("/model/dropout", 0.1), ": /model/dropout is 0.1"));
  CHECK(contains(refused_with("/model/byte_fallback", true), ": /model/byte_fallback is true"));
  CHECK(contains(refused_with("/model/end_of_word_suffix", "</w>"), ": /model/end_of_word_suffix"));
  CHECK(contains(refused_with("/normalizer", {{"type", "Lowercase"}}), ": /normalizer/type is \"Lowercase\""));
  CHECK(contains(refused_with("/pre_tokenizer", {{"type", "Metaspace"}}), ": /pre_tokenizer/type is \"Metaspace\""));
  CHECK(contains(refused_with("/pre_tokenizer", nullptr), ": /pre_tokenizer must contain ByteLevel"));
  CHECK(contains(refused_with("/decoder", {{"type", "WordPiece"}}), ": /decoder/type must be \"ByteLevel\""));
  CHECK(contains(refused_with("/post_processor", {{"type", "BertProcessing"}}), ": /post_processor/type is"));
  CHECK(contains(refused_with("/added_tokens/0/lstrip", true), ": /added_tokens/0/lstrip is true"));
  CHECK(contains(
      refused_with("/pre_tokenizer",
                   {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}, {"invert", false}}),
      ": /pre_tokenizer/pattern is not supported: the regular expression \"(\" is not understood"));
  CHECK(contains(
      refused_with(
          "/pre_tokenizer",
          {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithNext"}, {"invert", false}}),
      ": /pre_tokenizer/behavior is \"MergedWithNext\""));
}

TEST_CASE("a malformed tokenizer file is refused with the place that is wrong") {
  CHECK_THROWS_AS(Tokenizer::read("/nowhere/tokenizer.json"), Error);
  CHECK_THROWS_AS(Tokenizer::read(kData), Error);
  CHECK(refusal("") == ": line 1, byte 1: is not JSON: the text ends too early");
  CHECK(refusal("not JSON\n") == ": line 1, byte 2: is not JSON: found \"not\", which cannot be there");
  CHECK(refusal("{\"model\": {\n\"vocab\": {\"a/b\": 1,\n \"c~\": ]") ==
        ": line 3, byte 40 (/model/vocab/c~0): is not JSON: found \"]\", which cannot be there");
  CHECK(refusal("{\"model\": {\"vocab\": {\"a\": 1, \"b\": 2, \"a\": 3}}}") ==
        ": /model/vocab: has the member \"a\" twice");
  CHECK(contains(refusal(std::string(100'000, '[')), "is nested deeper than 16 levels"));
  CHECK(contains(refusal("[]"), ": the file must be an object"));
  CHECK(contains(refusal("{}"), ": /model must be an object"));
  const json good = read_json(tokenizer_path("gpt2"));
  const auto refused_with = [&](const char* pointer, const json& value) {
    json changed = good;
    changed[json::json_pointer(pointer)] = value;
    return refusal(changed.dump());
  };
  CHECK(contains(refused_with("/model/vocab", json::object()), ": /model/vocab has no token for byte 0"));
  CHECK(contains(refused_with("/model/vocab/a", -1), ": /model/vocab/a must be a token number"));
  CHECK(contains(refused_with("/model/vocab/a", 1e300), ": /model/vocab/a must be a token number"));
  CHECK(contains(refused_with("/model/vocab/a", 1LL << 40), ": /model/vocab/a must be a token number"));
  CHECK(contains(refused_with("/model/vocab/b", good["model"]["vocab"]["a"]), "is the number of two tokens"));
  CHECK(contains(refused_with("/model/merges/0", "ab"), ": /model/merges/0 must be two tokens"));
  CHECK(
      contains(refused_with("/model/merges/0", json::array({"a", "b", "c"})), ": /model/merges/0 must be two tokens"));
  CHECK(contains(refused_with("/model/merges/0", json::array({"a", "Ж"})), ": /model/merges/0 names \"Ж\""));
  CHECK(contains(refused_with("/added_tokens/0/content", ""), ": /added_tokens/0/content must not be empty"));
  CHECK(contains(refused_with("/added_tokens/0/id", good["model"]["vocab"]["a"]), "which another token has"));

  std::string nested = R"({"type":"ByteLevel"})";
  for (int depth = 0; depth < 20'000; ++depth) nested = R"({"type":"Sequence","pretokenizers":[)" + nested + "]}";
  json changed = good;
  changed["pre_tokenizer"] = "NESTED";
  std::string text = changed.dump();
  text.replace(text.find("\"NESTED\""), 8, nested);
  CHECK(contains(refusal(text), "/pretokenizers/0"));
  CHECK(contains(refusal(text), "is nested deeper than 16 levels"));
}

}  // namespace
}  // namespace mkrt::cli
