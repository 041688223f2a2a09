// Rules that hold of a record by itself: bounds, ranks, weights, constraints.
#include "builder.hpp"

namespace mkrt::verify::test {
namespace {

using package::Constraint;
using package::ConstraintFactor;

constexpr int32_t kNoRank = -1;

ConstraintFactor constant(uint64_t value) { return {ConstraintFactor::Kind::constant, 0, value, 1}; }
ConstraintFactor factor(ConstraintFactor::Kind kind, uint32_t index, uint64_t pad_to = 1) {
  return {kind, index, 1, pad_to};
}
Constraint relate(std::vector<ConstraintFactor> left, Constraint::Relation relation,
                  std::vector<ConstraintFactor> right, const std::string& text) {
  return {std::move(left), relation, std::move(right), text};
}

TEST_CASE("a slice may reach the tensor's last element and not one further") {
  for (uint64_t excess : {0, 1}) {
    Builder builder;
    const uint32_t t = builder.tensor("hidden", 100);
    builder.record("ok").read({.tensor = t, .size = 10});
    builder.record("edge", {3, 2}).read({.tensor = t, .offset = 5 + excess, .size = 15, .strides = {30, 20}}, "x");
    if (excess == 0) {
      CHECK_NOTHROW(check(builder.program()));
    } else {
      check_refused(builder.program(), 1, 5, 0,
                    {"entry \"decode\"", "tile 5 [2, 1]", "record 1 (\"edge\")", "operand \"x\"", "tensor \"hidden\"",
                     "ends at element 101", "has 100"});
    }
  }
}

TEST_CASE("rows count into the bounds") {
  Builder builder;
  const uint32_t t = builder.tensor("t", 100);
  builder.record("rows").read({.tensor = t, .size = 20, .rows = 5, .row_stride = 20});
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().operands[0]->rows = 6;
  check_refused(builder.program(), 0, 0, 0, {"ends at element 120"});
}

TEST_CASE("a limit cuts the last tile, and the bounds are those of the cut") {
  Builder builder;
  const uint32_t t = builder.tensor("t", 172);
  builder.record("cut", {6}).read({.tensor = t, .size = 32, .strides = {32}, .limit = 172});
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().operands[0]->limit = 173;
  check_refused(builder.program(), 0, 5, 0, {"ends at element 173"});
  builder.last_record().operands[0]->limit = 160;
  check_refused(builder.program(), 0, 5, 0, {"starts at 160", "limit 160"});
  builder.last_record().operands[0]->limit = 161;
  CHECK_NOTHROW(check(builder.program()));
}

TEST_CASE("a limit may touch an operand that the instruction needs whole, and not cut it") {
  Builder builder;
  const uint32_t t = builder.tensor("t", 192);
  builder.record("attend", {6}).read({.tensor = t, .size = 32, .strides = {32}, .limit = 192}, "keys");
  builder.last_definition().operands[0].whole = true;
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().operands[0]->limit = 191;
  check_refused(builder.program(), 0, 5, 0,
                {"operand \"keys\"", "ends at 192", "beyond its limit 191", "needs all of it"});
  builder.last_definition().operands[0].whole = false;
  CHECK_NOTHROW(check(builder.program()));
}

TEST_CASE("what an instruction may read before it waits must be a weight") {
  for (const uint32_t kind : {MKRT_TENSOR_WEIGHT, MKRT_TENSOR_STATE, MKRT_TENSOR_SCRATCH}) {
    Builder builder;
    const uint32_t t = builder.tensor("matrix", 64, kind);
    builder.record("multiply").read({.tensor = t, .size = 64}, "weight");
    CHECK_NOTHROW(check(builder.program()));
    builder.last_definition().operands[0].constant = true;
    if (kind == MKRT_TENSOR_WEIGHT) {
      CHECK_NOTHROW(check(builder.program()));
    } else {
      check_refused(builder.program(), 0, 0, kNoRank, {"operand \"weight\"", "is no weight", "before it waits"});
    }
  }
}

TEST_CASE("the last rank's slice must lie in the tensor too") {
  Builder builder(4);
  const uint32_t t = builder.tensor("t", 40);
  builder.record("shares").read({.tensor = t, .size = 10, .rank_stride = 10});
  CHECK_NOTHROW(check(builder.program()));
  builder.last_record().operands[0]->rank_stride = 11;
  check_refused(builder.program(), 0, 0, 3, {"on rank 3", "ends at element 43"});
}

TEST_CASE("numbers that overflow are refused wherever they stand") {
  const uint64_t huge = uint64_t{1} << 62;
  const auto refused_with = [&](auto&& change, const std::string& word) {
    Builder builder(2);
    const uint32_t t = builder.tensor("t", 100);
    builder.record("r", {3}).read({.tensor = t, .size = 10, .strides = {10}, .rows = 2, .row_stride = 10});
    REQUIRE_NOTHROW(check(builder.program()));
    change(*builder.last_record().operands[0]);
    const Refusal found = refusal(builder.program());
    CHECK(found.record == 0);
    CHECK_MESSAGE(contains(found.message, word), found.message);
  };
  refused_with([&](package::Operand& o) { o.offset = huge; }, "offset");
  refused_with([&](package::Operand& o) { o.offset = UINT64_MAX / 4 + 1; }, "offset");
  refused_with([&](package::Operand& o) { o.rank_stride = huge; }, "rank_stride");
  refused_with([&](package::Operand& o) { o.strides[0] = huge; }, "stride");
  refused_with([&](package::Operand& o) { o.strides[3] = UINT64_MAX; }, "stride");
  refused_with([&](package::Operand& o) { o.size = huge; }, "size");
  refused_with([&](package::Operand& o) { o.limit = UINT64_MAX; }, "limit");
  refused_with([&](package::Operand& o) { o.row_stride = huge; }, "row_stride");
  refused_with([&](package::Operand& o) { o.rows = UINT32_MAX; }, "ends at element");
  // Each number fits, the sum does not.
  refused_with([&](package::Operand& o) { o.rows = UINT32_MAX, o.row_stride = (uint64_t{1} << 61) - 1; }, "63 bits");
  Builder builder;
  const uint32_t t = builder.tensor("t", 100);
  builder.record("r", {1u << 20, 1u << 10}).read({.tensor = t, .size = 10});
  builder.last_record().operands[0]->strides = {(uint64_t{1} << 61) - 1, 0};
  check_refused(builder.program(), 0, (uint64_t{1} << 30) - 1, 0, {"starts beyond 63 bits"});
}

TEST_CASE("weights are constant and belong to their own rank") {
  Builder builder(2);
  const uint32_t w = builder.tensor("weight", 64, MKRT_TENSOR_WEIGHT);
  builder.record("linear").read({.tensor = w}, "weight");
  CHECK_NOTHROW(check(builder.program()));
  for (mkrt_rank_selector selector : {kAll, fixed_rank(0), relative_rank(1)}) {
    builder.last_record().operands[0]->rank = selector;
    check_refused(builder.program(), 0, 0, kNoRank, {"operand \"weight\"", "only on their own"});
  }
  builder.last_record().operands[0]->rank = kSelf;
  builder.program().isa.opcodes[0].operands[0].access = Access::gather;
  CHECK_NOTHROW(check(builder.program()));
  for (Access access : {Access::write, Access::read_write, Access::append}) {
    builder.program().isa.opcodes[0].operands[0].access = access;
    check_refused(builder.program(), 0, 0, kNoRank, {"weights are constant"});
  }
}

TEST_CASE("only what is written or gathered may name all ranks") {
  for (Access access : {Access::write, Access::gather}) {
    Builder builder(2);
    const uint32_t t = builder.tensor("t", 64), done = builder.counter("done");
    builder.record("r").operand(access, {.tensor = t, .size = 32, .rank_stride = 32, .rank = kAll});
    builder.wait({.counter = done, .step = -1}).signal({.counter = done, .rank = kAll});
    CHECK_NOTHROW(check(builder.program()));
  }
  for (Access access : {Access::read, Access::read_write, Access::append}) {
    Builder builder(2);
    const uint32_t t = builder.tensor("t", 64);
    builder.record("r").operand(access, {.tensor = t, .rank = kAll});
    check_refused(builder.program(), 0, 0, kNoRank, {"only operands of access \"write\" or \"gather\" may name all"});
  }
}

TEST_CASE("ranks and dimensions that do not exist are refused") {
  Builder builder(2);
  const uint32_t t = builder.tensor("t", 64);
  builder.record("r", {2, 2}).read({.tensor = t, .rank = fixed_rank(1)});
  CHECK_NOTHROW(check(builder.program()));
  mkrt_rank_selector& selector = builder.last_record().operands[0]->rank;
  selector = fixed_rank(2);
  check_refused(builder.program(), 0, 0, kNoRank, {"names rank 2", "has 2"});
  selector = relative_rank(0, 1);
  CHECK_NOTHROW(check(builder.program()));
  selector = relative_rank(0, 2);
  check_refused(builder.program(), 0, 0, kNoRank, {"dimension 2", "the grid has 2"});
  selector = {7, 0xff, 0};
  check_refused(builder.program(), 0, 0, kNoRank, {"rank mode 7"});
}

TEST_CASE("a signal of a rank that does not exist is refused") {
  Builder builder(2);
  const uint32_t c = builder.counter("done");
  builder.record("r").signal({.counter = c, .rank = fixed_rank(2)});
  check_refused(builder.program(), 0, 0, kNoRank, {"signal of counter \"done\"", "names rank 2"});
}

TEST_CASE("constraints are evaluated exactly") {
  using Kind = ConstraintFactor::Kind;
  using Relation = Constraint::Relation;
  Builder builder;
  const uint32_t t = builder.tensor("t", 1000);
  builder.record("r", {3, 7}).read({.tensor = t, .size = 96, .rows = 4, .row_stride = 100}, "x");
  builder.parameter("columns", 90).absent_operand("bias");
  const auto accepts = [&](const Constraint& constraint) {
    Builder copy = builder;
    copy.constraint(constraint);
    try {
      check(copy.program());
      return true;
    } catch (const base::Failure& failure) {
      CHECK(failure.status() == MKRT_ERROR_SCHEDULE);
      CHECK(failure.record() == 0);
      CHECK_MESSAGE(contains(failure.message(), "\"" + constraint.text + "\""), failure.message());
      return false;
    }
  };
  CHECK(accepts(relate({factor(Kind::operand_size, 0)}, Relation::equal, {factor(Kind::parameter, 0, 32)},
                       "x.size == pad(columns, 32)")));
  CHECK_FALSE(accepts(
      relate({factor(Kind::operand_size, 0)}, Relation::equal, {factor(Kind::parameter, 0)}, "x.size == columns")));
  CHECK(accepts(relate({factor(Kind::operand_rows, 0), factor(Kind::grid, 1)}, Relation::equal, {constant(28)},
                       "x.rows * grid.1 == 28")));
  CHECK(accepts(relate({factor(Kind::grid, 0)}, Relation::less_equal, {constant(3)}, "grid.0 <= 3")));
  CHECK_FALSE(accepts(relate({factor(Kind::grid, 0)}, Relation::less_equal, {constant(2)}, "grid.0 <= 2")));
  CHECK(accepts(relate({factor(Kind::grid, 0)}, Relation::greater_equal, {constant(3)}, "grid.0 >= 3")));
  CHECK_FALSE(accepts(relate({factor(Kind::grid, 0)}, Relation::greater_equal, {constant(4)}, "grid.0 >= 4")));
  CHECK(accepts(relate({factor(Kind::operand_size, 1)}, Relation::equal, {constant(5)}, "bias.size == 5")));
  const uint64_t big = uint64_t{1} << 33;
  CHECK_FALSE(accepts(relate({constant(big), constant(big)}, Relation::greater_equal, {constant(1)}, "overflow")));
  CHECK_FALSE(accepts(relate({constant(0)}, Relation::less_equal,
                             {ConstraintFactor{Kind::constant, 0, UINT64_MAX, 1000}}, "padding overflows")));
}

TEST_CASE("a failure's names are cut, its sentence is not") {
  Builder builder;
  const uint32_t t = builder.tensor(std::string(256, 't'), 10);
  builder.record(std::string(256, 'r')).read({.tensor = t, .size = 11}, std::string(256, 'o'));
  const Refusal found = refusal(builder.program());
  CHECK(contains(found.message, "ends at element 11, but the tensor has 10"));
  CHECK(found.message.size() < sizeof(mkrt_error::message));
}

}  // namespace
}  // namespace mkrt::verify::test
