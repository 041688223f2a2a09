// Rules of counters: what is waited for can come, is well defined, and does not mix two steps.
#include "builder.hpp"

namespace mkrt::verify::test {
namespace {

constexpr int32_t kNoRank = -1;

TEST_CASE("every wait gets to know what a step adds") {
  Builder builder;
  const uint32_t a = builder.counter("a", 2);
  builder.record("first", {6}).wait({.counter = a, .count = 2, .step = -1});
  builder.signal({.counter = a, .strides = {1}, .divide = {3, 1, 1, 1}});
  builder.record("second").wait({.counter = a}).wait({.counter = a, .offset = 1, .value = 2});
  check(builder.program());
  const std::vector<package::Record>& records = builder.entry().records;
  CHECK(records[0].waits[0].step_total == 3);
  CHECK(records[0].waits[0].value == 0);  // stays as it was written
  CHECK(records[1].waits[0].step_total == 3);
  CHECK(records[1].waits[1].step_total == 3);
  CHECK(records[1].waits[1].value == 2);
}

TEST_CASE("signals of all ranks count into a step's total") {
  Builder builder(3);
  const uint32_t gathered = builder.counter("gathered");
  builder.record("push", {4}).wait({.counter = gathered, .step = -1}).signal({.counter = gathered, .rank = kAll});
  builder.record("sum").wait({.counter = gathered});
  check(builder.program());
  CHECK(builder.last_record().waits[0].step_total == 12);
}

TEST_CASE("a wait for a counter that nothing signals is refused") {
  Builder builder;
  const uint32_t a = builder.counter("a", 4);
  builder.record("signals", {3}).wait({.counter = a, .count = 3, .step = -1}).signal({.counter = a, .strides = {1}});
  builder.record("waits", {4}).wait({.counter = a, .strides = {1}});
  check_refused(builder.program(), 1, 3, 0, {"tile 3 [3]", "counter \"a\"[3]", "no tile signals"});
}

TEST_CASE("a wait for a counter that is signalled on another rank only is refused") {
  Builder builder(2);
  const uint32_t a = builder.counter("a");
  builder.record("signals").signal({.counter = a, .rank = fixed_rank(0)});
  builder.record("waits").wait({.counter = a});
  check_refused(builder.program(), 1, 0, 1, {"on rank 1", "no tile signals"});
}

TEST_CASE("a wait for more than a step adds is refused") {
  Builder builder;
  const uint32_t a = builder.counter("a");
  builder.record("signals", {5}).wait({.counter = a, .step = -1}).signal({.counter = a});
  builder.record("waits").wait({.counter = a, .value = 5});
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().waits[0].value = 6;
  check_refused(builder.program(), 1, 0, 0, {"to get 6", "a step adds 5"});
}

TEST_CASE("a wait for the own record or a later one is refused, unless it is for the step before") {
  for (bool own : {true, false}) {
    Builder builder;
    const uint32_t a = builder.counter("a");
    builder.record("waits").wait({.counter = a});
    if (!own) builder.record("signals");
    builder.signal({.counter = a});
    check_refused(
        builder.program(), 0, 0, 0,
        {"waits for counter \"a\"[0]", own ? "record 0 (\"waits\") signals" : "record 1 (\"signals\") signals",
         "only earlier records may"});
    builder.entry().records[0].waits[0].step_offset = -1;
    if (own) {
      CHECK_NOTHROW(check(builder.program()));
    } else {  // the waiting record does not hold up the signalling one
      check_refused(builder.program(), 1, 0, 0, {"counts of two steps mix"});
    }
  }
}

TEST_CASE("two records that wait for each other are refused") {
  Builder builder;
  const uint32_t a = builder.counter("a");
  const uint32_t b = builder.counter("b");
  builder.record("one").wait({.counter = b}).signal({.counter = a});
  builder.record("two").wait({.counter = a}).signal({.counter = b});
  check_refused(builder.program(), 0, 0, 0, {"record 1 (\"two\") signals"});
}

TEST_CASE("a counter that a later record signals as well cannot be waited for in between") {
  Builder builder;
  const uint32_t a = builder.counter("a");
  builder.record("early").signal({.counter = a});
  builder.record("waits").wait({.counter = a, .value = 1});
  builder.record("late").signal({.counter = a});
  check_refused(builder.program(), 1, 0, 0, {"record 2 (\"late\") signals"});
}

TEST_CASE("all counters of a wait must get the same in a step") {
  Builder builder;
  const uint32_t a = builder.counter("a", 2);
  builder.record("signals", {5}).wait({.counter = a, .step = -1}).wait({.counter = a, .offset = 1, .step = -1});
  builder.signal({.counter = a, .strides = {1}, .divide = {3, 1, 1, 1}});
  builder.record("one by one").wait({.counter = a}).wait({.counter = a, .offset = 1});
  CHECK_NOTHROW(check(builder.program()));
  builder.record("together").wait({.counter = a, .count = 2});
  check_refused(builder.program(), 2, 0, 0, {"counter \"a\"[1]", "adds 2", "adds 3 to another counter"});
  builder.last_record().waits[0].count = 1;
  builder.record("by tile", {2}).wait({.counter = a, .strides = {1}});
  check_refused(builder.program(), 3, 1, 0, {"counter \"a\"[1]", "adds 2"});
}

TEST_CASE("all ranks' counters of a wait must get the same in a step") {
  Builder builder(2);
  const uint32_t a = builder.counter("a");
  builder.record("signals").signal({.counter = a}).signal({.counter = a, .rank = fixed_rank(1)});
  builder.record("waits").wait({.counter = a});
  check_refused(builder.program(), 1, 0, 1, {"adds 3", "adds 1 to another"});
}

TEST_CASE("counters outside their array are refused, also where numbers overflow") {
  const auto refused = [](const Target& wait, const Target& signal, const std::string& words) {
    Builder builder;
    builder.counter("before", 3);
    const uint32_t a = builder.counter("a", 4);
    builder.counter("after", 3);
    builder.record("r", {4, 2}).wait(wait).signal(signal);
    CHECK(builder.entry().counters[a].first == 3);
    check_refused(builder.program(), 0, 0, kNoRank, {words, "outside its 4 counters"});
  };
  const Target good{.counter = 1, .step = -1};
  refused({.counter = 1, .count = 5, .step = -1}, good, "waits for counter \"a\"");
  refused({.counter = 1, .count = 2, .strides = {1}, .step = -1}, good, "waits for counter \"a\"");
  refused({.counter = 1, .offset = 4, .step = -1}, good, "waits for counter \"a\"");
  refused({.counter = 1, .count = UINT32_MAX, .strides = {UINT32_MAX, UINT32_MAX}, .step = -1}, good, "waits for");
  refused(good, {.counter = 1, .strides = {1, 1}}, "signals counter \"a\"");
  refused(good, {.counter = 1, .offset = 2, .strides = {2}, .divide = {2, 1, 1, 1}}, "signals counter \"a\"");
}

TEST_CASE("a counter before its array, a division by zero, no counter and an unknown step are refused") {
  Builder builder;
  builder.counter("before", 3);
  const uint32_t a = builder.counter("a", 4);
  builder.record("r", {2}).wait({.counter = a, .step = -1}).signal({.counter = a});
  CHECK_NOTHROW(check(builder.program()));
  package::Wait& wait = builder.last_record().waits[0];
  const package::Wait good = wait;
  wait.counter = 2;
  check_refused(builder.program(), 0, 0, kNoRank, {"outside"});
  wait = good, wait.divide[1] = 0;
  check_refused(builder.program(), 0, 0, kNoRank, {"division by zero"});
  wait = good, wait.count = 0;
  check_refused(builder.program(), 0, 0, kNoRank, {"no counter"});
  for (int32_t step : {-2, 1, INT32_MIN}) {
    wait = good, wait.step_offset = step;
    check_refused(builder.program(), 0, 0, kNoRank, {"only 0 and -1"});
  }
}

TEST_CASE("a counter gets at most 2^30 in a step") {
  for (uint32_t excess : {0, 1}) {
    Builder builder;
    const uint32_t a = builder.counter("a");
    builder.record("most", {1u << 15, 1u << 15}).signal({.counter = a});
    if (excess != 0) builder.record("one more").signal({.counter = a});
    if (excess == 0) {
      CHECK_NOTHROW(check(builder.program()));
    } else {
      check_refused(builder.program(), 1, 0, kNoRank, {"counter \"a\"[0]", "1073741825", "1073741824"});
    }
  }
  Builder ranks(64);
  const uint32_t a = ranks.counter("a");
  ranks.record("everyone", {1u << 24, 2}).signal({.counter = a, .rank = kAll});
  check_refused(ranks.program(), 0, 0, kNoRank, {"2147483648"});
}

TEST_CASE("signals of one step to a counter that is waited for follow all of the step before") {
  Builder builder;
  const uint32_t a = builder.counter("a");
  builder.record("signals", {2}).signal({.counter = a});
  CHECK_NOTHROW(check(builder.program()));  // nobody waits
  builder.record("waits").wait({.counter = a});
  check_refused(builder.program(), 0, 0, 0, {"counter \"a\"[0]", "counts of two steps mix", "tile 0 [0]"});
  SUBCASE("a wait for the whole step before keeps them apart") {
    builder.entry().records[0].waits.push_back({0, 1, 0, {}, {1, 1, 1, 1}, 0, -1});
    CHECK_NOTHROW(check(builder.program()));
  }
  SUBCASE("a wait for a part of it does not") {
    builder.entry().records[0].waits.push_back({0, 1, 0, {}, {1, 1, 1, 1}, 1, -1});
    check_refused(builder.program(), 0, 0, 0, {"counts of two steps mix"});
  }
  SUBCASE("a wait for one who waited for it does") {
    const uint32_t b = builder.counter("b");
    builder.signal({.counter = b});
    builder.entry().records[0].waits.push_back({1, 1, b, {}, {1, 1, 1, 1}, 0, -1});
    CHECK_NOTHROW(check(builder.program()));
  }
}

TEST_CASE("signals of different ranks to one counter must be kept apart as well") {
  Builder builder(2);
  const uint32_t a = builder.counter("a");
  const uint32_t own = builder.counter("own");
  builder.record("signals").wait({.counter = own, .step = -1});
  builder.signal({.counter = a, .rank = kAll}).signal({.counter = own});
  builder.record("waits").wait({.counter = a});
  // Each rank waits for its own last step, not for the other rank's.
  check_refused(builder.program(), 0, 0, 0, {"on rank 1 did so for the step before"});
  builder.entry().records[0].waits[0] = {0, 1, a, {}, {1, 1, 1, 1}, 0, -1};
  CHECK_NOTHROW(check(builder.program()));
}

TEST_CASE("what would take too long or too much memory to check is refused") {
  const auto refused = [](Builder& builder, const std::string& words) {
    const Refusal found = refusal(builder.program());
    CHECK_MESSAGE(contains(found.message, words), found.message);
  };
  SUBCASE("more counters than fit") {
    Builder builder(64);
    builder.counter("a", 70000);
    builder.record("r");
    refused(builder, "4480000 counters");
  }
  SUBCASE("every tile of a huge grid its own counter") {
    Builder builder;
    const uint32_t a = builder.counter("a", 4000000);
    builder.record("r", {2000, 2000}).signal({.counter = a, .strides = {2000, 1}});
    refused(builder, "groups of tiles");
  }
  SUBCASE("every tile of a long grid its own rank") {
    Builder builder(2);
    const uint32_t t = builder.tensor("t", 1);
    builder.record("r", {INT32_MAX}).read({.tensor = t, .rank = relative_rank(0, 0)});
    refused(builder, "groups of tiles");
  }
  SUBCASE("more counters waited for than order can be found for") {
    Builder builder;
    const uint32_t a = builder.counter("a", 50000);
    builder.record("r", {50000}).signal({.counter = a, .strides = {1}});
    builder.record("s").wait({.counter = a, .count = 50000});
    refused(builder, "waits for 50000 counters");
  }
  SUBCASE("every tile waits for many counters of its own") {
    Builder builder;
    const uint32_t a = builder.counter("a", 40000);
    builder.record("r", {40000}).signal({.counter = a, .strides = {1}});
    builder.record("s", {20000}).wait({.counter = a, .count = 20000, .strides = {1}});
    refused(builder, "too intricate");
  }
  SUBCASE("a slice of billions of pieces") {
    Builder builder;
    const uint32_t t = builder.tensor("t", uint64_t{1} << 50);
    builder.record("r", {INT32_MAX})
        .write({.tensor = t, .size = 2, .strides = {3}, .rows = 2, .row_stride = 1000000007});
    refused(builder, "too intricate");
  }
}

}  // namespace
}  // namespace mkrt::verify::test
