#include "cli/unicode.hpp"

#include <doctest/doctest.h>

#include <string>

namespace mkrt::cli {
namespace {

constexpr auto kNone = std::string_view::npos;

TEST_CASE("well-formed UTF-8 is accepted and everything else is found") {
  CHECK(find_invalid_utf8("") == kNone);
  CHECK(find_invalid_utf8("abc \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xF4\x8F\xBF\xBF \xED\x9F\xBF") == kNone);
  CHECK(find_invalid_utf8(std::string_view("\0", 1)) == kNone);
  CHECK(find_invalid_utf8("a\x80") == 1);             // continuation without a beginning
  CHECK(find_invalid_utf8("\xC0\x80") == 0);          // overlong
  CHECK(find_invalid_utf8("\xE0\x9F\xBF") == 0);      // overlong
  CHECK(find_invalid_utf8("\xED\xA0\x80") == 0);      // surrogate
  CHECK(find_invalid_utf8("\xF4\x90\x80\x80") == 0);  // beyond U+10FFFF
  CHECK(find_invalid_utf8("ab\xF0\x9F\x98") == 2);    // unfinished
  CHECK(find_invalid_utf8("\xFF") == 0);
}

TEST_CASE("a code point is shown only when its last byte has come") {
  Utf8Stream stream;
  CHECK(stream.push("a\xF0") == "a");
  CHECK(stream.push("\x9F") == "");
  CHECK(stream.push("\x98") == "");
  CHECK(stream.push("\x80"
                    "b\xC3") ==
        "\xF0\x9F\x98\x80"
        "b");
  CHECK(stream.push("\xA9") == "\xC3\xA9");
  CHECK(stream.finish() == "");
}

TEST_CASE("bytes that cannot become a code point are shown as replacement characters") {
  CHECK(to_text("a\xFF"
                "b") ==
        "a\xEF\xBF\xBD"
        "b");
  CHECK(to_text("\xE2\x82") == "\xEF\xBF\xBD");  // one for the beginning
  CHECK(to_text("\xE2\x82"
                "a") ==
        "\xEF\xBF\xBD"
        "a");
  CHECK(to_text("\xF0\x9F\xC3\xA9") == "\xEF\xBF\xBD\xC3\xA9");
  CHECK(to_text("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // no byte of a surrogate begins anything
}

TEST_CASE("normalization composes") {
  CHECK(compose_nfc("e\xCC\x81") == "\xC3\xA9");
  CHECK(compose_nfc("") == "");
  CHECK(compose_nfc(std::string_view("a\0b", 3)) == std::string_view("a\0b", 3));
}

}  // namespace
}  // namespace mkrt::cli
