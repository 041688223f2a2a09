// Programs that would keep a check busy for minutes or hours that did not count what it does. Each is seen through, or
// refused, well within a second; what they would take otherwise is beyond any test's time limit.
#include "builder.hpp"

namespace mkrt::verify::test {
namespace {

constexpr const char* kTooMuch = "too intricate to be checked";

TEST_CASE("many groups of tiles may wait for the same many counters") {
  constexpr uint32_t size = 1 << 19;
  Builder builder;
  const uint32_t a = builder.counter("a", size);
  const uint32_t b = builder.counter("b", size);
  builder.record("signals", {size}).signal({.counter = a, .strides = {1}});
  builder.record("waits", {size}).wait({.counter = a, .count = size}).signal({.counter = b, .strides = {1}});
  CHECK(contains(refusal(builder.program()).message, "waits for 524288 counters"));
}

TEST_CASE("counters that are far apart cost no more than neighbours") {
  constexpr uint32_t size = 1 << 20;
  Builder builder;
  const uint32_t a = builder.counter("a", size);
  builder.record("signals", {2}).wait({.counter = a, .strides = {size - 1}, .step = -1});
  builder.signal({.counter = a, .strides = {size - 1}});
  for (int i = 0; i < 5000; ++i) {
    builder.record("waits", {2});
    for (int k = 0; k < 4; ++k) builder.wait({.counter = a, .strides = {size - 1}});
  }
  CHECK_NOTHROW(check(builder.program()));
  CHECK(builder.last_record().waits[3].step_total == 1);
}

TEST_CASE("the limit is one for all entries of a program") {
  Builder builder;
  for (int i = 0; i < 600; ++i) {
    if (i > 0) builder.program().entries.emplace_back().name = "entry " + std::to_string(i);
    const uint32_t a = builder.counter("a", 1 << 20);
    builder.record("signals").signal({.counter = a});
  }
  const std::string message = refusal(builder.program()).message;
  CHECK_MESSAGE(contains(message, kTooMuch), message);
  CHECK_MESSAGE(contains(message, "entry \"entry 2"), message);  // 256 of them reach it, and a little more
}

TEST_CASE("constraints count once for each record") {
  Builder builder;
  package::Constraint constraint;
  constraint.left.resize(60);
  constraint.right.resize(60);
  builder.record("constrained");
  for (uint32_t i = 0; i < package::max_opcode_constraints; ++i) builder.constraint(constraint);
  const package::Record record = builder.last_record();
  CHECK_NOTHROW(check(builder.program()));
  builder.entry().records.resize(100000, record);
  CHECK(contains(refusal(builder.program()).message, kTooMuch));
}

TEST_CASE("rows that only a comparison of elements can tell apart are counted before they are made") {
  Builder builder;
  const uint32_t t = builder.tensor("t", uint64_t{1} << 60);
  const uint32_t a = builder.counter("a");
  builder.record("writes", {1 << 20}).wait({.counter = a, .step = -1}).signal({.counter = a});
  builder.write({.tensor = t, .size = 1, .strides = {2}, .rows = 1 << 20, .row_stride = 3});
  CHECK(contains(refusal(builder.program()).message, kTooMuch));
}

}  // namespace
}  // namespace mkrt::verify::test
