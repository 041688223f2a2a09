#include <doctest/doctest.h>

#include <clocale>
#include <string>

#include "base/checked.hpp"
#include "base/failure.hpp"

using namespace mkrt::base;

TEST_CASE("a failure carries its status, sentence and place") {
  const Failure failure =
      Failure(MKRT_ERROR_SCHEDULE, "why").at_record(3).at_tile(1ull << 40).at_rank(2).with_driver_code(-7);
  CHECK(failure.status() == MKRT_ERROR_SCHEDULE);
  CHECK(failure.message() == "why");
  CHECK(failure.what() == std::string("why"));
  CHECK(failure.record() == 3);
  CHECK(failure.tile() == 1ull << 40);
  CHECK(failure.rank() == 2);
  CHECK(failure.driver_code() == -7);
}

TEST_CASE("numbers in a sentence have no separators, whatever the locale") {
  CHECK(text("has ", 1234567, " bytes of ", 0.5) == "has 1234567 bytes of 0.5");
}

TEST_CASE("names in sentences are quoted, printable and short") {
  CHECK(quoted("l0.qkv") == "\"l0.qkv\"");
  CHECK(quoted("") == "\"\"");
  CHECK(quoted(std::string("a\nb\0\x7f", 5)) == "\"a\\x0ab\\x00\\x7f\"");
  CHECK(quoted(std::string(64, 'x')) == '"' + std::string(64, 'x') + '"');
  CHECK(quoted(std::string(10'000'000, 'x')) == '"' + std::string(64, 'x') + "...\"");
}

TEST_CASE("a long name is never cut inside a UTF-8 sequence") {
  std::string name(63, 'x');
  name += "\xe2\x82\xac and more";  // a euro sign over bytes 63 to 65
  CHECK(quoted(name) == '"' + std::string(63, 'x') + "...\"");
  CHECK(quoted(std::string(200, '\x80')) == "\"...\"");  // nothing but continuation bytes
}

TEST_CASE("a long path shows its end") {
  CHECK(shown_path("folder/program.json") == "folder/program.json");
  const std::string shown = shown_path(std::string(5000, 'd') + "/program.json");
  CHECK(shown.size() == 163);
  CHECK(shown.substr(0, 4) == "...d");
  CHECK(shown.substr(shown.size() - 13) == "/program.json");
}

TEST_CASE("counts add and multiply up to 63 bits and no further") {
  uint64_t sum = max_count - 1;
  CHECK(checked_add(sum, 1));
  CHECK(sum == max_count);
  CHECK_FALSE(checked_add(sum, 1));
  CHECK(sum == max_count);
  uint64_t product = uint64_t{1} << 31;
  CHECK(checked_multiply(product, uint64_t{1} << 31));
  CHECK(product == uint64_t{1} << 62);
  CHECK_FALSE(checked_multiply(product, 2));
  CHECK(checked_multiply(product, 0));
  CHECK(product == 0);
}
