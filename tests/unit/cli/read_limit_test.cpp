#include "cli/read_limit.hpp"

#include <doctest/doctest.h>

#include <initializer_list>

namespace mkrt::cli {
namespace {

TEST_CASE("the read limit is a rate that memory can have") {
  for (const uint32_t threads : {1U, 2U, 3U}) {
    ReadLimit read_limit(threads);
    for (int round = 0; round < 2; ++round) {
      const double limit = read_limit.measure();
      CHECK(limit > 1e8);   // slower than any memory, even under a sanitizer
      CHECK(limit < 1e13);  // faster than any: the reading was left out
    }
  }
}

}  // namespace
}  // namespace mkrt::cli
