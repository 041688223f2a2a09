// The front end: what a Hugging Face model folder says about its architecture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mkrt::compile {

// Rotary embedding: element pair i of a head turns by position * frequency(i).
struct Rope {
  enum class Scaling : uint8_t { none, linear, llama3 };
  double theta = 10000;
  Scaling scaling = Scaling::none;
  double factor = 1;  // linear, llama3
  // llama3: wavelengths between original / high_factor and original / low_factor are blended.
  double low_factor = 1;
  double high_factor = 4;
  double original_positions = 8192;
};

// A decoder of the Llama kind. Everything is positive, heads is a multiple of kv_heads, head_size is even and at most
// 256.
struct ModelDescription {
  std::string model_type;
  std::string architecture;
  uint64_t hidden = 0;
  uint64_t feed_forward = 0;
  uint64_t layers = 0;
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_size = 0;
  uint64_t vocabulary = 0;
  uint64_t max_positions = 0;
  float epsilon = 0;
  Rope rope;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;    // of the attention's output projection
  bool per_head_norm = false;  // RMS norm of each query and key head
  std::vector<int64_t> bos_tokens;
  std::vector<int64_t> eos_tokens;
};

// Reads config.json, and the special tokens of generation_config.json where it is there. Throws base::Failure: FILE,
// FORMAT, or UNSUPPORTED with a sentence that names the field and its value.
ModelDescription read_model(const std::string& folder);

// head_size / 2 frequencies in radians a position.
std::vector<float> rope_frequencies(const ModelDescription& model);

}  // namespace mkrt::compile
