// The rule of conflicts: tiles that touch the same elements, one writing, are ordered.
#include "builder.hpp"

namespace mkrt::verify::test {
namespace {

// Two records in a loop of steps: "write" fills a tensor, "read" uses it, each waiting for the other as `waits` says.
struct Pair {
  explicit Pair(uint32_t ranks = 1) : builder(ranks) {
    t = builder.tensor("t", 96);
    written = builder.counter("written", 8);
    was_read = builder.counter("was_read", 8);
  }
  Builder builder;
  uint32_t t, written, was_read;
};

TEST_CASE("a write and a read that a counter orders in both directions are accepted") {
  Pair pair;
  pair.builder.record("write", {3}).wait({.counter = pair.was_read, .step = -1});
  pair.builder.write({.tensor = pair.t, .size = 32, .strides = {32}}).signal({.counter = pair.written});
  pair.builder.record("read", {4}).wait({.counter = pair.written});
  pair.builder.read({.tensor = pair.t}).signal({.counter = pair.was_read});
  CHECK_NOTHROW(check(pair.builder.program()));

  SUBCASE("with a wait for the step before alone they are not") {
    pair.builder.entry().records[1].waits[0].step_offset = -1;
    pair.builder.entry().records[0].waits.push_back({0, 1, 0, {}, {1, 1, 1, 1}, 0, -1});
    pair.builder.entry().records[1].waits.push_back({8, 1, 1, {}, {1, 1, 1, 1}, 0, -1});
    check_refused(pair.builder.program(), 1, 0, 0,
                  {"reads element 0 of tensor \"t\"", "tile 0 [0] of record 0 (\"write\")", "no counter orders"});
  }
  SUBCASE("with a wait for less than everything they are not") {
    pair.builder.entry().records[1].waits[0].value = 2;
    pair.builder.entry().records[0].waits.push_back({0, 1, 0, {}, {1, 1, 1, 1}, 0, -1});
    pair.builder.entry().records[1].waits.push_back({8, 1, 1, {}, {1, 1, 1, 1}, 0, -1});
    check_refused(pair.builder.program(), 1, 0, 0, {"reads element 0"});
  }
  SUBCASE("without the wait for the step before they are not") {
    pair.builder.entry().records[0].waits.clear();
    const Refusal found = refusal(pair.builder.program());
    CHECK(found.record == 0);
    CHECK_MESSAGE(contains(found.message, "mix"), found.message);
  }
}

TEST_CASE("the next step's write must wait for this step's read") {
  Pair pair;
  pair.builder.record("write").wait({.counter = pair.written, .step = -1});
  pair.builder.write({.tensor = pair.t}, "out").signal({.counter = pair.written});
  pair.builder.record("read").wait({.counter = pair.written}).read({.tensor = pair.t}, "x");
  check_refused(pair.builder.program(), 0, 0, 0,
                {"writes element 0", "(operand \"out\")", "record 1 (\"read\") on rank 0, of the step before, reads",
                 "(operand \"x\")"});
}

TEST_CASE("the next step's read must wait for this step's write") {
  Pair pair;
  pair.builder.record("read").read({.tensor = pair.t, .offset = 10, .size = 5});
  pair.builder.record("write").write({.tensor = pair.t, .offset = 14, .size = 5});
  pair.builder.wait({.counter = pair.written, .step = -1}).signal({.counter = pair.written});
  check_refused(pair.builder.program(), 1, 0, 0, {"writes element 14", "record 0 (\"read\")"});
  // The write now follows the read of its step; the next read follows nothing.
  pair.builder.entry().records[0].signals.push_back({1, 0, {}, {1, 1, 1, 1}, kSelf});
  pair.builder.entry().records[0].waits.push_back({1, 1, 0, {}, {1, 1, 1, 1}, 0, -1});
  pair.builder.entry().records[1].waits.push_back({1, 1, 0, {}, {1, 1, 1, 1}, 0, 0});
  check_refused(pair.builder.program(), 0, 0, 0, {"reads element 14", "of the step before, writes"});
  pair.builder.entry().records[0].waits.push_back({0, 1, 0, {}, {1, 1, 1, 1}, 0, -1});
  CHECK_NOTHROW(check(pair.builder.program()));
}

TEST_CASE("a record that writes must follow itself of the step before") {
  Pair pair;
  pair.builder.record("write", {3}).write({.tensor = pair.t, .size = 32, .strides = {32}});
  check_refused(pair.builder.program(), 0, 0, 0, {"tile 0 [0] of record 0 (\"write\") on rank 0, of the step before"});
  SUBCASE("each tile may follow only itself") {
    pair.builder.last_record().waits.push_back({0, 1, 0, {1}, {1, 1, 1, 1}, 0, -1});
    pair.builder.last_record().signals.push_back({0, 0, {1}, {1, 1, 1, 1}, kSelf});
    CHECK_NOTHROW(check(pair.builder.program()));
  }
  SUBCASE("a tile that follows another is not enough") {
    pair.builder.last_record().waits.push_back({0, 1, 0, {1}, {2, 1, 1, 1}, 0, -1});
    pair.builder.last_record().signals.push_back({0, 0, {1}, {1, 1, 1, 1}, kSelf});
    CHECK(refusal(pair.builder.program()).tile == 1);
  }
}

TEST_CASE("tiles may start on the part of the input that is ready, and on no other") {
  Pair pair;
  pair.builder.record("write", {8}).wait({.counter = pair.was_read, .count = 4, .step = -1});
  pair.builder.write({.tensor = pair.t, .size = 12, .strides = {12}});
  pair.builder.signal({.counter = pair.written, .strides = {1}, .divide = {2, 1, 1, 1}});
  pair.builder.record("read", {4}).wait({.counter = pair.written, .strides = {1}});
  pair.builder.read({.tensor = pair.t, .size = 24, .strides = {24}});
  pair.builder.signal({.counter = pair.was_read, .strides = {1}});
  CHECK_NOTHROW(check(pair.builder.program()));
  std::optional<package::Operand>& operand = pair.builder.last_record().operands[0];
  SUBCASE("one element too many") {
    operand->size = 25;
    operand->limit = 96;
    check_refused(pair.builder.program(), 1, 0, 0, {"reads element 24", "tile 2 [2] of record 0"});
  }
  SUBCASE("one element too early") {
    operand->strides[0] = 23;
    check_refused(pair.builder.program(), 1, 1, 0, {"reads element 23", "tile 1 [1] of record 0"});
  }
  SUBCASE("the wrong counter") {
    pair.builder.last_record().waits[0].strides = {};
    check_refused(pair.builder.program(), 1, 1, 0, {"reads element 24"});
  }
}

TEST_CASE("rows of a matrix are told apart") {
  // 4 rows of 24; the writer's tiles are columns [6i, 6i + 6) of all rows, the reader's rows of the left half.
  Pair pair;
  pair.builder.record("write", {4}).wait({.counter = pair.was_read, .step = -1});
  pair.builder.write({.tensor = pair.t, .size = 6, .strides = {6}, .rows = 4, .row_stride = 24});
  pair.builder.signal({.counter = pair.written, .strides = {1}, .divide = {2, 1, 1, 1}});
  pair.builder.record("close").wait({.counter = pair.written, .count = 2}).signal({.counter = pair.was_read});
  pair.builder.record("read", {4}).wait({.counter = pair.written});
  pair.builder.read({.tensor = pair.t, .size = 12, .strides = {24}});
  pair.builder.signal({.counter = pair.was_read});
  CHECK_NOTHROW(check(pair.builder.program()));
  pair.builder.entry().records[2].operands[0]->size = 13;
  pair.builder.entry().records[2].operands[0]->limit = 96;
  check_refused(pair.builder.program(), 2, 0, 0, {"reads element 12", "tile 2 [2] of record 0"});
}

TEST_CASE("tiles of one record must not write what another of them touches") {
  const auto one = [](const Slice& slice, std::vector<uint32_t> grid) {
    Builder builder;
    const uint32_t t = builder.tensor("t", 1000);
    const uint32_t c = builder.counter("c");
    Slice placed = slice;
    placed.tensor = t;
    builder.record("r", grid).wait({.counter = c, .step = -1}).signal({.counter = c}).write(placed, "out");
    return builder;
  };
  SUBCASE("slices side by side") { CHECK_NOTHROW(check(one({.size = 10, .strides = {10}}, {5}).program())); }
  SUBCASE("slices that overlap by one") {
    check_refused(one({.size = 11, .strides = {10}}, {5}).program(), 0, 1, 0, {"writes element 10", "tile 0 [0]"});
  }
  SUBCASE("a dimension without a stride") {
    check_refused(one({.size = 10, .strides = {10, 0}}, {5, 2}).program(), 0, 1, 0, {"writes element 0", "[0, 1]"});
  }
  SUBCASE("columns of a matrix whose last tile is cut") {
    CHECK_NOTHROW(check(one({.size = 32, .strides = {32}, .rows = 4, .row_stride = 172, .limit = 172}, {6}).program()));
    const Refusal found =
        refusal(one({.size = 32, .strides = {32}, .rows = 4, .row_stride = 171, .limit = 172}, {6}).program());
    CHECK(contains(found.message, "writes element 171"));
  }
  SUBCASE("rows inside a tile's piece") {
    CHECK_NOTHROW(check(one({.size = 5, .strides = {20}, .rows = 4, .row_stride = 5}, {6}).program()));
  }
  SUBCASE("slices that interleave without touching") {
    CHECK_NOTHROW(check(one({.size = 1, .strides = {3, 50}, .rows = 2, .row_stride = 1}, {10, 3}).program()));
    CHECK_NOTHROW(check(one({.size = 1, .strides = {2, 3}}, {2, 4}).program()));           // 0 3 6 9, 2 5 8 11
    const Refusal found = refusal(one({.size = 1, .strides = {3, 2}}, {3, 4}).program());  // 0 2 4 6, 3 5 7 9, 6 ...
    CHECK(contains(found.message, "writes element 6"));
  }
}

TEST_CASE("a tile may alias itself and nobody else") {
  const auto with_residual = [](uint64_t residual_offset) {
    Builder builder;
    const uint32_t h = builder.tensor("h", 100);
    const uint32_t c = builder.counter("c");
    builder.record("linear", {6}).wait({.counter = c, .step = -1}).signal({.counter = c});
    builder.read({.tensor = h, .offset = residual_offset, .size = 16, .strides = {16}}, "residual");
    builder.write({.tensor = h, .size = 16, .strides = {16}}, "out");
    return builder;
  };
  CHECK_NOTHROW(check(with_residual(0).program()));
  const Refusal found = refusal(with_residual(1).program());
  CHECK(found.record == 0);
  CHECK_MESSAGE(contains(found.message, "no counter orders"), found.message);
  // Inside a tile's own slice, not equal to it.
  Builder builder = with_residual(0);
  builder.last_record().operands[0]->size = 15;
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().operands[0]->offset = 1;
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().operands[0]->offset = 2;
  CHECK(contains(refusal(builder.program()).message, "element 16"));
}

TEST_CASE("an input that all tiles read cannot be the output") {
  Builder builder;
  const uint32_t h = builder.tensor("h", 96);
  const uint32_t c = builder.counter("c");
  builder.record("linear", {6}).wait({.counter = c, .step = -1}).signal({.counter = c});
  builder.read({.tensor = h}, "x").write({.tensor = h, .size = 16, .strides = {16}}, "out");
  const Refusal found = refusal(builder.program());
  CHECK_MESSAGE(contains(found.message, "no counter orders"), found.message);
}

TEST_CASE("tiles of a step may share the slice that they append to") {
  const auto attention = [](uint64_t size, bool waits) {
    Builder builder;
    const uint32_t cache = builder.tensor("cache", 400, MKRT_TENSOR_STATE);
    const uint32_t c = builder.counter("c");
    builder.record("attention", {4, 3});
    if (waits) builder.wait({.counter = c, .step = -1});
    builder.append({.tensor = cache, .size = size, .strides = {100, 0}}, {1}, "k_cache").signal({.counter = c});
    return builder;
  };
  CHECK_NOTHROW(check(attention(100, true).program()));
  CHECK(contains(refusal(attention(100, false).program()).message, "of the step before"));
  Builder overlapping = attention(100, true);
  overlapping.last_record().operands[0]->strides[0] = 99;
  CHECK(contains(refusal(overlapping.program()).message, "element 99"));
  SUBCASE("but only those that differ in a shared dimension") {
    Builder builder = attention(100, true);
    builder.last_record().operands[0]->strides[0] = 0;  // all sequences in the rows of one
    check_refused(builder.program(), 0, 3, 0, {"writes element 0", "tile 0 [0, 0]", "k_cache"});
    builder = attention(100, true);
    builder.program().isa.opcodes[0].operands[0].shared_dimensions = {0};
    check_refused(builder.program(), 0, 1, 0, {"writes element 0", "tile 0 [0, 0]", "k_cache"});
    builder.program().isa.opcodes[0].operands[0].shared_dimensions = {};
    check_refused(builder.program(), 0, 1, 0, {"writes element 0", "tile 0 [0, 0]", "k_cache"});
  }
  SUBCASE("nor with another operand") {
    Builder builder = attention(100, true);
    builder.append({.tensor = 0, .size = 100, .strides = {100, 0}}, {1}, "v_cache");
    CHECK(contains(refusal(builder.program()).message, "v_cache"));
    builder.program().isa.opcodes[0].operands[1].access = Access::read;
    CHECK(contains(refusal(builder.program()).message, "v_cache"));
  }
  SUBCASE("nor with another record") {
    Builder builder = attention(100, true);
    builder.record("reader").read({.tensor = 0, .offset = 350, .size = 10});
    check_refused(builder.program(), 1, 0, 0, {"reads element 350", "tile 9 [3, 0] of record 0"});
  }
  SUBCASE("nor from two ranks") {
    Builder builder(2);
    const uint32_t cache = builder.tensor("cache", 400, MKRT_TENSOR_STATE);
    const uint32_t c = builder.counter("c");
    builder.record("attention").wait({.counter = c, .step = -1});
    builder.append({.tensor = cache, .rank = fixed_rank(0)}, {0}).signal({.counter = c, .rank = kAll});
    CHECK(contains(refusal(builder.program()).message, "of rank 0"));
  }
}

// An all-reduce: every rank pushes its share to all, all sum what arrived.
Builder all_reduce(uint32_t ranks, uint64_t rank_stride) {
  Builder builder(ranks);
  const uint32_t parts = builder.tensor("parts", 16 * ranks);
  const uint32_t arrived = builder.counter("arrived");
  const uint32_t summed = builder.counter("summed");
  builder.record("push", {2}).wait({.counter = summed, .step = -1});
  builder.write({.tensor = parts, .size = 8, .strides = {8}, .rank_stride = rank_stride, .rank = kAll}, "out");
  builder.signal({.counter = arrived, .rank = kAll});
  builder.record("sum").wait({.counter = arrived}).read({.tensor = parts}, "parts");
  builder.signal({.counter = summed, .rank = kAll});
  return builder;
}

TEST_CASE("ranks may push into each other's tensors where each has its own share") {
  CHECK_NOTHROW(check(all_reduce(3, 16).program()));
  const Refusal found = refusal(all_reduce(3, 8).program());
  CHECK(found.record == 0);
  CHECK_MESSAGE(contains(found.message, "writes element 8"), found.message);
}

TEST_CASE("a push must wait until every rank has read the last one") {
  Builder builder = all_reduce(2, 16);
  builder.entry().records[1].signals[0].rank = kSelf;
  check_refused(builder.program(), 0, 0, 1,
                {"writes element 16 of tensor \"parts\" of rank 0",
                 "tile 0 [0] of record 1 (\"sum\") on rank 0, of the step before, reads"});
}

TEST_CASE("a push must be signalled where it is read") {
  Builder builder = all_reduce(2, 16);
  builder.entry().records[0].signals[0].rank = kSelf;
  const Refusal found = refusal(builder.program());
  CHECK(found.record == 1);
  CHECK_MESSAGE(contains(found.message, "reads element"), found.message);
}

TEST_CASE("tiles that go to different ranks are followed there") {
  // Tile i sends slice `own rank` to rank own + i: an all-to-all. The receiver waits for one tile of each rank.
  Builder builder(3);
  const uint32_t parts = builder.tensor("parts", 30);
  const uint32_t arrived = builder.counter("arrived");
  const uint32_t used = builder.counter("used");
  builder.record("send", {3}).wait({.counter = used, .step = -1});
  builder.write({.tensor = parts, .size = 10, .rank_stride = 10, .rank = relative_rank(0, 0)});
  builder.signal({.counter = arrived, .rank = relative_rank(0, 0)});
  builder.record("use").wait({.counter = arrived}).read({.tensor = parts}).signal({.counter = used, .rank = kAll});
  check(builder.program());
  CHECK(builder.entry().records[1].waits[0].step_total == 3);
  SUBCASE("two tiles for one rank conflict") {
    builder.entry().records[0].operands[0]->rank = relative_rank(1);
    const Refusal found = refusal(builder.program());
    CHECK(found.record == 0);
    CHECK_MESSAGE(contains(found.message, "no counter orders the two"), found.message);
  }
  SUBCASE("a signal to another rank than the data's orders nothing there") {
    builder.entry().records[0].signals[0].rank = relative_rank(1, 0);
    const Refusal found = refusal(builder.program());
    CHECK(found.record == 1);
  }
  SUBCASE("a grid that goes around twice writes twice") {
    builder.entry().records[0].grid[0] = 6;
    builder.entry().records[0].tile_count = 6;
    CHECK(refusal(builder.program()).record == 0);
  }
}

TEST_CASE("tiles that go to different ranks are told apart even where their counters are the same") {
  // Tile i of "send" writes to rank own + i; "use" waits for the own rank's tiles only.
  Builder builder(2);
  const uint32_t t = builder.tensor("t", 4);
  const uint32_t sent = builder.counter("sent");
  const uint32_t used = builder.counter("used");
  builder.record("send", {2}).wait({.counter = used, .step = -1});
  builder.write({.tensor = t, .size = 2, .rank_stride = 2, .rank = relative_rank(0, 0)}).signal({.counter = sent});
  builder.record("use").wait({.counter = sent}).read({.tensor = t, .size = 2, .rank_stride = 2});
  builder.signal({.counter = used, .rank = kAll});
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().operands[0]->size = 4;
  builder.last_record().operands[0]->rank_stride = 0;
  builder.last_record().operands[0]->limit = 4;
  check_refused(builder.program(), 1, 0, 0,
                {"reads element 2 of tensor \"t\" of rank 0", "tile 1 [1] of record 0", "on rank 1"});
}

TEST_CASE("a record in between orders only those that follow it") {
  // "far" and "last" write the same elements, "between" others of the same tensor.
  Builder builder;
  const uint32_t t = builder.tensor("t", 20);
  const uint32_t c_far = builder.counter("far");
  const uint32_t c_between = builder.counter("between");
  const uint32_t c_last = builder.counter("last");
  const auto add = [&](const std::string& label, uint64_t offset, uint32_t counter) {
    builder.record(label, {2}).wait({.counter = c_far, .step = -1}).wait({.counter = c_between, .step = -1});
    builder.wait({.counter = c_last, .step = -1}).signal({.counter = counter});
    builder.write({.tensor = t, .offset = offset, .size = 5, .strides = {5}});
  };
  add("far", 0, c_far);
  add("between", 10, c_between);
  add("last", 0, c_last);
  const auto wait = [&](uint32_t record, uint32_t counter) {
    package::Wait added;
    added.counter = added.array = counter;
    builder.entry().records[record].waits.push_back(added);
  };
  SUBCASE("a chain through it") {
    wait(1, c_far), wait(2, c_between);
    CHECK_NOTHROW(check(builder.program()));
  }
  SUBCASE("around it") {
    wait(2, c_far);
    CHECK_NOTHROW(check(builder.program()));
  }
  SUBCASE("it follows, the last does not follow it") {
    wait(1, c_far);
    check_refused(builder.program(), 2, 0, 0, {"writes element 0", "record 0 (\"far\")"});
  }
  SUBCASE("the last follows it, it does not follow") {
    wait(2, c_between);
    check_refused(builder.program(), 2, 0, 0, {"writes element 0", "record 0 (\"far\")"});
  }
}

TEST_CASE("a record in between orders none that follow only some of its kind") {
  // Tile 1 of "between" follows "far", tile 0 follows nothing; tiles of "last" follow one of them each.
  Builder builder;
  const uint32_t t = builder.tensor("t", 20);
  const uint32_t far = builder.counter("far", 2);
  const uint32_t between = builder.counter("between", 2);
  const uint32_t last = builder.counter("last");
  const auto add = [&](const std::string& label, uint64_t offset) -> Builder& {
    builder.record(label, {2}).wait({.counter = last, .step = -1});
    builder.wait({.counter = far, .count = 2, .step = -1}).wait({.counter = between, .count = 2, .step = -1});
    return builder.write({.tensor = t, .offset = offset, .size = 5, .strides = {5}});
  };
  add("far", 0).signal({.counter = far, .strides = {1}});
  add("between", 10).wait({.counter = far, .strides = {1}}).signal({.counter = between, .strides = {1}});
  add("last", 0).wait({.counter = between, .strides = {1}}).signal({.counter = last});
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().waits[3].strides[0] = 0;  // tile 1 of "last" follows tile 0 of "between"
  check_refused(builder.program(), 2, 1, 0, {"writes element 5", "tile 1 [1] of record 0 (\"far\")"});
}

TEST_CASE("two records that interleave without touching are not ordered and need not be") {
  Builder builder;
  const uint32_t t = builder.tensor("t", 60);
  for (uint64_t offset : {0, 2}) {
    const uint32_t c = builder.counter("c" + std::to_string(offset));
    builder.record("every third", {20}).wait({.counter = c, .step = -1}).signal({.counter = c});
    builder.write({.tensor = t, .offset = offset, .size = offset == 0 ? 2u : 1u, .strides = {3}});
  }
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().operands[0]->offset = 1;
  check_refused(builder.program(), 1, 0, 0, {"writes element 1", "tile 0 [0] of record 0"});
}

TEST_CASE("rows whose last tile is cut do not reach into the next record's columns") {
  // 3 rows of 32; the first record has columns [0, 20) in tiles of 8, the second columns [20, 32).
  Builder builder;
  const uint32_t t = builder.tensor("t", 96);
  const auto columns = [&](uint32_t tiles, uint64_t offset, uint64_t size, uint64_t limit) {
    const uint32_t c = builder.counter("c" + std::to_string(offset));
    builder.record("columns", {tiles}).wait({.counter = c, .step = -1}).signal({.counter = c});
    builder.write(
        {.tensor = t, .offset = offset, .size = size, .strides = {8}, .rows = 3, .row_stride = 32, .limit = limit});
  };
  columns(3, 0, 8, 20);
  columns(1, 20, 12, 0);
  CHECK_NOTHROW(check(builder.program()));
  builder.entry().records[0].operands[0]->limit = 21;
  check_refused(builder.program(), 1, 0, 0, {"writes element 20", "tile 2 [2] of record 0"});
}

TEST_CASE("a read of a peer's tensor must be ordered with the peer's writes") {
  Builder builder(2);
  const uint32_t t = builder.tensor("t", 8);
  const uint32_t written = builder.counter("written");
  const uint32_t was_read = builder.counter("was_read");
  builder.record("write").wait({.counter = was_read, .step = -1}).write({.tensor = t});
  builder.signal({.counter = written, .rank = relative_rank(1)});
  builder.record("read").wait({.counter = written}).read({.tensor = t, .rank = relative_rank(1)});
  builder.signal({.counter = was_read, .rank = relative_rank(1)});
  CHECK_NOTHROW(check(builder.program()));
  builder.entry().records[1].operands[0]->rank = kSelf;  // reads its own, but waits for the peer
  const Refusal found = refusal(builder.program());
  CHECK_MESSAGE(found.record == 1, found.message);
  CHECK_MESSAGE(contains(found.message, "reads element 0"), found.message);
}

TEST_CASE("entries do not see each other") {
  Builder builder;
  const uint32_t t = builder.tensor("t", 8);
  const uint32_t a = builder.counter("a");
  builder.record("write").wait({.counter = a, .step = -1}).write({.tensor = t}).signal({.counter = a});
  builder.program().entries.emplace_back().name = "prefill";
  const uint32_t b = builder.counter("b");
  builder.record("read").wait({.counter = b, .step = -1}).write({.tensor = t}).signal({.counter = b});
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().waits.clear();
  CHECK(contains(refusal(builder.program()).message, "entry \"prefill\""));
}

}  // namespace
}  // namespace mkrt::verify::test
