#include "cli/format.hpp"

#include <doctest/doctest.h>

#include "cli/progress.hpp"

namespace mkrt::cli {
namespace {

TEST_CASE("sizes have three digits and a decimal unit") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(999) == "999 B");
  CHECK(format_bytes(1000) == "1.00 kB");
  CHECK(format_bytes(6562304) == "6.56 MB");
  CHECK(format_bytes(65'623'040) == "65.6 MB");
  CHECK(format_bytes(999'400) == "999 kB");
  CHECK(format_bytes(999'900) == "1.00 MB");
  CHECK(format_bytes(2'471'645'608) == "2.47 GB");
  CHECK(format_bytes(UINT64_MAX) == "18.4 EB");
}

TEST_CASE("columns line up, numbers to the right") {
  CHECK(format_table({{"name", "size"}, {"a", "5"}, {"größer", "12345"}}) ==
        "name     size\n"
        "a           5\n"
        "größer  12345\n");
  CHECK(format_table({}) == "");
}

TEST_CASE("a progress bar shows the share and the time that is left") {
  CHECK(render_progress("packing", 0, 100, 2) == "packing [..............................]   0 %");
  CHECK(render_progress("packing", 50, 100, 2) == "packing [###############...............]  50 %, 2 s left");
  CHECK(render_progress("packing", 100, 100, 2) == "packing [##############################] 100 %");
  CHECK(render_progress("packing", 7, 0, 2) == "packing [##############################] 100 %");
}

}  // namespace
}  // namespace mkrt::cli
