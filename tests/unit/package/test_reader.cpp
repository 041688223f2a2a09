// program.json around the records: members, files, tensors, counters.
#include <filesystem>

#include "package/isa.hpp"
#include "package_fixture.hpp"

using namespace mkrt::package;
using mkrt::test::PackageFixture;
using mkrt::test::safetensors_text;
using mkrt::test::TemporaryFolder;

namespace {

// One edit of a valid package and what must come of it.
struct Case {
  const char* pointer;
  const char* value;  // "" removes the member
  mkrt_status status;
  const char* place;
  const char* reason;
};

void check_cases(std::initializer_list<Case> cases) {
  for (const Case& malformed : cases) {
    INFO(mkrt::base::text(malformed.pointer, " = ", malformed.value));
    PackageFixture fixture;
    fixture.edit(malformed.pointer, malformed.value);
    CHECK_FAILURE(fixture.read(), malformed.status, "program.json: ", malformed.place, malformed.reason);
  }
}

}  // namespace

TEST_CASE("a package becomes a program with every name resolved") {
  const PackageFixture fixture;
  const Program program = fixture.read();
  CHECK(std::filesystem::equivalent(program.path, fixture.folder().path()));
  CHECK(program.rank_count == 2);
  CHECK(program.isa.name == "test.rows");
  CHECK(program.images.empty());
  REQUIRE(program.metadata.size() == 2);
  CHECK(program.metadata[0].key == "model");
  CHECK(program.metadata[0].value == "rows");
  CHECK(program.metadata[1].value.empty());
  REQUIRE(program.weight_files.size() == 1);
  REQUIRE(program.tensors.size() == 5);
  CHECK(program.tensors[3].name == "kept");
  CHECK(program.tensors[3].dtype == Dtype::f16);
  CHECK(program.tensors[3].kind == MKRT_TENSOR_STATE);
  CHECK(program.tensors[3].elements == 32);
  CHECK(program.tensors[3].size_bytes == 64);
  CHECK(program.tensors[3].sources.empty());
  REQUIRE(program.entries.size() == 1);
  CHECK(program.entries[0].name == "run");
  CHECK(program.entries[0].counter_count == 5);
  CHECK(program.entries[0].counters[1].first == 4);
  CHECK(program.entries[0].tile_count == 8);
  CHECK(program.entries[0].records[1].first_tile == 4);
}

TEST_CASE("each rank's weights are the bytes of its own source") {
  const Program program = PackageFixture().read();
  const Tensor& weight = program.tensors[0];
  CHECK(weight.shape == std::vector<uint64_t>{4, 8});
  REQUIRE(weight.sources.size() == 2);
  CHECK(weight.sources[0].bytes.size() == weight.size_bytes);
  CHECK(reinterpret_cast<const float*>(weight.sources[0].bytes.data())[9] == 9.0f / 8);
  CHECK(reinterpret_cast<const float*>(weight.sources[1].bytes.data())[9] == 41.0f / 8);
}

TEST_CASE("a package is named by its folder or by its program.json") {
  const PackageFixture fixture;
  fixture.write();
  CHECK(read_package(fixture.folder().path() + "/").tensors.size() == 5);
  const Program program = read_package(fixture.folder().file("program.json"));
  CHECK(program.tensors.size() == 5);
  CHECK(std::filesystem::equivalent(program.path, fixture.folder().path()));
}

TEST_CASE("a package stays readable after its files are gone") {
  Program program;
  {
    const PackageFixture fixture;
    program = fixture.read();
  }
  CHECK(reinterpret_cast<const float*>(program.tensors[0].sources[1].bytes.data())[0] == 4.0f);
}

TEST_CASE("a package that is not there is a file error") {
  const TemporaryFolder folder;
  CHECK_FAILURE(read_package(folder.path()), MKRT_ERROR_FILE, "/program.json", "cannot be opened");  // empty folder
  CHECK_FAILURE(read_package(folder.file("missing")), MKRT_ERROR_FILE, "/missing", "cannot be opened");
  CHECK_FAILURE(read_package(""), MKRT_ERROR_FILE, "cannot be opened");
  CHECK_FAILURE(read_package(std::string("a\0b", 3)), MKRT_ERROR_FILE, "cannot be opened");
  CHECK_FAILURE(read_package(std::string(1'000'000, 'p')), MKRT_ERROR_FILE, "ppp", "cannot be opened");
  std::filesystem::create_directory(folder.file("program.json"));
  CHECK_FAILURE(read_package(folder.path()), MKRT_ERROR_FILE, "/program.json", "cannot be read");
}

#ifndef _WIN32
TEST_CASE("links are followed, and a circle of them is a file error") {
  const PackageFixture fixture;
  fixture.write();
  std::filesystem::create_symlink(fixture.folder().path(), fixture.folder().file("link"));
  CHECK(read_package(fixture.folder().file("link")).tensors.size() == 5);
  std::filesystem::create_symlink("a", fixture.folder().file("b"));
  std::filesystem::create_symlink("b", fixture.folder().file("a"));
  CHECK_FAILURE(read_package(fixture.folder().file("a")), MKRT_ERROR_FILE, "/a", "cannot be opened");
  CHECK_FAILURE(read_package(fixture.folder().file("a") + "/program.json"), MKRT_ERROR_FILE, "cannot be opened");
}
#endif

TEST_CASE("program.json must be one object") {
  const PackageFixture fixture;
  CHECK_FAILURE(fixture.read_text(""), MKRT_ERROR_FORMAT, "program.json", "is not JSON");
  CHECK_FAILURE(fixture.read_text("[]"), MKRT_ERROR_FORMAT, "program.json: the root:", "must be an object");
  CHECK_FAILURE(fixture.read_text("3"), MKRT_ERROR_FORMAT, "the root:", "must be an object");
  CHECK_FAILURE(fixture.read_text("{}"), MKRT_ERROR_FORMAT, "the root:", "lacks the member \"format\"");
  CHECK_FAILURE(fixture.read_text(fixture.program.dump() + "{}"), MKRT_ERROR_FORMAT, "is not JSON");
}

TEST_CASE("members of the program are all there, in their order, once, and no others") {
  const char* names[] = {"format", "version", "ranks", "isa", "images", "metadata", "weights", "tensors", "entries"};
  for (const char* name : names) {
    INFO(std::string(name));
    PackageFixture fixture;
    fixture.program.erase(name);
    CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "the root:", '"' + std::string(name) + '"');
  }
  PackageFixture fixture;
  fixture.program["more"] = 1;
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "the root:", "unknown member \"more\"");
  CHECK_FAILURE(fixture.read_text(R"({"format": "mkrt.program", "ranks": 1, "version": 1})"), MKRT_ERROR_FORMAT,
                "the root:", "\"ranks\" where \"version\" must be");
  CHECK_FAILURE(fixture.read_text(R"({"format": "mkrt.program", "format": "mkrt.program"})"), MKRT_ERROR_FORMAT,
                "the root:", "\"format\" twice");
}

TEST_CASE("simple members of the program have their type and range") {
  check_cases({
      {"/format", "\"mkrt\"", MKRT_ERROR_FORMAT, "/format:", "must be \"mkrt.program\""},
      {"/format", "1", MKRT_ERROR_FORMAT, "/format:", "must be a string"},
      {"/format", "[]", MKRT_ERROR_FORMAT, "/format:", "must be a string"},
      {"/version", "2", MKRT_ERROR_UNSUPPORTED, "/version:", "version 2 is not supported"},
      {"/version", "0", MKRT_ERROR_UNSUPPORTED, "/version:", "version 0 is not supported"},
      {"/version", "\"1\"", MKRT_ERROR_FORMAT, "/version:", "must be an integer"},
      {"/version", "1.0", MKRT_ERROR_FORMAT, "/version:", "must be an integer"},
      {"/ranks", "0", MKRT_ERROR_FORMAT, "/ranks:", "from 1 to 64"},
      {"/ranks", "65", MKRT_ERROR_FORMAT, "/ranks:", "from 1 to 64"},
      {"/ranks", "-1", MKRT_ERROR_FORMAT, "/ranks:", "from 1 to 64"},
      {"/ranks", "18446744073709551617", MKRT_ERROR_FORMAT, "/ranks:", "from 1 to 64"},
      {"/ranks", "null", MKRT_ERROR_FORMAT, "/ranks:", "must be an integer"},
      {"/images", "{}", MKRT_ERROR_FORMAT, "/images:", "must be an array"},
      {"/weights", "\"weights.safetensors\"", MKRT_ERROR_FORMAT, "/weights:", "must be an array"},
      {"/tensors", "{}", MKRT_ERROR_FORMAT, "/tensors:", "must be an array"},
      {"/entries", "{}", MKRT_ERROR_FORMAT, "/entries:", "must be an array"},
      {"/entries", "[]", MKRT_ERROR_FORMAT, "/entries:", "must not be empty"},
      {"/metadata", "[]", MKRT_ERROR_FORMAT, "/metadata:", "must be an object"},
      {"/metadata/model", "1", MKRT_ERROR_FORMAT, "/metadata/model:", "must be a string"},
      {"/metadata/model", "\"a\\u0000\"", MKRT_ERROR_FORMAT, "/metadata/model:", "NUL"},
  });
}

TEST_CASE("metadata has keys of 1 to 256 bytes and values of up to 65536") {
  PackageFixture fixture;
  fixture.program["metadata"][std::string(256, 'k')] = std::string(65536, 'v');
  CHECK(fixture.read().metadata.size() == 3);
  fixture.program["metadata"]["model"] = std::string(65537, 'v');
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/metadata/model", "65537 bytes");
  fixture.program["metadata"] = {{"", "v"}};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/metadata", "1 to 256 bytes");
  fixture.program["metadata"] = {{std::string(257, 'k'), "v"}};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/metadata", "1 to 256 bytes");
  fixture.program["metadata"] = {{std::string("a\0b", 3), "v"}};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/metadata", "NUL");
}

TEST_CASE("images name files of the package, one for each target") {
  PackageFixture fixture;
  fixture.folder().write("a.cubin", "image");
  fixture.program["images"] = {{{"target", "sm_90a"}, {"file", "a.cubin"}},
                               {{"target", "sm_100a"}, {"file", "a.cubin"}}};
  const Program program = fixture.read();
  REQUIRE(program.images.size() == 2);
  CHECK(program.images[1].target == "sm_100a");
  CHECK(program.images[1].file == "a.cubin");
  fixture.program["images"][1]["target"] = "sm_90a";
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/images/1", "\"sm_90a\" is there twice");
  fixture.program["images"][1]["target"] = std::string(32, 't');
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/images/1/target", "at most 31");
  fixture.program["images"][1]["target"] = "";
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/images/1/target", "empty");
  fixture.program["images"][1] = {{"target", "t"}, {"file", "b.cubin"}};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FILE, "/images/1/file", "\"b.cubin\" does not exist");
  std::filesystem::create_directory(fixture.folder().file("b.cubin"));
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FILE, "/images/1/file", "does not exist");
  fixture.program["images"][1] = {{"target", "t"}};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/images/1", "lacks the member \"file\"");
  fixture.program["images"][1] = {{"target", "t"}, {"file", "a.cubin"}, {"arch", 1}};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/images/1", "unknown member \"arch\"");
  fixture.program["images"][1] = 1;
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/images/1", "must be an object");
}

TEST_CASE("file names cannot leave the package's folder") {
  for (const char* name : {"../weights.safetensors", "/etc/passwd", "a/../../b", "..", ".", "a//b", "a/", "./a",
                           "C:\\a", "c:a", "a\\b", "\\\\host\\a"}) {
    INFO(std::string(name));
    PackageFixture fixture;
    fixture.program["weights"][0] = name;
    CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/weights/0", "is not a path inside the package's folder");
    fixture.program["images"] = {{{"target", "t"}, {"file", name}}};
    CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/images/0/file", "is not a path inside the package's folder");
  }
}

TEST_CASE("weight files may lie in folders below the package's") {
  PackageFixture fixture;
  std::filesystem::create_directories(fixture.folder().file("a/b..c"));
  std::filesystem::rename(fixture.folder().file("weights.safetensors"), fixture.folder().file("a/b..c/.w"));
  fixture.program["weights"][0] = "a/b..c/.w";
  CHECK(fixture.read().weight_files.size() == 1);
}

TEST_CASE("weight files are there once and are safetensors files") {
  PackageFixture fixture;
  fixture.program["weights"] = {"weights.safetensors", "weights.safetensors"};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/weights/1", "is there twice");
  fixture.program["weights"] = {"missing.safetensors"};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FILE, "/missing.safetensors", "cannot be opened");
  fixture.program["weights"] = {1};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/weights/0", "must be a string");
  fixture.program["weights"] = {""};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/weights/0", "empty");
  fixture.program["weights"] = {std::string("a\0b", 3)};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/weights/0", "NUL");
  fixture.write();
  fixture.program["weights"] = {"program.json"};
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "program.json", "header");
}

TEST_CASE("tensors have a name, a dtype, a shape and a kind") {
  check_cases({
      {"/tensors/1", "1", MKRT_ERROR_FORMAT, "/tensors/1:", "must be an object"},
      {"/tensors/1/name", "", MKRT_ERROR_FORMAT, "/tensors/1:", "lacks the member \"name\""},
      {"/tensors/1/name", "\"\"", MKRT_ERROR_FORMAT, "/tensors/1/name:", "empty"},
      {"/tensors/1/name", "\"a\\u0000b\"", MKRT_ERROR_FORMAT, "/tensors/1/name:", "NUL"},
      {"/tensors/1/name", "\"w\"", MKRT_ERROR_FORMAT, "/tensors/1:", "tensor \"w\" is there twice"},
      {"/tensors/1/dtype", "\"f64\"", MKRT_ERROR_FORMAT, "/tensors/1/dtype:", "\"f64\" is not a dtype"},
      {"/tensors/1/dtype", "\"F32\"", MKRT_ERROR_FORMAT, "/tensors/1/dtype:", "\"F32\" is not a dtype"},
      {"/tensors/1/dtype", "1", MKRT_ERROR_FORMAT, "/tensors/1/dtype:", "must be a string"},
      {"/tensors/1/kind", "\"constant\"", MKRT_ERROR_FORMAT, "/tensors/1/kind:", "\"constant\" is not"},
      {"/tensors/1/kind", "", MKRT_ERROR_FORMAT, "/tensors/1:", "lacks the member \"kind\""},
      {"/tensors/1/shape", "[]", MKRT_ERROR_FORMAT, "/tensors/1/shape:", "at least 1"},
      {"/tensors/1/shape", "[1,1,1,1,1,1,1,1,1]", MKRT_ERROR_FORMAT, "/tensors/1/shape:", "at most 8"},
      {"/tensors/1/shape", "8", MKRT_ERROR_FORMAT, "/tensors/1/shape:", "must be an array"},
      {"/tensors/1/shape", "[4, 0]", MKRT_ERROR_FORMAT, "/tensors/1/shape/1:", "from 1"},
      {"/tensors/1/shape", "[4, -8]", MKRT_ERROR_FORMAT, "/tensors/1/shape/1:", "must be an integer"},
      {"/tensors/1/shape", "[4, 8.5]", MKRT_ERROR_FORMAT, "/tensors/1/shape/1:", "must be an integer"},
      {"/tensors/1/shape", "[9223372036854775808]", MKRT_ERROR_FORMAT, "/tensors/1/shape/0:", "must be an integer"},
      {"/tensors/1/shape", "[4294967296, 2147483648]", MKRT_ERROR_FORMAT, "/tensors/1/shape:", "63 bits of elements"},
      {"/tensors/1/shape", "[4611686018427387904]", MKRT_ERROR_FORMAT, "/tensors/1/shape:", "63 bits of bytes"},
      {"/tensors/1/shape", "[1152921504606846977]", MKRT_ERROR_FORMAT, "/tensors/1/shape:", "larger than 2^62"},
      {"/tensors/1/strides", "[8]", MKRT_ERROR_FORMAT, "/tensors/1:", "unknown member \"strides\""},
      {"/tensors/1/source", "\"w.0\"", MKRT_ERROR_FORMAT, "/tensors/1/source:", "only for weights"},
      {"/tensors/0/source", "", MKRT_ERROR_FORMAT, "/tensors/0:", "lacks the member \"source\""},
  });
}

TEST_CASE("all tensors of a rank together fit in memory that can be addressed") {
  PackageFixture fixture;
  for (int i = 0; i < 5; ++i) {
    fixture.program["tensors"].push_back(
        {{"name", "big" + std::to_string(i)}, {"dtype", "u8"}, {"shape", {uint64_t{1} << 60}}, {"kind", "state"}});
  }
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/tensors/8/shape", "larger than 2^62 bytes");
}

TEST_CASE("a weight's source is in exactly one file, with the declared dtype and shape") {
  check_cases({
      {"/tensors/0/source", "\"other\"", MKRT_ERROR_FORMAT,
       "/tensors/0/source:", "no weight file has a tensor \"other\""},
      {"/tensors/0/source", "\"w.{rank}{rank}\"", MKRT_ERROR_FORMAT, "/tensors/0/source:", "a tensor \"w.00\""},
      {"/tensors/0/source", "\"\"", MKRT_ERROR_FORMAT, "/tensors/0/source:", "empty"},
      {"/tensors/0/source", "[\"w.0\", \"w.1\"]", MKRT_ERROR_FORMAT, "/tensors/0/source:", "must be a string"},
      {"/tensors/0/shape", "[8, 4]", MKRT_ERROR_FORMAT, "/tensors/0/source:", "\"w.0\" has another shape"},
      {"/tensors/0/shape", "[32]", MKRT_ERROR_FORMAT, "/tensors/0/source:", "\"w.0\" has another shape"},
      {"/tensors/0/dtype", "\"i32\"", MKRT_ERROR_FORMAT, "/tensors/0/source:", "has dtype F32 in its file, not I32"},
      {"/ranks", "3", MKRT_ERROR_FORMAT, "/tensors/0/source:", "no weight file has a tensor \"w.2\""},
      {"/weights", "[]", MKRT_ERROR_FORMAT, "/tensors/0/source:", "no weight file has a tensor \"w.0\""},
  });
  PackageFixture fixture;
  fixture.folder().write("more.safetensors", fixture.folder().read("weights.safetensors"));
  fixture.program["weights"].push_back("more.safetensors");
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/tensors/0/source", "both", "weights.safetensors and",
                "more.safetensors have a tensor \"w.0\"");
}

TEST_CASE("ranks may share a source") {
  PackageFixture fixture;
  fixture.program["tensors"][0]["source"] = "w.1";
  const Program program = fixture.read();
  CHECK(program.tensors[0].sources[0].bytes.data() == program.tensors[0].sources[1].bytes.data());
}

TEST_CASE("a weight whose bytes are not aligned to its elements is refused") {
  PackageFixture fixture;
  fixture.folder().write("weights.safetensors",
                         safetensors_text(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                          R"("w":{"dtype":"F32","shape":[4,8],"data_offsets":[1,129]}})",
                                          std::string(129, 'x')));
  fixture.program["tensors"][0]["source"] = "w";
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/tensors/0/source", "multiple of its element size");
}

TEST_CASE("entries have a name, counters and records, in this order") {
  check_cases({
      {"/entries/0", "1", MKRT_ERROR_FORMAT, "/entries/0:", "must be an object"},
      {"/entries/0", "[]", MKRT_ERROR_FORMAT, "/entries/0:", "must be an object"},
      {"/entries/0", "{}", MKRT_ERROR_FORMAT, "/entries/0:", "lacks the member \"name\""},
      {"/entries/0", "{\"records\": []}", MKRT_ERROR_FORMAT, "/entries/0:", "\"records\" where \"name\" must be"},
      {"/entries/0/records", "", MKRT_ERROR_FORMAT, "/entries/0:", "lacks the member \"records\""},
      {"/entries/0/name", "\"\"", MKRT_ERROR_FORMAT, "/entries/0/name:", "empty"},
      {"/entries/0/name", "[]", MKRT_ERROR_FORMAT, "/entries/0/name:", "must be a string"},
      {"/entries/0/steps", "1", MKRT_ERROR_FORMAT, "/entries/0:", "unknown member \"steps\""},
      {"/entries/0/counters", "{}", MKRT_ERROR_FORMAT, "/entries/0/counters:", "must be an array"},
      {"/entries/0/records", "7", MKRT_ERROR_FORMAT, "/entries/0/records:", "must be an array"},
      {"/entries/0/records", "[]", MKRT_ERROR_FORMAT, "/entries/0/records:", "must not be empty"},
      {"/entries/0/counters/1", "\"c\"", MKRT_ERROR_FORMAT, "/entries/0/counters/1:", "must be an object"},
      {"/entries/0/counters/1/name", "\"scaled\"", MKRT_ERROR_FORMAT, "/entries/0/counters/1:", "is there twice"},
      {"/entries/0/counters/1/size", "0", MKRT_ERROR_FORMAT, "/entries/0/counters/1/size:", "from 1 to 1048576"},
      {"/entries/0/counters/1/size", "4294967297", MKRT_ERROR_FORMAT, "/entries/0/counters/1/size:", "from 1 to"},
      {"/entries/0/counters/1/size", "1048573", MKRT_ERROR_FORMAT,
       "/entries/0/counters/1:", "more than 1048576 counters"},
      {"/entries/0/counters/1/init", "0", MKRT_ERROR_FORMAT, "/entries/0/counters/1:", "unknown member"},
  });
  PackageFixture fixture;
  fixture.program["entries"].push_back(fixture.program["entries"][0]);
  CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/entries/1/name", "entry \"run\" is there twice");
  fixture.program["entries"][1]["name"] = "again";  // counters are an entry's own
  CHECK(fixture.read().entries[1].counter_count == 5);
  fixture.program["entries"][0]["counters"][1]["size"] = (1 << 20) - 4;
  CHECK(fixture.read().entries[0].counter_count == 1 << 20);
}

TEST_CASE("duplicate members are refused wherever they are") {
  const PackageFixture fixture;
  const std::string text = fixture.program.dump();
  struct Case {
    const char* before;
    const char* twice;
    const char* place;
  };
  for (const Case& duplicate : {Case{"\"version\":1,", "\"version\":1,", "the root:"},
                                Case{"\"access\":\"read\",", "\"access\":\"read\",", "/isa/opcodes/0/operands/0:"},
                                Case{"\"model\":\"rows\",", "\"model\":\"rows\",", "/metadata:"},
                                Case{"\"kind\":\"input\"", ",\"kind\":\"input\"", "/tensors/1:"},
                                Case{"\"op\":\"sum\",", "\"op\":\"sum\",", "/entries/0/records/1:"},
                                Case{"\"columns\":8,", "\"columns\":8,", "/entries/0/records/0/parameters:"},
                                Case{"\"step\":-1", ",\"step\":-1", "/entries/0/records/0/wait/0:"},
                                Case{"\"name\":\"run\",", "\"name\":\"run\",", "/entries/0:"}}) {
    INFO(std::string(duplicate.place));
    std::string edited = text;
    const size_t at = edited.find(duplicate.before);
    REQUIRE(at != std::string::npos);
    edited.insert(at + std::string_view(duplicate.before).size(), duplicate.twice);
    CHECK_FAILURE(fixture.read_text(edited), MKRT_ERROR_FORMAT, duplicate.place, "twice");
  }
}

TEST_CASE("names of 256 bytes are fine, of 257 or ten million bytes are not") {
  PackageFixture fixture;
  fixture.program["tensors"][4]["name"] = std::string(256, 'n');
  fixture.record(1)["operands"]["out"]["tensor"] = std::string(256, 'n');
  CHECK(fixture.read().tensors[4].name.size() == 256);
  for (const size_t size : {size_t{257}, size_t{10'000'000}}) {
    const std::string name(size, 'n');
    CAPTURE(size);
    const std::string bytes = std::to_string(size) + " bytes";
    PackageFixture tensor;
    tensor.program["tensors"][4]["name"] = name;
    CHECK_FAILURE(tensor.read(), MKRT_ERROR_FORMAT, "/tensors/4/name", bytes);
    PackageFixture record;
    record.record(0)["op"] = name;
    CHECK_FAILURE(record.read(), MKRT_ERROR_FORMAT, "/entries/0/records/0/op", bytes);
    record.record(0)["op"] = "scale";
    record.record(0)["label"] = name;
    CHECK_FAILURE(record.read(), MKRT_ERROR_FORMAT, "/entries/0/records/0", bytes);
    PackageFixture member;
    member.program[name] = 1;
    CHECK_FAILURE(member.read(), MKRT_ERROR_FORMAT, "the root", "unknown member \"nnn");
    PackageFixture operand;
    operand.record(0)["operands"][name] = "h";
    CHECK_FAILURE(operand.read(), MKRT_ERROR_FORMAT, "/entries/0/records/0/operands", "has no operand \"nnn");
  }
}
