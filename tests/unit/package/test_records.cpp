// Records: operands, parameters, waits and signals.
#include <bit>

#include "package_fixture.hpp"

using namespace mkrt::package;
using mkrt::test::failure_of;
using mkrt::test::PackageFixture;

namespace {

struct Case {
  const char* pointer;  // below the record
  const char* value;    // "" removes the member
  const char* place;    // below the record
  const char* reason;
};

void check_cases(size_t record, std::initializer_list<Case> cases) {
  const std::string base = "/entries/0/records/" + std::to_string(record);
  const std::string label = record == 0 ? " (\"scale rows\"): " : ": ";
  for (const Case& malformed : cases) {
    INFO(mkrt::base::text(malformed.pointer, " = ", malformed.value));
    PackageFixture fixture;
    fixture.edit(base + malformed.pointer, malformed.value);
    const auto failure = failure_of([&] { (void)fixture.read(); });
    mkrt::test::check_failure(failure, MKRT_ERROR_FORMAT,
                              {"program.json: ", base + malformed.place + label, malformed.reason});
    CHECK(failure.record() == static_cast<int32_t>(record));
  }
}

Record read_record(const PackageFixture& fixture, size_t index) { return fixture.read().entries[0].records[index]; }

Operand read_operand(const char* text, const char* more = nullptr) {
  PackageFixture fixture;
  fixture.edit("/entries/0/records/1/operands/x", text);
  if (more != nullptr) fixture.edit("/entries/0/records/1/tiles", more);
  if (more != nullptr) fixture.edit("/entries/0/records/1/operands/rows", "\"kept\"");
  if (more != nullptr) fixture.edit("/entries/0/records/1/operands/out", "\"sums\"");
  if (more != nullptr) fixture.edit("/entries/0/records/1/wait", "[]");
  return *read_record(fixture, 1).operands[0];
}

bool same(const mkrt_rank_selector& rank, uint8_t mode, uint8_t dimension, uint16_t offset) {
  return rank.mode == mode && rank.dimension == dimension && rank.offset == offset;
}

}  // namespace

TEST_CASE("a record has its opcode's operands and parameters in the definition's order") {
  const Record record = read_record(PackageFixture(), 0);
  CHECK(record.opcode == 0);
  CHECK(record.label == "scale rows");
  CHECK(record.grid == std::array<uint32_t, 4>{4, 1, 1, 1});
  CHECK(record.dimensions == 1);
  CHECK(record.tile_count == 4);
  REQUIRE(record.parameters.size() == 3);
  CHECK(record.parameters[0] == 8);
  CHECK(static_cast<int32_t>(record.parameters[1]) == -3);
  CHECK(std::bit_cast<float>(record.parameters[2]) == 0.5f);
  REQUIRE(record.operands.size() == 4);
  CHECK(record.operands[0]->tensor == 1);
  CHECK(record.operands[1]->tensor == 0);
  CHECK_FALSE(record.operands[2]);
  CHECK(record.operands[3]->tensor == 2);
}

TEST_CASE("a grid has up to four dimensions, the last ones filled with 1") {
  PackageFixture fixture;
  fixture.record(1)["tiles"] = {2, 3, 5, 7};
  for (const char* operand : {"x", "rows", "out"}) fixture.record(1)["operands"][operand].erase("strides");
  fixture.record(1)["wait"] = PackageFixture::Json::array();
  const Record record = read_record(fixture, 1);
  CHECK(record.grid == std::array<uint32_t, 4>{2, 3, 5, 7});
  CHECK(record.dimensions == 4);
  CHECK(record.tile_count == 210);
}

TEST_CASE("an operand that is a name means the whole tensor as one row") {
  const Operand operand = read_operand("\"h\"");
  CHECK(operand.tensor == 2);
  CHECK(operand.offset == 0);
  CHECK(operand.size == 32);
  CHECK(operand.limit == 32);
  CHECK(operand.rows == 1);
  CHECK(operand.strides == std::array<uint64_t, 4>{});
  CHECK(same(operand.rank, MKRT_RANK_SELF, 0xff, 0));
}

TEST_CASE("an operand's left out members have their defaults") {
  Operand operand = read_operand(R"({"tensor": "h"})");
  CHECK(operand.size == 32);
  CHECK(operand.limit == 32);
  operand = read_operand(R"({"tensor": "h", "size": 2, "strides": [8, 1]})", "[2, 7]");
  CHECK(operand.limit == 2 + 8 + 6);
  CHECK(operand.strides == std::array<uint64_t, 4>{8, 1, 0, 0});
  operand = read_operand(R"({"tensor": "h", "offset": 3, "rank_stride": 5, "size": 2, "rows": 3, "row_stride": 4,
                             "strides": [1], "limit": 3})");
  CHECK(operand.offset == 3);
  CHECK(operand.rank_stride == 5);
  CHECK(operand.rows == 3);
  CHECK(operand.row_stride == 4);
  CHECK(operand.limit == 3);
}

TEST_CASE("ranks of operands and signals are selected in four ways") {
  CHECK(same(read_operand(R"({"tensor": "h", "rank": "self"})").rank, MKRT_RANK_SELF, 0xff, 0));
  CHECK(same(read_operand(R"({"tensor": "h", "rank": 1})").rank, MKRT_RANK_FIXED, 0xff, 1));
  CHECK(same(read_operand(R"({"tensor": "h", "rank": {"offset": 1}})").rank, MKRT_RANK_RELATIVE, 0xff, 1));
  CHECK(same(read_operand(R"({"tensor": "h", "rank": {"offset": 0, "dimension": 1}})", "[2, 2]").rank,
             MKRT_RANK_RELATIVE, 1, 0));
  PackageFixture fixture;
  fixture.record(1)["operands"]["out"]["rank"] = "all";
  fixture.record(1)["signal"] = {{{"counter", "summed"}, {"rank", "all"}}};
  const Record record = read_record(fixture, 1);
  CHECK(same(record.operands[2]->rank, MKRT_RANK_ALL, 0xff, 0));
  CHECK(same(record.signals[0].rank, MKRT_RANK_ALL, 0xff, 0));
}

TEST_CASE("what an instruction gathers it may read at every rank, and it is no weight that is written") {
  PackageFixture fixture;
  fixture.program["isa"]["opcodes"][1]["operands"][0]["access"] = "gather";
  for (const char* rank : {"all", "self"}) {
    fixture.record(1)["operands"]["x"]["rank"] = rank;
    const Record record = read_record(fixture, 1);
    CHECK(same(record.operands[0]->rank, rank[0] == 'a' ? MKRT_RANK_ALL : MKRT_RANK_SELF, 0xff, 0));
  }
}

TEST_CASE("waits and signals name counters of the entry") {
  PackageFixture fixture;
  fixture.record(1)["wait"] = {
      "scaled", {{"counter", "scaled"}, {"offset", 1}, {"count", 2}, {"strides", {3}}, {"divide", {2}}, {"value", 9}}};
  fixture.record(1)["signal"] = {
      {{"counter", "summed"}, {"offset", 0}, {"strides", {0}}, {"divide", {4}}, {"rank", 1}}};
  const Record record = read_record(fixture, 1);
  REQUIRE(record.waits.size() == 2);
  CHECK(record.waits[0].counter == 0);
  CHECK(record.waits[0].count == 1);
  CHECK(record.waits[0].value == 0);
  CHECK(record.waits[0].step_offset == 0);
  CHECK(record.waits[0].divide == std::array<uint32_t, 4>{1, 1, 1, 1});
  CHECK(record.waits[1].counter == 1);
  CHECK(record.waits[1].array == 0);
  CHECK(record.waits[1].count == 2);
  CHECK(record.waits[1].value == 9);
  CHECK(record.waits[1].strides == std::array<uint32_t, 4>{3, 0, 0, 0});
  CHECK(record.waits[1].divide == std::array<uint32_t, 4>{2, 1, 1, 1});
  REQUIRE(record.signals.size() == 1);
  CHECK(record.signals[0].counter == 4);
  CHECK(record.signals[0].array == 1);
  CHECK(same(record.signals[0].rank, MKRT_RANK_FIXED, 0xff, 1));
  CHECK(read_record(PackageFixture(), 0).waits[0].step_offset == -1);
}

TEST_CASE("members that may be left out may be left out, or be empty") {
  PackageFixture fixture;
  for (const char* member : {"label", "wait", "signal"}) fixture.record(0).erase(member);
  CHECK(read_record(fixture, 0).label.empty());
  fixture.record(0)["label"] = "";
  fixture.record(0)["wait"] = PackageFixture::Json::array();
  fixture.record(1)["parameters"] = PackageFixture::Json::object();
  CHECK(read_record(fixture, 0).waits.empty());
}

TEST_CASE("malformed records are refused with their place, label and number") {
  check_cases(0, {
                     {"/op", "\"scales\"", "/op", "opcode \"scales\" does not exist"},
                     {"/op", "7", "/op", "must be a string"},
                     {"/op", "", "", "lacks the member \"op\""},
                     {"/tiles", "", "", "lacks the member \"tiles\""},
                     {"/operands", "", "", "lacks the member \"operands\""},
                     {"/more", "1", "", "unknown member \"more\""},
                     {"/tiles", "4", "/tiles", "must be an array"},
                     {"/tiles", "[]", "/tiles", "at least 1"},
                     {"/tiles", "[1, 1, 1, 1, 1]", "/tiles", "at most 4"},
                     {"/tiles", "[0]", "/tiles/0", "from 1 to 2147483647"},
                     {"/tiles", "[2147483648]", "/tiles/0", "from 1 to 2147483647"},
                     {"/tiles", "[65536, 32768]", "/tiles", "more than 2147483647 tiles"},
                     {"/tiles", "[2147483647, 2147483647, 2147483647, 2147483647]", "/tiles", "more than 2147483647"},
                     {"/tiles", "[4.0]", "/tiles/0", "must be an integer"},
                     {"/operands", "[]", "/operands", "must be an object"},
                     {"/wait", "{}", "/wait", "must be an array"},
                     {"/signal", "\"scaled\"", "/signal", "must be an array"},
                 });
  check_cases(1, {{"", "[]", "", "must be an object"},
                  {"", "\"sum\"", "", "must be an object"},
                  {"/label", "7", "/label", "must be a string"}});
}

TEST_CASE("parameters are all there, known, and of their type") {
  check_cases(0, {
                     {"/parameters", "", "", "lacks the parameter \"columns\""},
                     {"/parameters", "[8]", "/parameters", "must be an object"},
                     {"/parameters/shift", "", "/parameters", "lacks the parameter \"shift\""},
                     {"/parameters/rows", "1", "/parameters", "opcode \"scale\" has no parameter \"rows\""},
                     {"/parameters/columns", "-1", "/parameters/columns", "from 0 to 4294967295"},
                     {"/parameters/columns", "4294967296", "/parameters/columns", "from 0 to 4294967295"},
                     {"/parameters/columns", "8.0", "/parameters/columns", "must be an integer"},
                     {"/parameters/columns", "\"8\"", "/parameters/columns", "must be an integer"},
                     {"/parameters/shift", "2147483648", "/parameters/shift", "from -2147483648 to 2147483647"},
                     {"/parameters/shift", "-2147483649", "/parameters/shift", "from -2147483648 to 2147483647"},
                     {"/parameters/factor", "1e39", "/parameters/factor", "does not fit in an f32"},
                     {"/parameters/factor", "true", "/parameters/factor", "must be a number"},
                 });
  check_cases(1, {{"/parameters", "{\"columns\": 8}", "/parameters", "opcode \"sum\" has no parameter \"columns\""}});
  PackageFixture fixture;
  fixture.record(0)["parameters"] = {{"columns", 4294967295u}, {"shift", -2147483647 - 1}, {"factor", -3}};
  const Record record = read_record(fixture, 0);
  CHECK(record.parameters[0] == UINT32_MAX);
  CHECK(record.parameters[1] == 0x80000000u);
  CHECK(std::bit_cast<float>(record.parameters[2]) == -3.0f);
}

TEST_CASE("operands are all there, known, and of a dtype and kind that the opcode takes") {
  check_cases(0, {
                     {"/operands/x", "", "/operands", "lacks the operand \"x\""},
                     {"/operands/y", "\"h\"", "/operands", "opcode \"scale\" has no operand \"y\""},
                     {"/operands/x", "\"g\"", "/operands/x", "tensor \"g\" does not exist"},
                     {"/operands/x", "{\"tensor\": \"g\"}", "/operands/x/tensor", "tensor \"g\" does not exist"},
                     {"/operands/x", "{}", "/operands/x", "lacks the member \"tensor\""},
                     {"/operands/x", "7", "/operands/x", "must be an object"},
                     {"/operands/x", "\"kept\"", "/operands/x", "tensor \"kept\" has dtype f16"},
                     {"/operands/out/tensor", "\"w\"", "/operands/out", "writes to the weight \"w\""},
                     {"/operands/bias", "{\"tensor\": \"h\", \"columns\": 1}", "/operands/bias", "unknown member"},
                 });
  check_cases(1, {{"/operands/rows/tensor", "\"h\"", "/operands/rows", "tensor \"h\" has dtype f32"}});
  PackageFixture fixture;
  fixture.edit("/isa/opcodes/1/operands/1/dtypes", "[\"f32\"]");
  fixture.edit("/entries/0/records/1/operands/rows/tensor", "\"w\"");
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/entries/0/records/1/operands/rows", "writes to the weight \"w\"");
}

TEST_CASE("slices have members in range, and ends that fit in 63 bits") {
  check_cases(1, {
                     {"/operands/x/size", "0", "/operands/x/size", "from 1 to"},
                     {"/operands/x/size", "-8", "/operands/x/size", "must be an integer"},
                     {"/operands/x/size", "9223372036854775808", "/operands/x/size", "must be an integer"},
                     {"/operands/x/size", "9223372036854775807", "/operands/x", "does not fit in 63 bits"},
                     {"/operands/x/offset", "9223372036854775807", "/operands/x", "does not fit in 63 bits"},
                     {"/operands/x/offset", "2305843009213693951", "/operands/x", "does not fit in 63 bits"},
                     {"/operands/x/offset", "-1", "/operands/x/offset", "must be an integer"},
                     {"/operands/x/rank_stride", "9223372036854775807", "/operands/x", "does not fit in 63 bits"},
                     {"/operands/x/strides", "[9223372036854775807]", "/operands/x", "does not fit in 63 bits"},
                     {"/operands/x/strides", "[8, 8]", "/operands/x/strides", "the grid's 1 dimensions"},
                     {"/operands/x/strides", "[]", "/operands/x/strides", "the grid's 1 dimensions"},
                     {"/operands/x/strides", "8", "/operands/x/strides", "must be an array"},
                     {"/operands/x/strides", "[-8]", "/operands/x/strides/0", "must be an integer"},
                     {"/operands/x/rows", "0", "/operands/x/rows", "from 1 to 4294967295"},
                     {"/operands/x/rows", "4294967296", "/operands/x/rows", "from 1 to 4294967295"},
                     {"/operands/x/rows", "2", "/operands/x", "no \"row_stride\""},
                     {"/operands/x/limit", "0", "/operands/x/limit", "from 1 to"},
                 });
  PackageFixture fixture;
  fixture.edit("/entries/0/records/1/operands/x/rows", "4294967295");
  fixture.edit("/entries/0/records/1/operands/x/row_stride", "4294967296");
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/entries/0/records/1/operands/x", "does not fit in 63 bits");
}

TEST_CASE("ranks exist, weights are the own rank's, and nothing reads from all") {
  check_cases(
      1, {
             {"/operands/x/rank", "2", "/operands/x/rank", "from 0 to 1"},
             {"/operands/x/rank", "-1", "/operands/x/rank", "from 0 to 1"},
             {"/operands/x/rank", "\"other\"", "/operands/x/rank", "\"other\" is not"},
             {"/operands/x/rank", "{\"offset\": 2}", "/operands/x/rank/offset", "from 0 to 1"},
             {"/operands/x/rank", "{}", "/operands/x/rank", "lacks the member \"offset\""},
             {"/operands/x/rank", "{\"offset\": 0, \"dimension\": 1}", "/operands/x/rank/dimension", "from 0 to 0"},
             {"/operands/x/rank", "{\"offset\": 0, \"step\": 1}", "/operands/x/rank", "unknown member \"step\""},
             {"/operands/x/rank", "[]", "/operands/x/rank", "must be an integer"},
             {"/operands/x/rank", "\"all\"", "/operands/x", "reads from \"all\" ranks"},
             {"/operands/rows/rank", "\"all\"", "/operands/rows", "reads from \"all\" ranks"},
         });
  check_cases(0, {{"/operands/weight/rank", "1", "/operands/weight", "another rank's weight \"w\""},
                  {"/operands/weight/rank", "\"all\"", "/operands/weight", "another rank's weight \"w\""},
                  {"/signal/0/rank", "2", "/signal/0/rank", "from 0 to 1"}});
}

TEST_CASE("malformed waits and signals are refused with their place") {
  check_cases(0, {
                     {"/wait/0", "\"gone\"", "/wait/0", "counter \"gone\" does not exist"},
                     {"/wait/0", "7", "/wait/0", "must be an object"},
                     {"/wait/0/counter", "\"gone\"", "/wait/0/counter", "counter \"gone\" does not exist"},
                     {"/wait/0/counter", "", "/wait/0", "lacks the member \"counter\""},
                     {"/wait/0/rank", "1", "/wait/0", "unknown member \"rank\""},
                     {"/wait/0/step", "1", "/wait/0/step", "from -1 to 0"},
                     {"/wait/0/step", "-2", "/wait/0/step", "from -1 to 0"},
                     {"/wait/0/value", "0", "/wait/0/value", "from 1 to 1073741824"},
                     {"/wait/0/value", "1073741825", "/wait/0/value", "from 1 to 1073741824"},
                     {"/wait/0/count", "0", "/wait/0/count", "from 1 to"},
                     {"/wait/0/count", "4294967297", "/wait/0/count", "from 1 to"},
                     {"/wait/0/offset", "1048577", "/wait/0/offset", "from 0 to 1048576"},
                     {"/wait/0/strides", "[1, 1]", "/wait/0/strides", "the grid's 1 dimensions"},
                     {"/wait/0/strides", "[4294967296]", "/wait/0/strides/0", "from 0 to 1048576"},
                     {"/wait/0/divide", "[0]", "/wait/0/divide/0", "from 1 to 4294967295"},
                     {"/signal/0/count", "1", "/signal/0", "unknown member \"count\""},
                     {"/signal/0/divide", "[4294967296]", "/signal/0/divide/0", "from 1 to 4294967295"},
                     {"/signal/0", "null", "/signal/0", "must be an object"},
                 });
  PackageFixture fixture;
  fixture.record(1)["wait"] = {"scaled", "scaled", "scaled", "scaled"};
  fixture.record(1)["signal"] = {"summed", "summed", "summed", "summed"};
  CHECK(read_record(fixture, 1).waits.size() == 4);
  fixture.record(1)["wait"].push_back("scaled");
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/entries/0/records/1/wait", "at most 4");
  fixture.record(1)["wait"].erase(4);
  fixture.record(1)["signal"].push_back("summed");
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/entries/0/records/1/signal", "at most 4");
}

TEST_CASE("a step has at most 2^32 - 1 tiles") {
  PackageFixture fixture;
  const auto big = [](uint32_t tiles) {
    return PackageFixture::Json{
        {"op", "sum"}, {"tiles", {tiles}}, {"operands", {{"x", "h"}, {"rows", "kept"}, {"out", "sums"}}}};
  };
  fixture.program["entries"][0]["records"] = {big(2147483647), big(2147483647), big(1)};
  CHECK(fixture.read().entries[0].tile_count == UINT32_MAX);
  fixture.program["entries"][0]["records"].push_back(big(1));
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/entries/0/records/3", "more than 4294967295 tiles");
}
