#include "compile/checkpoint.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/failure.hpp"
#include "random_model.hpp"
#include "temporary_folder.hpp"

using namespace mkrt::compile;
using mkrt::test::TemporaryFolder;

namespace {

struct Refusal {
  mkrt_status status = MKRT_OK;
  std::string sentence;
  bool names(const char* part) const { return sentence.find(part) != std::string::npos; }
};

template <class Function>
Refusal refusal(Function function) {
  try {
    function();
  } catch (const mkrt::base::Failure& failure) {
    return {failure.status(), failure.message()};
  }
  return {};
}

void write_model(const TemporaryFolder& folder, uint32_t shards,
                 mkrt::tools::StoredDtype dtype = mkrt::tools::StoredDtype::bf16) {
  mkrt::tools::RandomModel model;
  model.config = mkrt::tools::shape_config("tiny-qwen3");
  model.shards = shards;
  model.dtype = dtype;
  mkrt::tools::write_random_model(model, folder.path());
}

}  // namespace

TEST_CASE("one file and several with an index hold the same tensors") {
  const TemporaryFolder single, split;
  write_model(single, 1);
  write_model(split, 5);
  REQUIRE(std::filesystem::exists(split.path("model-3-of-5.safetensors")));
  Checkpoint one(single.path()), many(split.path());
  for (const char* name : {"model.layers.0.self_attn.q_proj.weight", "model.layers.2.self_attn.q_proj.weight"}) {
    const SourceTensor a = one.take(name, {136, 88}), b = many.take(name, {136, 88});
    REQUIRE(a.bytes.size() == 136 * 88 * 2);
    REQUIRE(b.bytes.size() == a.bytes.size());
    CHECK(std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0);
  }
}

TEST_CASE("a missing tensor and one of another shape are refused by name") {
  const TemporaryFolder folder;
  write_model(folder, 1);
  Checkpoint checkpoint(folder.path());
  Refusal refused = refusal([&] { checkpoint.take("model.layers.0.mlp.fc1.weight", {1}); });
  CHECK(refused.status == MKRT_ERROR_FORMAT);
  CHECK(refused.names("model.layers.0.mlp.fc1.weight"));
  refused = refusal([&] { checkpoint.take("model.norm.weight", {89}); });
  CHECK(refused.status == MKRT_ERROR_FORMAT);
  CHECK(refused.names("model.norm.weight"));
  CHECK(refused.names("[88]"));
  CHECK(refused.names("[89]"));
}

TEST_CASE("the source dtypes are F32, F16 and BF16; another is refused by name") {
  const TemporaryFolder half, full;
  write_model(half, 1, mkrt::tools::StoredDtype::f16);
  write_model(full, 1, mkrt::tools::StoredDtype::f32);
  CHECK(Checkpoint(half.path()).take("model.norm.weight", {88}).dtype == SourceDtype::f16);
  CHECK(Checkpoint(full.path()).take("model.norm.weight", {88}).dtype == SourceDtype::f32);

  const TemporaryFolder other;
  const std::string header = R"({"x": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  other.write("model.safetensors", file + header + std::string(8, '\0'));
  Checkpoint checkpoint(other.path());
  const Refusal refused = refusal([&] { checkpoint.take("x", {2}); });
  CHECK(refused.status == MKRT_ERROR_UNSUPPORTED);
  CHECK(refused.names("\"x\""));
  CHECK(refused.names("I32"));
}

TEST_CASE("weights that the architecture does not use are refused, except those that hold nothing of their own") {
  const TemporaryFolder folder;
  const std::string header = R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},)"
                             R"("lm_head.weight": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},)"
                             R"("model.layers.0.self_attn.rotary_emb.inv_freq":)"
                             R"( {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size() & 0xff);
  file[1] = static_cast<char>(header.size() >> 8);
  folder.write("model.safetensors", file + header + std::string(12, '\0'));
  Checkpoint checkpoint(folder.path());
  CHECK(refusal([&] { checkpoint.refuse_unused(true); }).names("\"a\""));
  checkpoint.take("a", {1});
  CHECK(refusal([&] { checkpoint.refuse_unused(true); }).status == MKRT_OK);
  const Refusal refused = refusal([&] { checkpoint.refuse_unused(false); });
  CHECK(refused.status == MKRT_ERROR_UNSUPPORTED);
  CHECK(refused.names("lm_head.weight"));
}

TEST_CASE("a folder without weights, and indices that are wrong, are refused") {
  const TemporaryFolder folder;
  const auto open = [&] { Checkpoint checkpoint(folder.path()); };
  const auto status_of_index = [&](const std::string& index) {
    folder.write("model.safetensors.index.json", index);
    return refusal(open).status;
  };
  const Refusal empty = refusal(open);
  CHECK(empty.status == MKRT_ERROR_FILE);
  CHECK(empty.names("model.safetensors"));
  CHECK(status_of_index("{") == MKRT_ERROR_FORMAT);
  CHECK(status_of_index("[]") == MKRT_ERROR_FORMAT);
  CHECK(status_of_index("{}") == MKRT_ERROR_FORMAT);
  CHECK(status_of_index(R"({"weight_map": {"a": 1}})") == MKRT_ERROR_FORMAT);
  CHECK(status_of_index(R"({"weight_map": {"a": "../a.safetensors"}})") == MKRT_ERROR_FORMAT);
  CHECK(status_of_index(R"({"weight_map": {"a": "missing.safetensors"}})") == MKRT_ERROR_FILE);

  const std::string header = R"({"b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  folder.write("part.safetensors", file + header + std::string(4, '\0'));
  CHECK(status_of_index(R"({"weight_map": {"a": "part.safetensors"}})") == MKRT_ERROR_FORMAT);
  CHECK(status_of_index(R"({"weight_map": {"b": "part.safetensors"}})") == MKRT_OK);
}
