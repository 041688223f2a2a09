// What is written reads back as the same.
#include <cmath>
#include <cstring>
#include <random>

#include "package/isa.hpp"
#include "package/writer.hpp"
#include "package_fixture.hpp"

using namespace mkrt::package;
using mkrt::test::PackageFixture;
using mkrt::test::TemporaryFolder;

namespace {

// Gives every member of the format another value than its default at least once.
void use_everything(PackageFixture& fixture) {
  fixture.folder().write("a.cubin", "image");
  fixture.program["images"] = {{{"target", "sm_90a"}, {"file", "a.cubin"}}};
  fixture.program["metadata"]["quote \" and \\ and \n"] = "\xe2\x82\xac \t \x7f";
  fixture.record(0)["tiles"] = {2, 2};
  fixture.record(0)["operands"]["bias"] = {
      {"tensor", "h"},     {"offset", 1}, {"rank_stride", 2},
      {"size", 3},         {"rows", 4},   {"row_stride", 5},
      {"strides", {6, 7}}, {"limit", 8},  {"rank", {{"offset", 1}, {"dimension", 1}}}};
  fixture.record(0)["operands"]["x"] = {{"tensor", "input"}, {"row_stride", 3}, {"rank", 1}};
  fixture.record(0)["operands"]["weight"] = "w";
  fixture.record(0)["operands"]["out"] = {{"tensor", "h"}, {"rank", "all"}};
  fixture.record(0)["parameters"] = {{"columns", 4294967295u}, {"shift", -2147483647 - 1}, {"factor", 1.1754944e-38}};
  fixture.record(0)["wait"] = {{{"counter", "scaled"},
                                {"offset", 1},
                                {"count", 2},
                                {"strides", {1, 0}},
                                {"divide", {1, 2}},
                                {"value", 3},
                                {"step", -1}},
                               "summed"};
  fixture.record(0)["signal"] = {
      {{"counter", "scaled"}, {"offset", 2}, {"strides", {0, 1}}, {"divide", {2, 1}}, {"rank", {{"offset", 1}}}},
      {{"counter", "summed"}, {"rank", "all"}}};
  fixture.record(1)["label"] = "sum \"rows\"";
}

std::string written(const Program& program, const TemporaryFolder& folder) {
  write_program(program, {{"weights.safetensors"}, {"w.{rank}"}}, folder.file("program.json"));
  return folder.read("program.json");
}

bool same(const mkrt_rank_selector& a, const mkrt_rank_selector& b) {
  return a.mode == b.mode && a.dimension == b.dimension && a.offset == b.offset;
}

void check_same(const Operand& a, const Operand& b) {
  CHECK(a.tensor == b.tensor);
  CHECK(a.offset == b.offset);
  CHECK(a.rank_stride == b.rank_stride);
  CHECK(a.strides == b.strides);
  CHECK(a.size == b.size);
  CHECK(a.limit == b.limit);
  CHECK(a.rows == b.rows);
  CHECK(a.row_stride == b.row_stride);
  CHECK(same(a.rank, b.rank));
}

void check_same(const Record& a, const Record& b) {
  CHECK(a.opcode == b.opcode);
  CHECK(a.label == b.label);
  CHECK(a.grid == b.grid);
  CHECK(a.dimensions == b.dimensions);
  CHECK(a.parameters == b.parameters);
  REQUIRE(a.operands.size() == b.operands.size());
  for (size_t i = 0; i < a.operands.size(); ++i) {
    REQUIRE(a.operands[i].has_value() == b.operands[i].has_value());
    if (a.operands[i]) check_same(*a.operands[i], *b.operands[i]);
  }
  REQUIRE(a.waits.size() == b.waits.size());
  for (size_t i = 0; i < a.waits.size(); ++i) {
    CHECK(a.waits[i].counter == b.waits[i].counter);
    CHECK(a.waits[i].array == b.waits[i].array);
    CHECK(a.waits[i].count == b.waits[i].count);
    CHECK(a.waits[i].strides == b.waits[i].strides);
    CHECK(a.waits[i].divide == b.waits[i].divide);
    CHECK(a.waits[i].value == b.waits[i].value);
    CHECK(a.waits[i].step_offset == b.waits[i].step_offset);
  }
  REQUIRE(a.signals.size() == b.signals.size());
  for (size_t i = 0; i < a.signals.size(); ++i) {
    CHECK(a.signals[i].counter == b.signals[i].counter);
    CHECK(a.signals[i].array == b.signals[i].array);
    CHECK(a.signals[i].strides == b.signals[i].strides);
    CHECK(a.signals[i].divide == b.signals[i].divide);
    CHECK(same(a.signals[i].rank, b.signals[i].rank));
  }
}

}  // namespace

TEST_CASE("a program that is written and read is the same program") {
  PackageFixture fixture;
  use_everything(fixture);
  const Program before = fixture.read();
  const std::string text = written(before, fixture.folder());
  const Program after = read_package(fixture.folder().path());
  CHECK(after.rank_count == before.rank_count);
  CHECK(after.isa.fingerprint == before.isa.fingerprint);
  CHECK(after.isa.opcodes[1].operands[1].shared_dimensions == std::vector<uint32_t>{0, 2});
  REQUIRE(after.images.size() == 1);
  CHECK(after.images[0].target == "sm_90a");
  REQUIRE(after.metadata.size() == before.metadata.size());
  for (size_t i = 0; i < after.metadata.size(); ++i) {
    CHECK(after.metadata[i].key == before.metadata[i].key);
    CHECK(after.metadata[i].value == before.metadata[i].value);
  }
  REQUIRE(after.tensors.size() == before.tensors.size());
  for (size_t i = 0; i < after.tensors.size(); ++i) {
    CHECK(after.tensors[i].name == before.tensors[i].name);
    CHECK(after.tensors[i].dtype == before.tensors[i].dtype);
    CHECK(after.tensors[i].shape == before.tensors[i].shape);
    CHECK(after.tensors[i].kind == before.tensors[i].kind);
    CHECK(after.tensors[i].sources.size() == before.tensors[i].sources.size());
  }
  REQUIRE(after.entries.size() == 1);
  CHECK(after.entries[0].counter_count == 5);
  REQUIRE(after.entries[0].records.size() == 2);
  for (size_t i = 0; i < 2; ++i) check_same(after.entries[0].records[i], before.entries[0].records[i]);
  CHECK(written(after, fixture.folder()) == text);  // and nothing changes from then on
}

TEST_CASE("each record and tensor has a line of its own") {
  PackageFixture fixture;
  const std::string text = written(fixture.read(), fixture.folder());
  CHECK(text.find("\n   {\"label\": \"scale rows\", \"op\": \"scale\", \"tiles\": [4], ") != std::string::npos);
  CHECK(text.find("\"signal\": [{\"counter\": \"summed\"}]}\n") != std::string::npos);
  CHECK(text.find("\n {\"name\": \"kept\", \"dtype\": \"f16\", \"shape\": [32], \"kind\": \"state\"},\n") !=
        std::string::npos);
  CHECK(text.find("\"x\": {\"tensor\": \"h\", \"size\": 8, \"strides\": [8]}") != std::string::npos);
}

TEST_CASE("f32 parameters keep every bit") {
  std::mt19937 random(7);
  PackageFixture fixture;
  Program program = fixture.read();
  for (int i = 0; i < 200; ++i) {
    uint32_t bits = random();
    if (!std::isfinite(std::bit_cast<float>(bits))) bits &= 0x7effffff;
    CAPTURE(bits);
    program.entries[0].records[0].parameters[2] = bits;
    written(program, fixture.folder());
    REQUIRE(read_package(fixture.folder().path()).entries[0].records[0].parameters[2] == bits);
  }
}

TEST_CASE("the definition of mkrt.llm survives being written") {
  PackageFixture fixture;
  Program program = fixture.read();
  program.isa = read_isa(MKRT_SOURCE_DIR "/isa/mkrt.llm.json");
  program.entries[0].records = {Record{}};
  Record& record = program.entries[0].records[0];
  record.opcode = 6;
  REQUIRE(program.isa.opcodes[record.opcode].name == "choose");
  record.operands.resize(8);
  program.tensors = {Tensor{"v", Dtype::f32, {1}, 1, 4, MKRT_TENSOR_STATE, {}},
                     Tensor{"i", Dtype::i32, {1}, 1, 4, MKRT_TENSOR_STATE, {}}};
  for (uint32_t i = 0; i < 8; ++i) {
    record.operands[i].emplace();
    record.operands[i]->tensor = i > 0;
    record.operands[i]->size = record.operands[i]->limit = 1;
  }
  written(program, fixture.folder());
  CHECK(read_package(fixture.folder().path()).isa.fingerprint == program.isa.fingerprint);
}

TEST_CASE("a program that cannot be written leaves nothing behind") {
  PackageFixture fixture;
  const Program program = fixture.read();
  const std::string path = fixture.folder().file("missing/program.json");
  CHECK_FAILURE(write_program(program, {}, path), MKRT_ERROR_FILE, "missing/program.json", "cannot be created");
  std::filesystem::create_directory(fixture.folder().file("taken"));
  std::filesystem::create_directory(fixture.folder().file("taken/x"));
  CHECK_FAILURE(write_program(program, {}, fixture.folder().file("taken")), MKRT_ERROR_FILE, "/taken",
                "cannot be created");
  CHECK_FALSE(std::filesystem::exists(fixture.folder().file("taken.partial")));
}

TEST_CASE("a weight file is written in pieces, starts aligned and reports progress") {
  const TemporaryFolder folder;
  const std::string path = folder.file("w.safetensors");
  std::vector<std::byte> bytes(64 * 2 + 5 * 4);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  std::vector<uint64_t> progress;
  {
    SafetensorsWriter writer(path, {{"matrix", Dtype::bf16, {2, 32}}, {"odd \"name\"", Dtype::f32, {5}}},
                             [&](uint64_t done, uint64_t total) {
                               progress.push_back(done);
                               CHECK(total == bytes.size());
                             });
    CHECK(writer.remaining() == bytes.size());
    const std::span<const std::byte> all(bytes);
    writer.write(all.subspan(0, 100));
    writer.write(all.subspan(100));
    CHECK_FALSE(std::filesystem::exists(path));
    writer.finish();
  }
  CHECK(progress == std::vector<uint64_t>{100, bytes.size()});
  const SafetensorsFile file(path);
  const auto* matrix = file.find("matrix");
  const auto* odd = file.find("odd \"name\"");
  REQUIRE(matrix != nullptr);
  REQUIRE(odd != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(matrix->bytes.data()) % 64 == 0);
  CHECK(std::memcmp(matrix->bytes.data(), bytes.data(), 128) == 0);
  CHECK(std::memcmp(odd->bytes.data(), bytes.data() + 128, 20) == 0);
  CHECK(odd->shape == std::vector<uint64_t>{5});
}

TEST_CASE("an unfinished weight file is removed, and its size is kept to") {
  const TemporaryFolder folder;
  const std::string path = folder.file("w.safetensors");
  const std::vector<std::byte> bytes(9);
  {
    SafetensorsWriter writer(path, {{"a", Dtype::u8, {8}}});
    CHECK_FAILURE(writer.finish(), MKRT_ERROR_ARGUMENT, "lacks 8 bytes");
    CHECK_FAILURE(writer.write(bytes), MKRT_ERROR_ARGUMENT, "more bytes");
    writer.write(std::span(bytes).subspan(1));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK_FAILURE(SafetensorsWriter(folder.file("no/w"), {}), MKRT_ERROR_FILE, "/no/w", "cannot be created");
  CHECK_FAILURE(SafetensorsWriter(path, {{"a", Dtype::f32, {uint64_t{1} << 62}}}), MKRT_ERROR_ARGUMENT, "\"a\"");
}
