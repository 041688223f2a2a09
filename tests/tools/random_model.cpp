#include "random_model.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <stdexcept>
#include <utility>

namespace mkrt::tools {
namespace {

using Json = nlohmann::ordered_json;

// Bytes that are made before they are written: large writes, and little memory.
constexpr uint64_t kPieceBytes = 4 << 20;

// --- shapes ----------------------------------------------------------------------------------------------------------

struct NamedShape {
  const char* name;
  const char* config;
};

// Sizes of published models, and small ragged ones of each family. Old-style fields: every transformers release reads
// them.
constexpr NamedShape kShapes[] = {
    {"llama-3.2-1b", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048,
      "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
      "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
      "rope_theta": 500000.0, "rope_scaling": {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "tie_word_embeddings": true,
      "bos_token_id": 128000, "eos_token_id": 128001})"},
    {"llama-3.1-8b", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
      "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
      "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "tie_word_embeddings": false,
      "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]})"},
    {"smollm-135m", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576,
      "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
      "vocab_size": 49152, "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": 0})"},
    {"qwen2.5-0.5b", R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896,
      "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
      "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "use_sliding_window": false, "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": 151643})"},
    {"qwen3-0.6b", R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024,
      "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
      "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "attention_bias": false, "use_sliding_window": false, "tie_word_embeddings": true,
      "bos_token_id": 151643, "eos_token_id": 151645})"},
    {"tiny-llama", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 172,
      "intermediate_size": 300, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 26, "vocab_size": 517, "max_position_embeddings": 256, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
      "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 32, "rope_type": "llama3"}, "tie_word_embeddings": true,
      "bos_token_id": 1, "eos_token_id": 2})"},
    {"tiny-mistral", R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": 96,
      "intermediate_size": 203, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 5,
      "head_dim": 48, "vocab_size": 251, "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
      "sliding_window": null, "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2})"},
    {"tiny-qwen2", R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 140,
      "intermediate_size": 221, "num_hidden_layers": 2, "num_attention_heads": 7, "num_key_value_heads": 1,
      "vocab_size": 333, "max_position_embeddings": 128, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "use_sliding_window": false, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2})"},
    {"tiny-qwen3", R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 88,
      "intermediate_size": 130, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 34, "vocab_size": 411, "max_position_embeddings": 128, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "attention_bias": false, "use_sliding_window": false, "tie_word_embeddings": false,
      "bos_token_id": 1, "eos_token_id": 2})"},
};

// What all of them share.
constexpr char kCommonFields[] = R"({"hidden_act": "silu", "torch_dtype": "bfloat16", "initializer_range": 0.02,
      "use_cache": true, "attention_dropout": 0.0})";

// --- random numbers --------------------------------------------------------------------------------------------------

// SplitMix64 (Steele, Lea and Flood 2014): one multiplication chain a number, and any seed is a good one.
class Generator {
 public:
  explicit Generator(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Quantiles of the normal distribution at (i + 1/2) / 65536: 16 random bits select a value, four values a number.
std::vector<double> normal_quantiles() {
  constexpr size_t count = 65536;
  std::vector<double> quantiles(count);
  double x = 0;
  for (size_t i = 0; i < count / 2; ++i) {
    // Newton's method on the upper half, started at the neighbour's result.
    const double wanted = 0.5 + (static_cast<double>(i) + 0.5) / count;
    for (int round = 0; round < 4; ++round) {
      const double reached = 1 - 0.5 * std::erfc(x / std::sqrt(2.0));
      x += (wanted - reached) / (std::exp(-x * x / 2) / std::sqrt(2 * M_PI));
    }
    quantiles[count / 2 + i] = x;
    quantiles[count / 2 - 1 - i] = -x;
  }
  return quantiles;
}

uint32_t encode(double value, StoredDtype dtype) {
  const auto single = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (dtype == StoredDtype::f32) return single;
  if (dtype == StoredDtype::bf16) return (single + 0x7fff + (single >> 16 & 1)) >> 16;
  // f16: 10 bits below the leading one, or below 2^-14 for subnormal numbers.
  const double magnitude = std::abs(value);
  const int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return (std::signbit(value) ? 0x8000u : 0u) | ((static_cast<uint32_t>(exponent + 14) << 10) + steps);
}

// --- tensors ---------------------------------------------------------------------------------------------------------

enum class Role { matrix, norm, bias };

struct RandomTensor {
  std::string name;
  std::vector<uint64_t> shape;
  Role role;

  uint64_t elements() const {
    uint64_t product = 1;
    for (const uint64_t size : shape) product *= size;
    return product;
  }
};

std::vector<RandomTensor> list_tensors(const Json& config) {
  const auto size = [&](const char* name) { return config.at(name).get<uint64_t>(); };
  const std::string type = config.at("model_type");
  const uint64_t hidden = size("hidden_size"), feed_forward = size("intermediate_size");
  const uint64_t heads = size("num_attention_heads"), kv_heads = size("num_key_value_heads");
  const uint64_t head = config.contains("head_dim") ? size("head_dim") : hidden / heads;
  const bool bias = config.value("attention_bias", false);

  std::vector<RandomTensor> tensors{{"model.embed_tokens.weight", {size("vocab_size"), hidden}, Role::matrix}};
  for (uint64_t i = 0; i < size("num_hidden_layers"); ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const auto add = [&](const std::string& name, std::vector<uint64_t> shape, Role role) {
      tensors.push_back({layer + name, std::move(shape), role});
    };
    add("input_layernorm.weight", {hidden}, Role::norm);
    for (const auto& [name, rows] :
         {std::pair{"q", heads * head}, std::pair{"k", kv_heads * head}, std::pair{"v", kv_heads * head}}) {
      const std::string projection = std::string("self_attn.") + name + "_proj.";
      add(projection + "weight", {rows, hidden}, Role::matrix);
      if (type == "qwen2" || bias) add(projection + "bias", {rows}, Role::bias);
    }
    if (type == "qwen3") {
      add("self_attn.q_norm.weight", {head}, Role::norm);
      add("self_attn.k_norm.weight", {head}, Role::norm);
    }
    add("self_attn.o_proj.weight", {hidden, heads * head}, Role::matrix);
    if (bias) add("self_attn.o_proj.bias", {hidden}, Role::bias);
    add("post_attention_layernorm.weight", {hidden}, Role::norm);
    add("mlp.gate_proj.weight", {feed_forward, hidden}, Role::matrix);
    add("mlp.up_proj.weight", {feed_forward, hidden}, Role::matrix);
    add("mlp.down_proj.weight", {hidden, feed_forward}, Role::matrix);
  }
  tensors.push_back({"model.norm.weight", {hidden}, Role::norm});
  if (!config.value("tie_word_embeddings", false)) {
    tensors.push_back({"lm_head.weight", {size("vocab_size"), hidden}, Role::matrix});
  }
  return tensors;
}

// --- files -----------------------------------------------------------------------------------------------------------

const char* dtype_name(StoredDtype dtype) {
  return dtype == StoredDtype::bf16 ? "BF16" : dtype == StoredDtype::f16 ? "F16" : "F32";
}

// Values of each role for 16 random bits, encoded.
template <class Element>
std::array<std::vector<Element>, 3> make_tables(const RandomModel& model) {
  std::array<std::vector<Element>, 3> tables;
  for (const double quantile : normal_quantiles()) {
    tables[0].push_back(static_cast<Element>(encode(model.deviation * quantile, model.dtype)));
    tables[1].push_back(static_cast<Element>(encode(1 + 0.1 * quantile, model.dtype)));
    tables[2].push_back(static_cast<Element>(encode(0.1 * quantile, model.dtype)));
  }
  return tables;
}

template <class Element>
void write_elements(const RandomTensor& tensor, uint64_t seed, const std::vector<Element>& table, std::ostream& file) {
  Generator generator(seed);
  std::vector<Element> piece(kPieceBytes / sizeof(Element));
  for (uint64_t left = tensor.elements(); left != 0;) {
    const uint64_t count = std::min<uint64_t>(left, piece.size());
    // Whole groups of four; the piece has room for the last one.
    for (uint64_t i = 0; i < count; i += 4) {
      uint64_t bits = generator.next();
      for (uint64_t j = 0; j < 4; ++j, bits >>= 16) piece[i + j] = table[bits & 0xffff];
    }
    file.write(reinterpret_cast<const char*>(piece.data()), static_cast<std::streamsize>(count * sizeof(Element)));
    left -= count;
  }
}

void write_header(const std::vector<RandomTensor>& tensors, StoredDtype dtype, std::ostream& file) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (const RandomTensor& tensor : tensors) {
    const uint64_t end = offset + tensor.elements() * (dtype == StoredDtype::f32 ? 4 : 2);
    header[tensor.name] = {{"dtype", dtype_name(dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  for (int byte = 0; byte < 8; ++byte) file.put(static_cast<char>(size >> (8 * byte)));
  file << text;
}

template <class Element>
void write_weights(const RandomModel& model, const std::string& folder) {
  const std::vector<RandomTensor> tensors = list_tensors(model.config);
  const std::array<std::vector<Element>, 3> tables = make_tables<Element>(model);
  const uint64_t shards = std::clamp<uint64_t>(model.shards, 1, tensors.size());
  Json map = Json::object();
  // Files are written at the same time: each tensor has a seed of its own.
  std::vector<std::future<void>> files;
  for (uint64_t shard = 0; shard < shards; ++shard) {
    const uint64_t first = tensors.size() * shard / shards, end = tensors.size() * (shard + 1) / shards;
    const std::string name =
        shards == 1 ? "model.safetensors"
                    : "model-" + std::to_string(shard + 1) + "-of-" + std::to_string(shards) + ".safetensors";
    for (uint64_t i = first; i < end; ++i) map[tensors[i].name] = name;
    files.push_back(std::async(std::launch::async, [&, first, end, path = folder + "/" + name] {
      std::ofstream file(path, std::ios::binary | std::ios::trunc);
      write_header({tensors.begin() + static_cast<ptrdiff_t>(first), tensors.begin() + static_cast<ptrdiff_t>(end)},
                   model.dtype, file);
      for (uint64_t i = first; i < end; ++i) {
        const uint64_t seed = Generator(model.seed + (i << 32)).next();
        write_elements(tensors[i], seed, tables[static_cast<size_t>(tensors[i].role)], file);
      }
      file.close();
      if (!file) throw std::runtime_error(path + " cannot be written");
    }));
  }
  for (std::future<void>& file : files) file.get();
  if (shards > 1) {
    std::ofstream index(folder + "/model.safetensors.index.json", std::ios::binary);
    index << Json{{"metadata", Json::object()}, {"weight_map", map}}.dump(1) << '\n';
  }
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

Json shape_config(const std::string& name) {
  for (const NamedShape& shape : kShapes) {
    if (name != shape.name) continue;
    Json config = Json::parse(shape.config);
    config.update(Json::parse(kCommonFields));
    return config;
  }
  throw std::invalid_argument("no shape is called " + name);
}

void write_random_model(const RandomModel& model, const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream config(folder + "/config.json", std::ios::binary);
  config << model.config.dump(2) << '\n';
  config.close();
  if (!config) throw std::runtime_error(folder + "/config.json cannot be written");
  if (model.dtype == StoredDtype::f32) {
    write_weights<uint32_t>(model, folder);
  } else {
    write_weights<uint16_t>(model, folder);
  }
}

}  // namespace mkrt::tools
