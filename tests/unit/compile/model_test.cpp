#include "compile/model.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/failure.hpp"
#include "temporary_folder.hpp"

using namespace mkrt::compile;
using mkrt::base::text;
using nlohmann::json;

namespace {

json llama() {
  return json::parse(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 172,
    "intermediate_size": 300, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 26, "hidden_act": "silu", "vocab_size": 517, "max_position_embeddings": 256, "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": true, "bos_token_id": 1,
    "eos_token_id": 2})");
}

json family(const char* model_type, const char* architecture) {
  json config = llama();
  config["model_type"] = model_type;
  config["architectures"] = {architecture};
  return config;
}

ModelDescription read(const json& config, const json& generation = {}) {
  const mkrt::test::TemporaryFolder folder;
  folder.write("config.json", config.dump());
  if (!generation.is_null()) folder.write("generation_config.json", generation.dump());
  return read_model(folder.path());
}

// The sentence of a refusal, which must have this status.
std::string refusal(mkrt_status status, const json& config, const json& generation = {}) {
  try {
    read(config, generation);
  } catch (const mkrt::base::Failure& failure) {
    CHECK(failure.status() == status);
    return failure.message();
  }
  FAIL("not refused: " << config.dump());
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("an old-style config is read") {
  const ModelDescription model = read(llama());
  CHECK(model.model_type == "llama");
  CHECK(model.hidden == 172);
  CHECK(model.feed_forward == 300);
  CHECK(model.layers == 3);
  CHECK(model.heads == 6);
  CHECK(model.kv_heads == 2);
  CHECK(model.head_size == 26);
  CHECK(model.vocabulary == 517);
  CHECK(model.max_positions == 256);
  CHECK(model.epsilon == 1e-5f);
  CHECK(model.rope.theta == 500000);
  CHECK(model.rope.scaling == Rope::Scaling::none);
  CHECK(model.tied_embeddings);
  CHECK_FALSE(model.qkv_bias);
  CHECK_FALSE(model.output_bias);
  CHECK_FALSE(model.per_head_norm);
  CHECK(model.bos_tokens == std::vector<int64_t>{1});
  CHECK(model.eos_tokens == std::vector<int64_t>{2});
}

TEST_CASE("a new-style config says the same") {
  json config = llama();
  config.erase("torch_dtype");
  config["dtype"] = "bfloat16";
  config["rope_parameters"] = {{"rope_type", "default"}, {"factor", nullptr}};
  CHECK(read(config).rope.theta == 500000);  // from beside the settings
  config.erase("rope_theta");
  config["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
  CHECK(read(config).rope.theta == 500000);

  config["rope_parameters"] = {{"rope_theta", 500000.0},  {"rope_type", "llama3"},
                               {"factor", 8.0},           {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const Rope rope = read(config).rope;
  CHECK(rope.scaling == Rope::Scaling::llama3);
  CHECK(rope.theta == 500000);
  CHECK(rope.factor == 8);
  CHECK(rope.low_factor == 1);
  CHECK(rope.high_factor == 4);
  CHECK(rope.original_positions == 8192);
}

TEST_CASE("fields that may be left out have the families' defaults") {
  json config = llama();
  for (const char* name : {"architectures", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps",
                           "rope_theta", "tie_word_embeddings", "bos_token_id", "eos_token_id"}) {
    config.erase(name);
  }
  config["num_attention_heads"] = 43;
  config["rope_scaling"] = nullptr;
  const ModelDescription model = read(config);
  CHECK(model.kv_heads == 43);
  CHECK(model.head_size == 4);
  CHECK(model.epsilon == 1e-6f);
  CHECK(model.rope.theta == 10000);
  CHECK_FALSE(model.tied_embeddings);
  CHECK(model.bos_tokens.empty());
  CHECK(model.eos_tokens.empty());
}

TEST_CASE("each family has its biases and norms") {
  json mistral = family("mistral", "MistralForCausalLM");
  mistral["sliding_window"] = nullptr;
  CHECK_FALSE(read(mistral).qkv_bias);

  json qwen2 = family("qwen2", "Qwen2ForCausalLM");
  qwen2["use_sliding_window"] = false;
  qwen2["sliding_window"] = 32768;
  CHECK(read(qwen2).qkv_bias);
  CHECK_FALSE(read(qwen2).output_bias);

  json qwen3 = family("qwen3", "Qwen3ForCausalLM");
  CHECK(read(qwen3).per_head_norm);
  CHECK_FALSE(read(qwen3).qkv_bias);
  qwen3["attention_bias"] = true;
  CHECK(read(qwen3).output_bias);

  json biased = llama();
  biased["attention_bias"] = true;
  CHECK(read(biased).qkv_bias);
  CHECK(read(biased).output_bias);
}

TEST_CASE("generation_config.json overrides the special tokens, and lists are allowed") {
  const ModelDescription model = read(llama(), {{"eos_token_id", {7, 8, 9}}});
  CHECK(model.bos_tokens == std::vector<int64_t>{1});
  CHECK(model.eos_tokens == std::vector<int64_t>{7, 8, 9});
}

TEST_CASE("what the instruction set cannot run is refused with the field and its value") {
  const auto refused = [](const char* name, const json& value, json config = llama()) {
    config[name] = value;
    const std::string sentence = refusal(MKRT_ERROR_UNSUPPORTED, config);
    INFO(sentence);
    CHECK(contains(sentence, name));
    CHECK(contains(sentence, value.dump().substr(0, 60)));
  };
  refused("model_type", "mixtral");
  refused("model_type", "qwen3_moe");
  refused("architectures", {"LlamaForSequenceClassification"});
  refused("architectures", {"MistralForCausalLM"});
  refused("hidden_act", "gelu_pytorch_tanh");
  refused("quantization_config", {{"quant_method", "gptq"}, {"bits", 4}});
  refused("mlp_bias", true);
  refused("partial_rotary_factor", 0.5);
  refused("head_dim", 258);
  refused("head_dim", 27);
  refused("num_hidden_layers", 5000);
  refused("sliding_window", 4096, family("mistral", "MistralForCausalLM"));
  refused("attention_bias", true, family("mistral", "MistralForCausalLM"));
  refused("use_sliding_window", true, family("qwen2", "Qwen2ForCausalLM"));
  refused("layer_types", {"full_attention", "sliding_attention", "full_attention"},
          family("qwen3", "Qwen3ForCausalLM"));
}

TEST_CASE("rotary scalings other than linear and llama3 are refused by their name, in either style") {
  for (const char* type : {"yarn", "dynamic", "longrope", "mrope"}) {
    json config = llama();
    config["rope_scaling"] = {{"type", type}, {"factor", 2.0}};
    std::string sentence = refusal(MKRT_ERROR_UNSUPPORTED, config);
    CHECK(contains(sentence, "/rope_scaling/type"));
    CHECK(contains(sentence, type));
    config.erase("rope_scaling");
    config["rope_parameters"] = {{"rope_type", type}, {"rope_theta", 500000.0}};
    sentence = refusal(MKRT_ERROR_UNSUPPORTED, config);
    CHECK(contains(sentence, "/rope_parameters/rope_type"));
    CHECK(contains(sentence, type));
  }
}

TEST_CASE("rotary settings that are not understood are refused by their name, in either style") {
  for (const std::string style : {"rope_parameters", "rope_scaling"}) {
    const auto refused = [&](const json& settings, const std::string& part) {
      json config = llama();
      config[style] = settings;
      const std::string sentence = refusal(MKRT_ERROR_UNSUPPORTED, config);
      INFO(sentence);
      CHECK(contains(sentence, "config.json: /" + style + part));
    };
    const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
    refused({{"full_attention", yarn}},
            "/full_attention is {\"factor\":4.0,\"rope_type\":\"yarn\"}: rotary settings for each");
    refused({{"rope_type", "default"}, {"sliding_attention", yarn}}, "/sliding_attention is ");
    refused({{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}},
            "/mrope_section is [16,24,24]: the rotary embedding of type default has no such setting");
    refused({{"rope_type", "default"}, {"factor", 2.0}}, "/factor is 2.0");
    refused({{"rope_type", "linear"}, {"factor", 2.0}, {"low_freq_factor", 1.0}}, "/low_freq_factor is 1.0");
    refused({{"rope_type", "linear"}, {"factor", 2.0}, {"a/b\n", 1}}, "/a~1b\\x0a is 1");
    refused({{"rope_type", "linear"}, {"type", "llama3"}, {"factor", 2.0}}, "/type is \"llama3\"");
    refused({{"rope_type", "default"}, {"rope_theta", 10000.0}}, "/rope_theta is 10000.0: /rope_theta is 500000.0");
  }
  json config = llama();
  config["rope_scaling"] = {{"rope_type", "linear"}, {"type", "linear"}, {"factor", 2.0}, {"rope_theta", 500000}};
  CHECK(read(config).rope.theta == 500000);
}

TEST_CASE("fields of other families are refused unless they change nothing") {
  for (const char* name :
       {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "logit_scale",
        "clip_qkv", "no_rope_layers", "attn_logit_softcapping", "final_logit_softcapping"}) {
    for (const json& value : {json(0.25), json(30), json({1, 0}), json("on"), json(true)}) {
      json config = llama();
      config[name] = value;
      CHECK(contains(refusal(MKRT_ERROR_UNSUPPORTED, config), text("config.json: /", name, " is ", value.dump())));
    }
    for (const json& value : {json(nullptr), json::array()}) {
      json config = llama();
      config[name] = value;
      CHECK_NOTHROW(read(config));
    }
  }
  json config = llama();
  for (const char* name : {"embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"}) {
    config[name] = 1.0;
  }
  for (const char* name : {"clip_qkv", "attn_logit_softcapping", "final_logit_softcapping"}) config[name] = 0;
  CHECK_NOTHROW(read(config));
  config["attention_multiplier"] = 1.0;  // scores would not be divided by the square root of the head size
  CHECK(contains(refusal(MKRT_ERROR_UNSUPPORTED, config), "/attention_multiplier is 1.0"));
}

TEST_CASE("malformed fields are refused with their place and what was expected") {
  const auto malformed = [](const char* name, const json& value) {
    json config = llama();
    config[name] = value;
    const std::string sentence = refusal(MKRT_ERROR_FORMAT, config);
    INFO(sentence);
    CHECK(contains(sentence, std::string("config.json: /") + name));
  };
  malformed("hidden_size", 0);
  malformed("hidden_size", -5);
  malformed("hidden_size", 1e6);
  malformed("hidden_size", "172");
  malformed("hidden_size", uint64_t{1} << 40);
  malformed("hidden_size", UINT64_MAX);
  malformed("vocab_size", nullptr);
  malformed("model_type", 3);
  malformed("num_key_value_heads", 4);
  // 1e300 is infinite as a float, 1e-60 zero.
  for (const double epsilon : {0.0, -1e-5, 1e300, 1e-60}) malformed("rms_norm_eps", epsilon);
  malformed("rope_theta", "large");
  malformed("tie_word_embeddings", 1);
  malformed("rope_scaling", 3);
  malformed("layer_types", "full_attention");
  malformed("eos_token_id", -1);
  malformed("eos_token_id", {1, "2"});

  json config = llama();
  config["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}};
  CHECK(contains(refusal(MKRT_ERROR_FORMAT, config), "/rope_scaling/low_freq_factor is missing"));
  json qwen3 = family("qwen3", "Qwen3ForCausalLM");
  qwen3.erase("head_dim");
  CHECK(contains(refusal(MKRT_ERROR_FORMAT, qwen3), "head_dim"));
}

TEST_CASE("a folder without a config and a config that is no JSON are told apart") {
  const mkrt::test::TemporaryFolder folder;
  const auto status = [&]() -> mkrt_status {
    try {
      read_model(folder.path());
    } catch (const mkrt::base::Failure& failure) {
      CHECK(contains(failure.message(), "config.json"));
      return failure.status();
    }
    return MKRT_OK;
  };
  CHECK(status() == MKRT_ERROR_FILE);
  folder.write("config.json", "{\"model_type\": ");
  CHECK(status() == MKRT_ERROR_FORMAT);
  folder.write("config.json", "[]");
  CHECK(status() == MKRT_ERROR_FORMAT);
}

TEST_CASE("an epsilon that JSON has no number for is refused by the field's name") {
  const mkrt::test::TemporaryFolder folder;
  for (const char* epsilon : {"NaN", "Infinity", "-Infinity", "1e999"}) {
    CAPTURE(epsilon);
    std::string config = llama().dump();
    const size_t at = config.find("\"rms_norm_eps\":") + 15;
    config.replace(at, config.find_first_of(",}", at) - at, epsilon);
    folder.write("config.json", config);
    std::string sentence;
    try {
      read_model(folder.path());
    } catch (const mkrt::base::Failure& failure) {
      CHECK(failure.status() == MKRT_ERROR_FORMAT);
      sentence = failure.message();
    }
    CHECK(contains(sentence, "(/rms_norm_eps)"));
    CHECK(!contains(sentence, "json.exception"));
  }
}

TEST_CASE("rotary frequencies follow each scaling's formula") {
  ModelDescription model;
  model.head_size = 64;
  model.rope.theta = 500000;
  const auto plain = [&](size_t i) { return std::pow(500000.0, -static_cast<double>(i) / 32); };

  std::vector<float> frequencies = rope_frequencies(model);
  REQUIRE(frequencies.size() == 32);
  for (size_t i = 0; i < 32; ++i) CHECK(frequencies[i] == doctest::Approx(plain(i)).epsilon(1e-6));

  model.rope.scaling = Rope::Scaling::linear;
  model.rope.factor = 4;
  frequencies = rope_frequencies(model);
  for (size_t i = 0; i < 32; ++i) CHECK(frequencies[i] == doctest::Approx(plain(i) / 4).epsilon(1e-6));

  // As the Llama 3.1 release states it, by wavelength.
  model.rope.scaling = Rope::Scaling::llama3;
  model.rope.factor = 8;
  model.rope.low_factor = 1;
  model.rope.high_factor = 4;
  model.rope.original_positions = 8192;
  frequencies = rope_frequencies(model);
  size_t blended = 0;
  for (size_t i = 0; i < 32; ++i) {
    const double wavelength = 2 * std::numbers::pi / plain(i);
    double expected = plain(i);
    if (wavelength > 8192) expected = plain(i) / 8;
    if (wavelength <= 8192 && wavelength >= 2048) {
      const double smooth = (8192 / wavelength - 1) / 3;
      expected = (1 - smooth) * plain(i) / 8 + smooth * plain(i);
      ++blended;
    }
    CHECK(frequencies[i] == doctest::Approx(expected).epsilon(1e-6));
  }
  CHECK(blended > 0);
}
