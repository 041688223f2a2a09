// Strictness of the JSON layer below all readers.
#include <string>
#include <vector>

#include "../base/test_support.hpp"
#include "package/json.hpp"

using namespace mkrt::package;
using mkrt::test::failure_of;

namespace {

Json parse(std::string_view text) { return parse_json(text, "file.json"); }

// Writes down what a visitor is told; descends two levels.
class Recorder : public JsonVisitor {
 public:
  std::vector<std::string> calls;

  void member(const JsonPath& object, std::string_view key) override {
    calls.push_back("member " + json_pointer(object) + " " + std::string(key));
  }
  bool descend(const JsonPath& path, bool is_object) override {
    calls.push_back("begin " + json_pointer(path) + (is_object ? " {" : " ["));
    return path.size() < 2;
  }
  void value(const JsonPath& path, const Json& value) override {
    calls.push_back("value " + json_pointer(path) + " " + value.dump());
  }
  void leave(const JsonPath& path) override { calls.push_back("leave " + json_pointer(path)); }
};

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

}  // namespace

TEST_CASE("a visitor receives values in the file's order, piece by piece where it asks to") {
  Recorder recorder;
  parse_json(R"({"b": 1, "a": [true, [2, 3], {"x": null}], "c/~": {}})", "file.json", recorder);
  const std::vector<std::string> expected{
      "begin  {",        "member  b",    "value /b 1",       "member  a",    "begin /a [",
      "value /a/0 true", "begin /a/1 [", "value /a/1 [2,3]", "begin /a/2 {", "value /a/2 {\"x\":null}",
      "leave /a",        "member  c/~",  "begin /c~1~0 {",   "leave /c~1~0", "leave "};
  CHECK(recorder.calls == expected);
}

TEST_CASE("text that is not JSON is refused with its line and what was found") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "the text ends too early"},
      {" ", "the text ends too early"},
      {"{", "the text ends too early"},
      {"{\"a\": [1, 2", "(/a/2): is not JSON: the text ends too early"},
      {"[\"abc", "the text ends too early"},
      {"[tru", "the text ends too early"},
      {"[1,]", "byte 4 (/1): is not JSON: found \"]\", which cannot be there"},
      {"{\"a\" 1}", "byte 6 (/a): is not JSON: found \"1\""},
      {"{\"a\": 1 \"b\": 2}", "found \"\"b\"\""},
      {"{\"a\": 1,}", "found \"}\""},
      {"{1: 2}", "found \"1\""},
      {"nul ", "found \"nul\""},
      {"[1, nope]", "found \"nope\""},
      {"[1.e5]", "found \"1.e5\""},
      {"[\"Ж\" \"Ж\"]", "found \"\"Ж\"\""},
      {"[\xff]", "beyond ASCII"},
      {"NaN", "byte 1: is not JSON: found \"NaN\""},
      {"[Infinity]", "found \"Infinity\""},
      {"[-]", "found \"]\""},
      {"[01]", "found \"01\""},
      {"[1e999]", "byte 6 (/0): is not JSON: no number is as large as \"1e999\""},
      {"[1] 2", "found \"2\""},
      {"'a'", "found \"'\""},
      {"// x\n1", "found \"/\""},
      {"[\"\t\"]", "a string holds a control character that is not escaped"},
      {"[\"\\q\"]", "a string holds an escape that is none"},
      {"[\"\\u00\"]", "a string holds an escape that is none"},
      {"[\"\\ud800\"]", "a string holds an escape that is none"},
      {"[\"\xff\"]", "a string holds bytes that are not UTF-8"},
      {"[\"\xc3\"]", "a string holds bytes that are not UTF-8"},
      {"[\"\xc0\xaf\"]", "a string holds bytes that are not UTF-8"}};
  for (const auto& [text, found] : cases) {
    INFO(std::string(text));
    CHECK_FAILURE(parse(text), MKRT_ERROR_FORMAT, "file.json: line 1", "is not JSON: ", found);
  }
  CHECK_FAILURE(parse("{\"a\":\n[1,\n2,,3]}"), MKRT_ERROR_FORMAT, "line 3, byte 13 (/a/2): is not JSON: found \",\"");
  CHECK_FAILURE(parse(std::string("[1\0]", 4)), MKRT_ERROR_FORMAT, "found a NUL character");
}

TEST_CASE("duplicate members are refused at every level") {
  CHECK_FAILURE(parse(R"({"a": 1, "b": 2, "a": 3})"), MKRT_ERROR_FORMAT, "file.json: the root:", "\"a\" twice");
  CHECK_FAILURE(parse(R"({"x": [0, {"a": 1, "a": 1}]})"), MKRT_ERROR_FORMAT, "/x/1:", "\"a\" twice");
  CHECK_FAILURE(parse(R"({"a": 1, "\u0061": 1})"), MKRT_ERROR_FORMAT, "\"a\" twice");
  Recorder recorder;
  CHECK_FAILURE(parse_json(R"({"x": {"a": 1, "a": 1}})", "file.json", recorder), MKRT_ERROR_FORMAT,
                "/x:", "\"a\" twice");
}

TEST_CASE("nesting is limited, so that a file of brackets costs nothing") {
  CHECK(parse(nested(16)).is_array());
  CHECK_FAILURE(parse(nested(17)), MKRT_ERROR_FORMAT, "/0/0", "deeper than 16");
  CHECK_FAILURE(parse(std::string(5'000'000, '[')), MKRT_ERROR_FORMAT, "deeper than 16");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK_FAILURE(parse(objects), MKRT_ERROR_FORMAT, "/a/a", "deeper than 16");
}

TEST_CASE("messages stay short when names and tokens are huge") {
  const std::string huge(10'000'000, 'n');
  CHECK_FAILURE(parse("{\"" + huge + "\": 1, \"" + huge + "\": 2}"), MKRT_ERROR_FORMAT, "nnn...", "twice");
  CHECK_FAILURE(parse("{\"" + huge + "\": " + huge), MKRT_ERROR_FORMAT, "is not JSON");
  CHECK_FAILURE(parse("[\"" + huge), MKRT_ERROR_FORMAT, "is not JSON");
}

TEST_CASE("a view checks types and ranges and names the place") {
  const Json tree = parse(R"({"s": "text", "empty": "", "nul": "a\u0000b", "i": 5, "n": -5, "f": 1.5, "e": 1e3,
                              "z": -0, "big": 18446744073709551615, "b": true, "a": [1, 2], "o": {"k": 1},
                              "wide": 1e39, "tiny": 1e-60})");
  const JsonOrigin origin{"file.json", "/base", -1, ""};
  const JsonView view(tree, origin);
  const auto at = [&](const char* key) { return view.member(key); };

  CHECK(at("s").string(1, 4) == "text");
  CHECK_FAILURE(at("s").string(1, 3), MKRT_ERROR_FORMAT, "file.json: /base/s:", "4 bytes");
  CHECK_FAILURE(at("empty").name(), MKRT_ERROR_FORMAT, "/base/empty", "empty");
  CHECK_FAILURE(at("nul").string(0, 9), MKRT_ERROR_FORMAT, "/base/nul", "NUL");
  CHECK_FAILURE(at("i").string(0, 9), MKRT_ERROR_FORMAT, "must be a string");

  CHECK(at("i").unsigned_integer(5, 5) == 5);
  CHECK(at("z").unsigned_integer(0, 5) == 0);
  CHECK(at("big").unsigned_integer(0, UINT64_MAX) == UINT64_MAX);
  for (const char* key : {"n", "f", "e", "s", "b", "a", "big"}) {
    CHECK_FAILURE(at(key).unsigned_integer(0, 100), MKRT_ERROR_FORMAT, "must be an integer from 0 to 100");
  }
  CHECK_FAILURE(at("i").unsigned_integer(6, 7), MKRT_ERROR_FORMAT, "from 6 to 7");
  CHECK(at("n").integer(-5, 5) == -5);
  CHECK(at("i").integer(-5, 5) == 5);
  for (const char* key : {"f", "e", "s", "big"}) {
    CHECK_FAILURE(at(key).integer(INT64_MIN, INT64_MAX), MKRT_ERROR_FORMAT, "must be an integer");
  }

  CHECK(at("f").number() == 1.5f);
  CHECK(at("n").number() == -5.0f);
  CHECK(at("tiny").number() == 0.0f);
  CHECK_FAILURE(at("wide").number(), MKRT_ERROR_FORMAT, "does not fit in an f32");
  CHECK_FAILURE(at("b").number(), MKRT_ERROR_FORMAT, "must be a number");
  CHECK(at("b").boolean());
  CHECK_FAILURE(at("i").boolean(), MKRT_ERROR_FORMAT, "true or false");

  CHECK(at("a").expect_array(2, 2) == 2);
  CHECK_FAILURE(at("a").expect_array(3), MKRT_ERROR_FORMAT, "at least 3");
  CHECK_FAILURE(at("a").expect_array(0, 1), MKRT_ERROR_FORMAT, "at most 1");
  CHECK_FAILURE(at("o").expect_array(), MKRT_ERROR_FORMAT, "must be an array");
  CHECK_FAILURE(at("a").expect_object(), MKRT_ERROR_FORMAT, "must be an object");
  CHECK_FAILURE(at("o").expect_members({}), MKRT_ERROR_FORMAT, "/base/o", "unknown member \"k\"");
  CHECK_FAILURE(at("o").expect_members({"k", "m"}), MKRT_ERROR_FORMAT, "/base/o", "lacks the member \"m\"");
  at("o").expect_members({}, {"k"});
}
