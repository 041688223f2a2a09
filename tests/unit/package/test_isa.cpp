#include <cstring>

#include "package/isa.hpp"
#include "package_fixture.hpp"

using namespace mkrt::package;
using mkrt::test::PackageFixture;

namespace {

OpcodeDefinition opcode_for_constraints() {
  OpcodeDefinition out{"op", {}, {}, {}, {}};
  out.operands = {{"x", Access::read, {Dtype::f32}, false}, {"pad", Access::write, {Dtype::f32}, true}};
  out.parameters = {{"columns", ParameterType::u32}, {"scale", ParameterType::f32}, {"grid", ParameterType::u32}};
  return out;
}

Constraint parse(std::string_view text) { return parse_constraint(text, opcode_for_constraints()); }

// Writes the specification's canonical bytes once more, by hand.
struct Bytes {
  std::string bytes;
  Bytes& number(uint32_t value) {
    bytes.append({char(value & 0xff), char(value >> 8 & 0xff), char(value >> 16 & 0xff), char(value >> 24)});
    return *this;
  }
  Bytes& string(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    bytes += value;
    return *this;
  }
};

uint64_t fnv1a(std::string_view bytes) {
  uint64_t hash = 14695981039346656037u;
  for (const char byte : bytes) {
    hash ^= static_cast<uint8_t>(byte);
    hash *= (uint64_t{1} << 40) + 0x1b3;  // its prime, 2^40 + 2^8 + 0xb3
  }
  return hash;
}

}  // namespace

TEST_CASE("the definition of mkrt.llm reads, with all that it defines") {
  const IsaDefinition isa = read_isa(MKRT_SOURCE_DIR "/isa/mkrt.llm.json");
  CHECK(isa.name == "mkrt.llm");
  CHECK(isa.version == 1);
  REQUIRE(isa.opcodes.size() == 12);
  const OpcodeDefinition& linear = isa.opcodes[2];
  CHECK(linear.name == "linear");
  REQUIRE(linear.operands.size() == 6);
  CHECK(linear.operands[1].name == "norm");
  CHECK(linear.operands[1].optional);
  CHECK(linear.operands[5].access == Access::write);
  CHECK(linear.operands[2].dtypes == std::vector{Dtype::bf16});
  CHECK(linear.parameters[3].type == ParameterType::f32);
  CHECK(isa.opcodes[5].operands[7].access == Access::append);
  CHECK(isa.opcodes[5].operands[7].shared_dimensions == std::vector<uint32_t>{2});  // the splits
  CHECK(isa.opcodes[5].operands[8].shared_dimensions == std::vector<uint32_t>{2});
  CHECK(isa.opcodes[5].operands[10].name == "workspace");
  CHECK(isa.opcodes[5].operands[10].shared_dimensions == std::vector<uint32_t>{2});
  CHECK(isa.opcodes[5].operands[6].shared_dimensions.empty());
  CHECK(isa.opcodes[9].name == "reduce_f32");
  CHECK(isa.opcodes[9].operands[0].access == Access::gather);
  CHECK(isa.opcodes[0].faults[1] == "the token is outside the vocabulary");
}

TEST_CASE("the fingerprint is FNV-1a of the bytes that the format specifies") {
  IsaDefinition isa{"a.b", 7, {}, 0};
  OpcodeDefinition opcode{"op", {}, {}, {}, {"no"}};
  opcode.operands = {{"x", Access::append, {Dtype::bf16, Dtype::u8}, true, {0, 2}, true, true}};
  opcode.parameters = {{"n", ParameterType::i32}, {"f", ParameterType::f32}};
  opcode.constraints = {parse_constraint("x.size  == 4", opcode)};
  isa.opcodes = {opcode};
  Bytes expected;
  expected.string("a.b").number(7).number(1).string("op");
  expected.number(1).string("x").number(3).number(2).number(3).number(6).number(1).number(2).number(0).number(2);
  expected.number(1).number(1);  // whole, constant
  expected.number(2).string("n").number(1).string("f").number(2);
  expected.number(1).string("x.size  == 4").number(1).string("no");
  CHECK(fnv1a("a") == 0xaf63dc4c8601ec8c);  // as its authors publish it
  CHECK(compute_fingerprint(isa) == fnv1a(expected.bytes));
  // What another implementation, in Python, says of these 122 bytes.
  CHECK(compute_fingerprint(isa) == 0xd04e920cff6a645a);
}

TEST_CASE("every part of a definition changes its fingerprint") {
  const IsaDefinition isa = PackageFixture().read().isa;
  CHECK(isa.fingerprint == compute_fingerprint(isa));
  const auto differs = [&](auto edit) {
    IsaDefinition other = isa;
    edit(other);
    return compute_fingerprint(other) != isa.fingerprint;
  };
  CHECK(differs([](IsaDefinition& other) { other.name += 'x'; }));
  CHECK(differs([](IsaDefinition& other) { ++other.version; }));
  CHECK(differs([](IsaDefinition& other) { std::swap(other.opcodes[0], other.opcodes[1]); }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[0].name += 's'; }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[0].operands[0].name += 'y'; }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[0].operands[0].access = Access::append; }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[0].operands[0].optional = true; }));
  CHECK(
      differs([](IsaDefinition& other) { other.opcodes[0].operands[0].whole = !other.opcodes[0].operands[0].whole; }));
  CHECK(differs(
      [](IsaDefinition& other) { other.opcodes[0].operands[0].constant = !other.opcodes[0].operands[0].constant; }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[1].operands[1].shared_dimensions = {1}; }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[0].operands[0].dtypes.push_back(Dtype::u8); }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[0].parameters[0].type = ParameterType::i32; }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[0].constraints.pop_back(); }));
  CHECK(differs([](IsaDefinition& other) { other.opcodes[0].faults[0] += '.'; }));
}

TEST_CASE("a constraint is two products and a relation") {
  const Constraint constraint = parse("x.size*pad( columns ,32) >= 3 * grid.2 * pad.rows*grid");
  CHECK(constraint.text == "x.size*pad( columns ,32) >= 3 * grid.2 * pad.rows*grid");
  CHECK(constraint.relation == Constraint::Relation::greater_equal);
  REQUIRE(constraint.left.size() == 2);
  CHECK(constraint.left[0].kind == ConstraintFactor::Kind::operand_size);
  CHECK(constraint.left[0].index == 0);
  CHECK(constraint.left[1].kind == ConstraintFactor::Kind::parameter);
  CHECK(constraint.left[1].index == 0);
  CHECK(constraint.left[1].pad_to == 32);
  REQUIRE(constraint.right.size() == 4);
  CHECK(constraint.right[0].kind == ConstraintFactor::Kind::constant);
  CHECK(constraint.right[0].constant == 3);
  CHECK(constraint.right[1].kind == ConstraintFactor::Kind::grid);
  CHECK(constraint.right[1].index == 2);
  CHECK(constraint.right[2].kind == ConstraintFactor::Kind::operand_rows);
  CHECK(constraint.right[2].index == 1);
  CHECK(constraint.right[3].kind == ConstraintFactor::Kind::parameter);
  CHECK(constraint.right[3].index == 2);
  CHECK(parse("pad(9223372036854775807, 1) <= 0").left[0].constant == INT64_MAX);
  CHECK(parse("pad(x.rows,2)==1").left[0].pad_to == 2);
}

TEST_CASE("a constraint that does not follow the grammar is refused") {
  for (const char* text : {"",
                           " ",
                           "x.size",
                           "x.size ==",
                           "== 1",
                           "x.size = 1",
                           "x.size < 1",
                           "x.size == 1 1",
                           "x.size == 1 *",
                           "* 1 == 1",
                           "x.bytes == 1",
                           "x. == 1",
                           "x == 1",
                           "y.size == 1",
                           "columns.size == 1",
                           "scale == 1",
                           "unknown == 1",
                           "grid.4 == 1",
                           "grid.x == 1",
                           "x.0 == 1",
                           "pad(columns) == 1",
                           "pad(columns, 0) == 1",
                           "pad(columns, x) == 1",
                           "pad(columns, 2 == 1",
                           "pad(pad(columns, 2), 4) == 1",
                           "pad == 1",
                           "-1 == 1",
                           "(1) == 1",
                           "1 == 1 == 1",
                           "9223372036854775808 == 1",
                           "99999999999999999999999 == 1",
                           "x.size == 1.5",
                           "x.size \t== 1"}) {
    INFO(std::string(text));
    CHECK_FAILURE(parse(text), MKRT_ERROR_FORMAT, "constraint");
  }
}

TEST_CASE("malformed definitions are refused with their place") {
  struct Case {
    const char* pointer;
    const char* value;
    const char* place;
    const char* reason;
  };
  const Case cases[] = {
      {"/isa", "[]", "/isa:", "must be an object"},
      {"/isa/name", "", "/isa:", "lacks the member \"name\""},
      {"/isa/name", "\"\"", "/isa/name:", "empty"},
      {"/isa/extra", "1", "/isa:", "unknown member \"extra\""},
      {"/isa/version", "-1", "/isa/version:", "from 0 to 4294967295"},
      {"/isa/version", "1.0", "/isa/version:", "must be an integer"},
      {"/isa/opcodes", "[]", "/isa/opcodes:", "at least 1"},
      {"/isa/opcodes", "{}", "/isa/opcodes:", "must be an array"},
      {"/isa/opcodes/0", "3", "/isa/opcodes/0:", "must be an object"},
      {"/isa/opcodes/1/name", "\"scale\"", "/isa/opcodes/1/name:", "opcode \"scale\" is there twice"},
      {"/isa/opcodes/1/name", "\"a b\"", "/isa/opcodes/1/name:", "letters, digits"},
      {"/isa/opcodes/1/name", "\"1a\"", "/isa/opcodes/1/name:", "letters, digits"},
      {"/isa/opcodes/1/faults", "", "/isa/opcodes/1:", "lacks the member \"faults\""},
      {"/isa/opcodes/1/faults", "[\"\"]", "/isa/opcodes/1/faults/0:", "empty"},
      {"/isa/opcodes/1/more", "[]", "/isa/opcodes/1:", "unknown member \"more\""},
      {"/isa/opcodes/0/operands/1/name", "\"x\"", "/isa/opcodes/0/operands/1/name:", "operand \"x\" is there twice"},
      {"/isa/opcodes/0/operands/0/access", "\"reads\"", "/isa/opcodes/0/operands/0/access:", "\"reads\" is not"},
      {"/isa/opcodes/0/operands/0/access", "0", "/isa/opcodes/0/operands/0/access:", "must be a string"},
      {"/isa/opcodes/0/operands/0/dtypes", "[]", "/isa/opcodes/0/operands/0/dtypes:", "at least 1"},
      {"/isa/opcodes/0/operands/0/dtypes", "[\"f64\"]",
       "/isa/opcodes/0/operands/0/dtypes/0:", "\"f64\" is not a dtype"},
      {"/isa/opcodes/0/operands/0/dtypes", "[\"u8\", \"u8\"]", "/isa/opcodes/0/operands/0/dtypes/1:", "twice"},
      {"/isa/opcodes/0/operands/0/optional", "1", "/isa/opcodes/0/operands/0/optional:", "true or false"},
      {"/isa/opcodes/0/operands/0/whole", "\"yes\"", "/isa/opcodes/0/operands/0/whole:", "true or false"},
      {"/isa/opcodes/0/operands/0/default", "1", "/isa/opcodes/0/operands/0:", "unknown member"},
      {"/isa/opcodes/0/operands/0/access", "\"append\"", "/isa/opcodes/0/operands/0:", "needs \"shared_dimensions\""},
      {"/isa/opcodes/0/operands/0/shared_dimensions", "[]",
       "/isa/opcodes/0/operands/0/shared_dimensions:", "only operands of access \"append\""},
      {"/isa/opcodes/1/operands/1/shared_dimensions", "2", "/isa/opcodes/1/operands/1/shared_dimensions:", "an array"},
      {"/isa/opcodes/1/operands/1/shared_dimensions", "[4]",
       "/isa/opcodes/1/operands/1/shared_dimensions/0:", "from 0 to 3"},
      {"/isa/opcodes/1/operands/1/shared_dimensions", "[2, 2]",
       "/isa/opcodes/1/operands/1/shared_dimensions/1:", "ascending"},
      {"/isa/opcodes/1/operands/1/shared_dimensions", "[2, 1]",
       "/isa/opcodes/1/operands/1/shared_dimensions/1:", "ascending"},
      {"/isa/opcodes/0/parameters/0/type", "\"f64\"", "/isa/opcodes/0/parameters/0/type:", "\"f64\" is not"},
      {"/isa/opcodes/0/parameters/1/name", "\"columns\"", "/isa/opcodes/0/parameters/1/name:", "twice"},
      {"/isa/opcodes/0/constraints/1", "\"x.size\"", "/isa/opcodes/0/constraints/1:", "lacks"},
      {"/isa/opcodes/0/constraints/1", "7", "/isa/opcodes/0/constraints/1:", "must be a string"},
  };
  for (const Case& malformed : cases) {
    INFO(mkrt::base::text(malformed.pointer, " = ", malformed.value));
    PackageFixture fixture;
    fixture.edit(malformed.pointer, malformed.value);
    CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "program.json: ", malformed.place, malformed.reason);
  }
}

TEST_CASE("an opcode may have 12 operands and 16 parameters, and not one more") {
  PackageFixture fixture;
  auto& opcode = fixture.opcode(1);
  for (int i = 3; i < MKRT_RECORD_OPERANDS; ++i) {
    opcode["operands"].push_back(
        {{"name", mkrt::base::text("o", i)}, {"access", "read"}, {"dtypes", {"u8"}}, {"optional", true}});
  }
  for (int i = 0; i < 16; ++i) opcode["parameters"].push_back({{"name", mkrt::base::text("p", i)}, {"type", "u32"}});
  for (int i = 0; i < 16; ++i) fixture.record(1)["parameters"][mkrt::base::text("p", i)] = i;
  const Program program = fixture.read();
  CHECK(program.entries[0].records[1].operands.size() == 12);
  CHECK(program.entries[0].records[1].parameters[15] == 15);
  opcode["operands"].push_back({{"name", "last"}, {"access", "read"}, {"dtypes", {"u8"}}});
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/isa/opcodes/1/operands", "at most 12");
  opcode["operands"].erase(12);
  opcode["parameters"].push_back({{"name", "last"}, {"type", "u32"}});
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/isa/opcodes/1/parameters", "at most 16");
}

TEST_CASE("an opcode has at most 64 constraints and 64 faults, an instruction set at most 4096 opcodes") {
  PackageFixture fixture;
  auto& opcode = fixture.opcode(1);
  for (int i = 0; i < 64; ++i) opcode["constraints"].push_back("1 == 1");
  for (int i = 0; i < 64; ++i) opcode["faults"].push_back("no");
  CHECK(fixture.read().isa.opcodes[1].constraints.size() == 64);
  opcode["constraints"].push_back("1 == 1");
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/isa/opcodes/1/constraints", "at most 64");
  opcode["constraints"].clear();
  opcode["faults"].push_back("no");
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/isa/opcodes/1/faults", "at most 64");
  opcode["faults"].clear();
  const PackageFixture::Json last = opcode;  // push_back moves what `opcode` refers to
  for (int i = 2; i <= 4096; ++i) {
    fixture.program["isa"]["opcodes"].push_back(last);
    fixture.opcode(fixture.program["isa"]["opcodes"].size() - 1)["name"] = mkrt::base::text("op", i);
  }
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/isa/opcodes", "at most 4096");
  fixture.program["isa"]["opcodes"].erase(4096);
  CHECK(fixture.read().isa.opcodes.size() == 4096);
}
