// Writes Hugging Face model folders with random weights, for tests and benchmarks that need a shape and no text.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mkrt::tools {

enum class StoredDtype : uint8_t { bf16, f16, f32 };

struct RandomModel {
  nlohmann::ordered_json config;  // config.json of a llama, mistral, qwen2 or qwen3 model, written as it is
  uint64_t seed = 1;
  double deviation = 0.02;  // of matrices; norms are 1 +- 0.1, biases 0 +- 0.1
  StoredDtype dtype = StoredDtype::bf16;
  uint32_t shards = 1;  // weight files; more than one get an index
};

// Names of the built-in shapes, and the config of one. Throws std::invalid_argument for another name.
std::vector<std::string> shape_names();
nlohmann::ordered_json shape_config(const std::string& name);

// Writes config.json and the weights into `folder`, which is created. The same description gives the same bytes
// everywhere. Throws std::runtime_error.
void write_random_model(const RandomModel& model, const std::string& folder);

}  // namespace mkrt::tools
