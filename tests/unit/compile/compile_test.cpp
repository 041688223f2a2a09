// Whole packages: what the compiler writes is read, checked, and measured against the model folder.
#include "compile/compile.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/failure.hpp"
#include "compile/model.hpp"
#include "compile/pack.hpp"
#include "compile/split.hpp"
#include "package/reader.hpp"
#include "random_model.hpp"
#include "reference_decoder.hpp"
#include "temporary_folder.hpp"
#include "verify/verify.hpp"

using namespace mkrt;
using test::TemporaryFolder;

namespace {

const std::string kNovelist = std::string(MKRT_TEST_DATA) + "/novelist";

struct Compiled {
  TemporaryFolder model, package;
  package::Program program;
};

// Compiles a random model of a named shape after `change` has had its way with the config.
std::unique_ptr<Compiled> compile_random(const char* shape, compile::Options options = {},
                                         const std::function<void(tools::RandomModel&)>& change = {}) {
  auto compiled = std::make_unique<Compiled>();
  tools::RandomModel model;
  model.config = tools::shape_config(shape);
  if (change) change(model);
  tools::write_random_model(model, compiled->model.path());
  options.model = compiled->model.path();
  options.output = compiled->package.path();
  compile::compile_model(options);
  compiled->program = package::read_package(options.output);
  return compiled;
}

const package::Tensor* find_tensor(const package::Program& program, const std::string& name) {
  const auto found = std::ranges::find(program.tensors, name, &package::Tensor::name);
  return found == program.tensors.end() ? nullptr : &*found;
}

std::string metadata(const package::Program& program, const std::string& key) {
  const auto found = std::ranges::find(program.metadata, key, &package::Metadata::key);
  return found == program.metadata.end() ? "(absent)" : found->value;
}

const package::Record& find_record(const package::Program& program, const std::string& label) {
  const auto found = std::ranges::find(program.entries[0].records, label, &package::Record::label);
  REQUIRE(found != program.entries[0].records.end());
  return *found;
}

// Element (row, column) of a packed matrix in the package, as isa/README.md gives its place.
double packed_element(const package::Program& program, const std::string& name, uint64_t row, uint64_t column,
                      uint32_t rank = 0) {
  const package::Tensor* tensor = find_tensor(program, name);
  REQUIRE(tensor);
  const uint64_t place = ((row / 8) * tensor->shape[1] + column / 32) * 256 + (row % 8) * 32 + column % 32;
  uint16_t bits = 0;
  std::memcpy(&bits, tensor->sources[rank].bytes.data() + place * 2, 2);
  return compile::widen_bf16(bits);
}

mkrt_status status_of(const compile::Options& options, std::string& sentence) {
  try {
    compile::compile_model(options);
  } catch (const base::Failure& failure) {
    sentence = failure.message();
    return failure.status();
  }
  return MKRT_OK;
}

}  // namespace

TEST_CASE("kernel images are copied into the package and listed; those that cannot be are refused before it is one") {
  const TemporaryFolder folder;
  std::ofstream(folder.path("mkrt_llm.sm_80.cubin")) << "eighty";
  std::ofstream(folder.path("other.cubin")) << "other";
  compile::Options options{kNovelist, folder.path("package")};
  options.images = {{"sm_80", folder.path("mkrt_llm.sm_80.cubin")}, {"sm_120", folder.path("other.cubin")}};
  compile::compile_model(options);
  const package::Program program = package::read_package(options.output);
  REQUIRE(program.images.size() == 2);
  CHECK(program.images[0].target == "sm_80");
  CHECK(program.images[0].file == "mkrt_llm.sm_80.cubin");
  CHECK(program.images[1].file == "other.cubin");
  std::string content;
  std::ifstream(folder.path("package/other.cubin")) >> content;
  CHECK(content == "other");

  std::string sentence;
  options.images[1].target = "sm_80";
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  options.images = {{"sm_80", folder.path("missing.cubin")}};
  CHECK(status_of(options, sentence) == MKRT_ERROR_FILE);
  CHECK(sentence.find("missing.cubin") != std::string::npos);
  CHECK(!std::filesystem::exists(folder.path("package/program.json")));
}

TEST_CASE("a real model becomes a package that reads back, passes every check and tells hosts what they need") {
  const TemporaryFolder folder;
  uint64_t done = 0, total = 0;
  compile::compile_model({kNovelist, folder.path("package")},
                         [&](uint64_t now, uint64_t all) { done = now, total = all; });
  CHECK(done == total);
  CHECK(total >= 6500000);
  package::Program program = package::read_package(folder.path("package"));
  CHECK_NOTHROW(verify::check(program));
  CHECK(program.entries.size() == 1);
  CHECK(program.entries[0].name == "decode");
  CHECK(metadata(program, "model_type") == "llama");
  CHECK(metadata(program, "architecture") == "LlamaForCausalLM");
  CHECK(metadata(program, "vocabulary") == "2048");
  CHECK(metadata(program, "context") == "1024");
  CHECK(metadata(program, "batch") == "1");
  CHECK(metadata(program, "bos_token") == "0");
  CHECK(metadata(program, "eos_tokens") == "1");
  CHECK(metadata(program, "tied_embeddings") == "true");
  CHECK(metadata(program, "parameters") == "3279104");
  CHECK(std::filesystem::exists(folder.path("package/tokenizer.json")));
  CHECK(std::filesystem::exists(folder.path("package/generation_config.json")));
}

TEST_CASE("the tensors that hosts use have the documented shapes and kinds") {
  compile::Options options;
  options.batch = 3, options.context = 40;
  const auto compiled = compile_random("tiny-qwen3", options);
  struct Expected {
    const char* name;
    package::Dtype dtype;
    std::vector<uint64_t> shape;
    uint32_t kind;
  };
  for (const Expected& expected : {Expected{"tokens", package::Dtype::i32, {3, 40}, MKRT_TENSOR_STATE},
                                   {"positions", package::Dtype::i32, {3}, MKRT_TENSOR_STATE},
                                   {"active", package::Dtype::i32, {3}, MKRT_TENSOR_STATE},
                                   {"prompt_length", package::Dtype::i32, {3}, MKRT_TENSOR_INPUT},
                                   {"stop_tokens", package::Dtype::i32, {8}, MKRT_TENSOR_INPUT},
                                   {"stop_count", package::Dtype::i32, {1}, MKRT_TENSOR_INPUT},
                                   {"logits", package::Dtype::f32, {3, 411}, MKRT_TENSOR_OUTPUT}}) {
    CAPTURE(expected.name);
    const package::Tensor* tensor = find_tensor(compiled->program, expected.name);
    REQUIRE(tensor);
    CHECK(tensor->dtype == expected.dtype);
    CHECK(tensor->shape == expected.shape);
    CHECK(tensor->kind == expected.kind);
  }
}

TEST_CASE("schedules of every family, batch, split and tile size pass every check") {
  for (const char* shape : {"tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"}) {
    for (const uint32_t batch : {1, 3, 16}) {
      for (const uint32_t splits : {0, 1, 5}) {
        for (const uint32_t tile_rows : {0, 48}) {
          CAPTURE(shape);
          CAPTURE(batch);
          CAPTURE(splits);
          CAPTURE(tile_rows);
          compile::Options options;
          options.batch = batch, options.splits = splits, options.tile_rows = tile_rows;
          const auto compiled = compile_random(shape, options);
          CHECK_NOTHROW(verify::check(compiled->program));
        }
      }
    }
  }
}

TEST_CASE("every matrix element of a package is the model's, rounded to bf16") {
  for (const auto dtype : {tools::StoredDtype::bf16, tools::StoredDtype::f16, tools::StoredDtype::f32}) {
    const auto compiled = compile_random("tiny-llama", {}, [&](tools::RandomModel& model) {
      model.dtype = dtype;
      model.shards = 3;
      model.config["attention_bias"] = true;
    });
    const reference::Weights weights(compiled->model.path());
    const auto compare = [&](const char* packed, const std::string& source, auto row_in_package) {
      const reference::Matrix& matrix = weights.get(source);
      size_t wrong = 0;
      for (uint64_t row = 0; row < matrix.rows; ++row) {
        for (uint64_t column = 0; column < matrix.columns; ++column) {
          const auto value = static_cast<float>(matrix.values[row * matrix.columns + column]);
          wrong += packed_element(compiled->program, packed, row_in_package(row), column) !=
                   compile::widen_bf16(compile::round_to_bf16(value));
        }
      }
      CAPTURE(source);
      CHECK(wrong == 0);
    };
    const auto same = [](uint64_t row) { return row; };
    compare("embedding", "model.embed_tokens.weight", same);
    compare("l1.qkv.weight", "model.layers.1.self_attn.q_proj.weight", same);
    compare("l1.qkv.weight", "model.layers.1.self_attn.k_proj.weight", [](uint64_t row) { return 104 + row; });
    compare("l1.qkv.weight", "model.layers.1.self_attn.v_proj.weight", [](uint64_t row) { return 156 + row; });
    compare("l2.o.weight", "model.layers.2.self_attn.o_proj.weight", same);
    compare("l0.gate_up.weight", "model.layers.0.mlp.gate_proj.weight",
            [](uint64_t row) { return row / 8 * 16 + row % 8; });
    compare("l0.gate_up.weight", "model.layers.0.mlp.up_proj.weight",
            [](uint64_t row) { return row / 8 * 16 + 8 + row % 8; });
    compare("l2.down.weight", "model.layers.2.mlp.down_proj.weight", same);
    const package::Tensor* bias = find_tensor(compiled->program, "l1.qkv.bias");
    REQUIRE(bias);
    CHECK(bias->shape == std::vector<uint64_t>{208});
    CHECK(find_tensor(compiled->program, "l1.o.bias"));
  }
}

namespace {

// Counts the elements of a rank's part of a matrix that are not the model's, or not zero where the part is filled up.
size_t wrong_elements(
    const package::Program& program, const std::string& name, uint32_t rank, const reference::Matrix& matrix,
    const compile::Share& rows, const compile::Share& columns,
    const std::function<uint64_t(uint64_t)>& place = [](uint64_t row) { return row; }) {
  size_t wrong = 0;
  for (uint64_t row = 0; row < rows.size; ++row) {
    for (uint64_t column = 0; column < columns.size; ++column) {
      double expected = 0;
      if (row < rows.count && column < columns.count) {
        expected = matrix.values[(rows.first + row) * matrix.columns + columns.first + column];
      }
      wrong += packed_element(program, name, place(row), column, rank) != expected;
    }
  }
  return wrong;
}

void set_heads(tools::RandomModel& model, uint32_t heads, uint32_t kv_heads) {
  model.config["num_attention_heads"] = heads;
  model.config["num_key_value_heads"] = kv_heads;
}

}  // namespace

TEST_CASE("each rank has its part of every matrix, filled up with zeros") {
  for (const uint32_t ranks : {2, 3, 5, 8}) {
    CAPTURE(ranks);
    compile::Options options;
    options.ranks = ranks;
    const auto compiled = compile_random("tiny-llama", options, [&](tools::RandomModel& model) {
      set_heads(model, 9, 3);
      model.config["attention_bias"] = true;
    });
    const package::Program& program = compiled->program;
    REQUIRE(program.rank_count == ranks);
    const compile::ModelDescription model = compile::read_model(compiled->model.path());
    const compile::Split split(model, ranks);
    const compile::Shares q = compile::scaled(split.query_head_shares(), model.head_size);
    const compile::Shares k = compile::scaled(split.kv_head_shares(), model.head_size);
    const compile::Share hidden = compile::whole(model.hidden);
    const reference::Weights weights(compiled->model.path());
    const auto source = [&](const char* name) -> const reference::Matrix& {
      return weights.get(std::string("model.") + name + ".weight");
    };
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      const auto wrong = [&](const char* packed, const char* name, const compile::Share& rows,
                             const compile::Share& columns, const std::function<uint64_t(uint64_t)>& place) {
        return wrong_elements(program, packed, rank, source(name), rows, columns, place);
      };
      const auto from = [](uint64_t first) { return [=](uint64_t row) { return first + row; }; };
      const auto turns = [](uint64_t first) { return [=](uint64_t row) { return row / 8 * 16 + first + row % 8; }; };
      const compile::Share feed_forward = split.feed_forward_shares()[rank];
      const uint64_t q_size = q[rank].size, k_size = k[rank].size;
      CHECK(wrong("l1.qkv.weight", "layers.1.self_attn.q_proj", q[rank], hidden, from(0)) == 0);
      CHECK(wrong("l1.qkv.weight", "layers.1.self_attn.k_proj", k[rank], hidden, from(q_size)) == 0);
      CHECK(wrong("l1.qkv.weight", "layers.1.self_attn.v_proj", k[rank], hidden, from(q_size + k_size)) == 0);
      CHECK(wrong("l2.o.weight", "layers.2.self_attn.o_proj", hidden, q[rank], from(0)) == 0);
      CHECK(wrong("l0.gate_up.weight", "layers.0.mlp.gate_proj", feed_forward, hidden, turns(0)) == 0);
      CHECK(wrong("l0.gate_up.weight", "layers.0.mlp.up_proj", feed_forward, hidden, turns(8)) == 0);
      CHECK(wrong("l2.down.weight", "layers.2.mlp.down_proj", hidden, feed_forward, from(0)) == 0);
      CHECK(wrong("embedding", "embed_tokens", compile::whole(517), split.embedding_shares()[rank], from(0)) == 0);
      CHECK(wrong("head.weight", "embed_tokens", split.vocabulary_shares(8)[rank], hidden, from(0)) == 0);
      CHECK(wrong("head.rest.weight", "embed_tokens", split.vocabulary_rest(8), hidden, from(0)) == 0);

      // The output's bias is added once.
      const package::Tensor* bias = find_tensor(program, "l1.o.bias");
      REQUIRE(bias);
      std::vector<float> values(model.hidden);
      REQUIRE(bias->sources[rank].bytes.size() == values.size() * sizeof(float));
      std::memcpy(values.data(), bias->sources[rank].bytes.data(), values.size() * sizeof(float));
      CHECK((std::ranges::count(values, 0.0f) == static_cast<ptrdiff_t>(values.size())) == (rank != 0));
    }
  }
}

TEST_CASE("schedules of every family on several ranks pass every check") {
  struct Division {
    uint32_t ranks, heads, kv_heads;
  };
  for (const char* shape : {"tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"}) {
    for (const Division& of : {Division{2, 4, 4}, {3, 10, 2}, {4, 4, 1}, {7, 35, 5}, {8, 32, 8}, {64, 70, 10}}) {
      for (const uint32_t batch : {1, 3, 16}) {
        CAPTURE(shape);
        CAPTURE(of.ranks);
        CAPTURE(batch);
        compile::Options options;
        options.batch = batch, options.ranks = of.ranks, options.splits = batch == 3 ? 2 : 0;
        const auto compiled = compile_random(shape, options, [&](tools::RandomModel& model) {
          set_heads(model, of.heads, of.kv_heads);
          model.config["head_dim"] = 10;
        });
        CHECK(compiled->program.rank_count == of.ranks);
        CHECK_NOTHROW(verify::check(compiled->program));
      }
    }
  }
}

TEST_CASE("a package of several ranks tells hosts the same as one of one rank, and has a weight file for each") {
  const TemporaryFolder folder;
  compile::Options options{kNovelist, folder.path("package")};
  compile::compile_model(options);
  const package::Program one = package::read_package(options.output);
  options.ranks = 4;
  uint64_t done = 0, total = 0;
  compile::compile_model(options, [&](uint64_t now, uint64_t all) {
    CHECK(now >= done);
    done = now, total = all;
  });
  CHECK(done == total);
  const package::Program four = package::read_package(options.output);
  for (const package::Metadata& metadata_of_one : one.metadata) {
    CHECK(metadata(four, metadata_of_one.key) == metadata_of_one.value);
  }
  for (const char* name : {"tokens", "positions", "active", "prompt_length", "stop_tokens", "stop_count", "logits"}) {
    REQUIRE(find_tensor(four, name));
    CHECK(find_tensor(four, name)->shape == find_tensor(one, name)->shape);
  }
  // Four query heads and two key-value heads: one of each a rank.
  CHECK(find_tensor(four, "l0.k_cache")->shape == std::vector<uint64_t>{1, 1, 1024, 64});
  CHECK(find_tensor(four, "l0.qkv.weight")->shape == std::vector<uint64_t>{3 * 64 / 8, 256 / 32, 8, 32});
  CHECK(find_tensor(four, "head.weight")->shape == std::vector<uint64_t>{2048 / 4 / 8, 256 / 32, 8, 32});
  CHECK(find_tensor(four, "head.rest.weight") == nullptr);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    CHECK(std::filesystem::exists(options.output + "/weights.rank" + std::to_string(rank) + ".safetensors"));
  }

  // What fewer ranks do not use does not stay.
  options.ranks = 2;
  compile::compile_model(options);
  CHECK(std::filesystem::exists(options.output + "/weights.rank1.safetensors"));
  CHECK_FALSE(std::filesystem::exists(options.output + "/weights.rank2.safetensors"));
  options.ranks = 1;
  compile::compile_model(options);
  CHECK_FALSE(std::filesystem::exists(options.output + "/weights.rank0.safetensors"));
  CHECK(package::read_package(options.output).rank_count == 1);
}

TEST_CASE("tied embeddings share one matrix, untied ones have a head of their own") {
  const auto tied = compile_random("tiny-llama"), untied = compile_random("tiny-mistral");
  const auto head_tensor = [](const Compiled& compiled) {
    const package::Record& head = find_record(compiled.program, "head");
    const auto& opcode = compiled.program.isa.opcodes[head.opcode];
    const auto weight = std::ranges::find(opcode.operands, "weight", &package::OperandDefinition::name);
    return compiled.program.tensors[head.operands[weight - opcode.operands.begin()]->tensor].name;
  };
  CHECK(head_tensor(*tied) == "embedding");
  CHECK(head_tensor(*untied) == "head.weight");
}

TEST_CASE("tile sizes and splits follow the options, and the shape where they are zero") {
  compile::Options options;
  options.splits = 3, options.tile_rows = 32;
  auto compiled = compile_random("tiny-qwen3", options);
  CHECK(find_record(compiled->program, "l0.attention").grid[2] == 3);
  CHECK(find_record(compiled->program, "l0.o").grid[0] == 3);  // 88 rows

  compiled = compile_random("tiny-qwen3");
  CHECK(find_record(compiled->program, "l0.o").grid[0] == 11);         // of 8 rows each
  CHECK(find_record(compiled->program, "l0.attention").grid[2] == 2);  // 128 positions, 64 each
}

TEST_CASE("tiles have as many rows as leave the busiest of 128 SMs the fewest") {
  const auto tiles = [](const char* option, uint64_t size, const char* record) {
    const auto compiled =
        compile_random("tiny-qwen3", {}, [&](tools::RandomModel& model) { model.config[option] = size; });
    return find_record(compiled->program, record).grid[0];
  };
  CHECK(tiles("vocab_size", 1000, "head") == 125);     // of 8
  CHECK(tiles("vocab_size", 2048, "head") == 128);     // of 16
  CHECK(tiles("vocab_size", 3072, "head") == 128);     // of 24: of 16 rows, half of the SMs had two
  CHECK(tiles("vocab_size", 3080, "head") == 97);      // of 32: of 24 rows, one SM had two
  CHECK(tiles("vocab_size", 8200, "head") == 342);     // of 24, three an SM
  CHECK(tiles("vocab_size", 128256, "head") == 4008);  // of 32: smaller ones save less than one row in 32
  // Tiles of 24 rows would do as well here, but have no block of up for the second one of gate.
  CHECK(tiles("intermediate_size", 1536, "l0.gate_up") == 96);  // of 32
}

TEST_CASE("options that do not fit the model are refused") {
  const TemporaryFolder folder;
  std::string sentence;
  compile::Options options{kNovelist, folder.path("package")};
  options.batch = 17;
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  options.batch = 0;
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  options.batch = 1, options.context = 1025;
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  CHECK(sentence.find("1024") != std::string::npos);
  options.context = 0, options.tile_rows = 24;
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  options.tile_rows = 0, options.context = 4, options.splits = 5;
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  options.context = 0, options.splits = 0, options.ranks = 0;
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  options.ranks = 65;
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  CHECK(sentence.find("64") != std::string::npos);
  options.ranks = 5;  // four query heads
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  CHECK(sentence.find("num_attention_heads is 4") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder.path("package")));
}

TEST_CASE("more layers times ranks than a program has counters for are refused before anything is written") {
  const TemporaryFolder folder;
  tools::RandomModel model;
  model.config = tools::shape_config("tiny-qwen3");
  set_heads(model, 64, 2);
  model.config["num_hidden_layers"] = 90;
  tools::write_random_model(model, folder.path("model"));
  compile::Options options{folder.path("model"), folder.path("package")};
  options.ranks = 64, options.splits = 2;
  std::string sentence;
  CHECK(status_of(options, sentence) == MKRT_ERROR_ARGUMENT);
  CHECK(sentence.find("num_hidden_layers 90") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder.path("package")));
  options.ranks = 58;
  REQUIRE(status_of(options, sentence) == MKRT_OK);
  package::Program program = package::read_package(options.output);
  CHECK_NOTHROW(verify::check(program));
}

TEST_CASE("the output may not be the model's folder") {
  const TemporaryFolder folder;
  std::filesystem::copy(kNovelist, folder.path("model"), std::filesystem::copy_options::recursive);
  std::string sentence;
  CHECK(status_of({folder.path("model"), folder.path("model") + "/."}, sentence) == MKRT_ERROR_ARGUMENT);
  CHECK(std::filesystem::exists(folder.path("model/tokenizer.json")));
}

TEST_CASE("packages of one model share weight files, and are what packing them again would give") {
  const TemporaryFolder folder;
  tools::RandomModel model;
  model.config = tools::shape_config("tiny-qwen2");
  tools::write_random_model(model, folder.path("model"));
  const auto content = [&](const std::string& name) {
    std::ifstream file(folder.path(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  for (const uint32_t ranks : {1u, 2u}) {
    compile::Options options{folder.path("model"), folder.path("first")};
    options.ranks = ranks;
    compile::compile_model(options);
    options.batch = 3;
    options.context = 77;
    options.output = folder.path("packed");
    compile::compile_model(options);
    options.output = folder.path("shared");
    options.weights_of = folder.path("first");
    compile::compile_model(options);
    compile::compile_model(options);  // over the one before

    CHECK(content("shared/program.json") == content("packed/program.json"));
    const package::Program program = package::read_package(options.output);
    CHECK(metadata(program, "batch") == "3");
    for (const std::string name : {"weights.safetensors", "weights.rank0.safetensors", "weights.rank1.safetensors"}) {
      REQUIRE(std::filesystem::exists(folder.path("shared/" + name)) ==
              std::filesystem::exists(folder.path("first/" + name)));
      if (!std::filesystem::exists(folder.path("first/" + name))) continue;
      CHECK(content("shared/" + name) == content("packed/" + name));
      CHECK(std::filesystem::equivalent(folder.path("shared/" + name), folder.path("first/" + name)));
    }
    std::filesystem::remove_all(folder.path("first"));
    std::string sentence;
    CHECK(status_of(options, sentence) == MKRT_ERROR_FILE);
    CHECK(sentence.find("weights") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(folder.path("shared/program.json")));
  }
}

TEST_CASE("a failed compilation leaves no package behind, not even an older one") {
  const TemporaryFolder folder;
  std::filesystem::copy(kNovelist, folder.path("model"), std::filesystem::copy_options::recursive);
  compile::Options options{folder.path("model"), folder.path("package")};
  std::string sentence;
  REQUIRE(status_of(options, sentence) == MKRT_OK);
  REQUIRE(std::filesystem::exists(folder.path("package/program.json")));

  struct Interruption {};
  CHECK_THROWS_AS(compile::compile_model(options, [](uint64_t, uint64_t) { throw Interruption(); }), Interruption);
  CHECK_FALSE(std::filesystem::exists(folder.path("package/program.json")));
  REQUIRE(status_of(options, sentence) == MKRT_OK);
  CHECK_NOTHROW(package::read_package(options.output));
}

TEST_CASE("weights that contradict the config are refused by the tensor's name") {
  const TemporaryFolder folder;
  std::string sentence;
  const auto status_with = [&](const char* field, const nlohmann::json& value) {
    tools::RandomModel model;
    model.config = tools::shape_config("tiny-qwen3");
    tools::write_random_model(model, folder.path("model"));
    model.config[field] = value;
    folder.write("model/config.json", model.config.dump());
    return status_of({folder.path("model"), folder.path("package")}, sentence);
  };
  const auto named = [&](const char* part) { return sentence.find(part) != std::string::npos; };
  CHECK(status_with("num_hidden_layers", 4) == MKRT_ERROR_FORMAT);
  CHECK(named("model.layers.3."));
  CHECK(status_with("num_hidden_layers", 2) == MKRT_ERROR_UNSUPPORTED);
  CHECK(named("model.layers.2."));
  CHECK(status_with("num_key_value_heads", 1) == MKRT_ERROR_FORMAT);
  CHECK(named("k_proj"));
  CHECK(status_with("vocab_size", 410) == MKRT_ERROR_FORMAT);
  CHECK(named("embed_tokens"));
  CHECK(status_with("attention_bias", true) == MKRT_ERROR_FORMAT);
  CHECK(named(".bias"));
  CHECK_FALSE(std::filesystem::exists(folder.path("package/program.json")));
}
