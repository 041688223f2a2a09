#include "cli/read_limit.hpp"

#include <doctest/doctest.h>

#include <initializer_list>

namespace mkrt::cli {
namespace {

TEST_CASE("the read limit is a rate that memory can have") {
  for (const uint32_t threads : {1U, 2U, 3U}) {
    const double limit = measure_read_limit(threads);
    CHECK(limit > 1e8);   // slower than any memory, even under a sanitizer
    CHECK(limit < 1e13);  // faster than any: the reading was left out
  }
}

}  // namespace
}  // namespace mkrt::cli
