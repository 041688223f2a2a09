#include "package/safetensors.hpp"
#include "package_fixture.hpp"

using namespace mkrt::package;
using mkrt::test::safetensors_text;
using mkrt::test::TemporaryFolder;

namespace {

// A file of this header and data.
SafetensorsFile open(std::string_view header, size_t data_size = 0, size_t missing = 0) {
  static const TemporaryFolder folder;
  std::string text = safetensors_text(header, std::string(data_size, 'd'));
  text.resize(text.size() - missing);
  folder.write("model.safetensors", text);
  return SafetensorsFile(folder.file("model.safetensors"));
}

}  // namespace

TEST_CASE("tensors of a safetensors file are found by name") {
  const SafetensorsFile file = open(R"({"__metadata__":{"format":"pt"},
      "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
      "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
      "none":{"dtype":"I64","shape":[0,7],"data_offsets":[16,16]}}      )",
                                    16);
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors()[0].name == "a");
  CHECK(file.tensors()[1].name == "b");
  REQUIRE(file.find("b") != nullptr);
  CHECK(file.find("b")->dtype == "BF16");
  CHECK(file.find("b")->shape == std::vector<uint64_t>{2, 3});
  CHECK(file.find("b")->bytes.size() == 12);
  CHECK(file.find("b")->bytes.data() == file.find("a")->bytes.data() + 4);
  CHECK(file.find("none")->bytes.empty());
  CHECK(file.find("c") == nullptr);
  CHECK(file.find("") == nullptr);
}

TEST_CASE("a file without tensors is a safetensors file") { CHECK(open("{}").tensors().empty()); }

TEST_CASE("dtypes of packages have safetensors names of the same size") {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i32, Dtype::u32, Dtype::u8}) {
    CHECK(safetensors_dtype_size(safetensors_dtype(dtype)) == dtype_size(dtype));
  }
  CHECK(safetensors_dtype_size("f32") == 0);
}

TEST_CASE("files that are too short for their header are refused") {
  const TemporaryFolder folder;
  const std::string path = folder.file("x");
  for (const size_t size : {0, 1, 7}) {
    folder.write("x", std::string(size, '\0'));
    CHECK_FAILURE(SafetensorsFile(path), MKRT_ERROR_FORMAT, path, "too short");
  }
  folder.write("x", std::string(8, '\0'));
  CHECK_FAILURE(SafetensorsFile(path), MKRT_ERROR_FORMAT, path, "is not a JSON object");
  folder.write("x", std::string("\x03\0\0\0\0\0\0\0{}", 10));
  CHECK_FAILURE(SafetensorsFile(path), MKRT_ERROR_FORMAT, path, "ends inside its header of 3 bytes");
  folder.write("x", std::string(8, '\xff') + "{}");
  CHECK_FAILURE(SafetensorsFile(path), MKRT_ERROR_FORMAT, path, "larger than 100 MB");
  CHECK_FAILURE(SafetensorsFile(folder.file("missing")), MKRT_ERROR_FILE, "/missing", "cannot be opened");
}

TEST_CASE("malformed headers are refused with the tensor's name") {
  struct Case {
    const char* header;
    size_t data_size;
    const char* place;
    const char* reason;
  };
  const Case cases[] = {
      {"[]", 0, "model.safetensors: ", "is not a JSON object"},
      {" {}", 0, "model.safetensors: ", "is not a JSON object"},
      {"{", 0, "line 1", "is not JSON"},
      {"{}{}", 0, "line 1", "is not JSON"},
      {"{\"a\":1}", 0, "/a:", "must be an object"},
      {"{\"a\":{}}", 0, "/a:", "lacks the member \"dtype\""},
      {"{\"__metadata__\":1}", 0, "/__metadata__:", "must be an object"},
      {"{\"__metadata__\":{\"k\":1}}", 0, "/__metadata__/k:", "must be a string"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "/a/dtype:", "\"F31\" is not a dtype"},
      {R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})", 4, "/a/dtype:", "must be a string"},
      {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4, "/a/shape:", "must be an array"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "/a/shape/0:", "must be an integer"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4, "/a/shape:", "63 bits"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}})", 4, "/a/shape:", "63 bits"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "/a/data_offsets:", "at most 2"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "/a/data_offsets:", "do not lie in"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "/a/data_offsets:", "the file's 3 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 8, "/a/data_offsets:", "has 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4,
       "/a/data_offsets/1:", "integer"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4, "/a:", "unknown member \"more\""},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "the root:", "\"a\" twice"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "\"b\"", "overlaps"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "\"b\"", "leaves a gap"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "\"a\"", "leaves a gap"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2, "model.safetensors: ", "has 2 bytes of data"},
      {"{}", 1, "model.safetensors: ", "has 1 bytes of data"},
  };
  for (const Case& malformed : cases) {
    INFO(std::string(malformed.header));
    CHECK_FAILURE(open(malformed.header, malformed.data_size), MKRT_ERROR_FORMAT, malformed.place, malformed.reason);
  }
}

TEST_CASE("a tensor's name of ten million bytes makes a short message") {
  const std::string header = "{\"" + std::string(10'000'000, 'n') + "\":{\"dtype\":\"U8\"}}";
  CHECK_FAILURE(open(header), MKRT_ERROR_FORMAT, "/nnn", "lacks the member");
}
