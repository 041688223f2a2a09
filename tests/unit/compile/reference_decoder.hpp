// A slow decoder in plain float64, written from the formulas of the model papers: the oracle for everything that the
// compiler, the instruction set and the devices do together. It reads a Hugging Face folder on its own and shares no
// code with the project. Against the transformers library (5.17, float64) its logits differ by at most 1.1e-6 of their
// size on random models of all four families, scaled rotary embeddings and biases included.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

namespace mkrt::reference {

using Vector = std::vector<double>;

struct Matrix {
  size_t rows = 0;
  size_t columns = 0;
  Vector values;  // row after row
};

inline double decode_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) magnitude = fraction == 0 ? INFINITY : NAN;
  return bits >> 15 ? -magnitude : magnitude;
}

// Every tensor of a folder's weight files, by name.
class Weights {
 public:
  explicit Weights(const std::string& folder) {
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() == ".safetensors") read(file.path().string());
    }
  }

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  const Matrix& get(const std::string& name) const { return tensors_.at(name); }

 private:
  void read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(file)), {});
    uint64_t header_size = 0;
    std::memcpy(&header_size, all.data(), 8);
    const auto header = nlohmann::json::parse(all.substr(8, header_size));
    for (const auto& [name, tensor] : header.items()) {
      if (name == "__metadata__") continue;
      const uint64_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      decode(name, tensor, all.data() + 8 + header_size + begin, end - begin);
    }
  }

  void decode(const std::string& name, const nlohmann::json& tensor, const char* data, size_t bytes) {
    Matrix matrix;
    const auto& shape = tensor["shape"];
    matrix.rows = shape.size() == 2 ? shape[0].get<size_t>() : 1;
    matrix.columns = shape.back().get<size_t>();
    const std::string dtype = tensor["dtype"];
    const size_t size = dtype == "F32" ? 4 : 2;
    for (size_t at = 0; at < bytes; at += size) {
      uint32_t bits = 0;
      std::memcpy(&bits, data + at, size);
      if (dtype == "BF16") bits <<= 16;
      matrix.values.push_back(dtype == "F16" ? decode_f16(static_cast<uint16_t>(bits)) : std::bit_cast<float>(bits));
    }
    tensors_[name] = std::move(matrix);
  }

  std::map<std::string, Matrix> tensors_;
};

class Decoder {
 public:
  explicit Decoder(const std::string& folder) : weights_(folder) {
    std::ifstream file(folder + "/config.json");
    config_ = nlohmann::json::parse(file);
    hidden_ = config_["hidden_size"];
    layers_ = config_["num_hidden_layers"];
    heads_ = config_["num_attention_heads"];
    kv_heads_ = config_.value("num_key_value_heads", heads_);
    head_size_ = config_.value("head_dim", hidden_ / heads_);
    epsilon_ = config_["rms_norm_eps"];
    set_frequencies();
    keys_.resize(layers_);
    values_.resize(layers_);
  }

  size_t vocabulary() const { return weights_.get("model.embed_tokens.weight").rows; }

  // Forgets everything: the next token is at position 0.
  void reset() {
    position_ = 0;
    for (auto* cache : {&keys_, &values_}) {
      for (auto& layer : *cache) layer.clear();
    }
  }

  // The logits that follow `token` at the next position.
  Vector step(size_t token) {
    const Matrix& embedding = weights_.get("model.embed_tokens.weight");
    Vector h(embedding.values.begin() + static_cast<ptrdiff_t>(token * hidden_),
             embedding.values.begin() + static_cast<ptrdiff_t>((token + 1) * hidden_));
    for (size_t layer = 0; layer < layers_; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + ".";
      add(h, attention(layer, name + "self_attn.", norm(h, name + "input_layernorm.weight")));
      add(h, feed_forward(name + "mlp.", norm(h, name + "post_attention_layernorm.weight")));
    }
    ++position_;
    const bool tied = config_.value("tie_word_embeddings", false);
    return multiply(tied ? embedding : weights_.get("lm_head.weight"), norm(h, "model.norm.weight"));
  }

 private:
  void set_frequencies() {
    const bool new_style = config_.contains("rope_parameters");
    const auto settings = config_.value(new_style ? "rope_parameters" : "rope_scaling", nlohmann::json());
    const double theta = new_style ? settings["rope_theta"].get<double>() : config_["rope_theta"].get<double>();
    const std::string type = settings.is_object() ? settings.value("rope_type", "default") : "default";
    for (size_t i = 0; i < head_size_ / 2; ++i) {
      double frequency = 1 / std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(head_size_));
      if (type == "linear") frequency /= settings["factor"].get<double>();
      if (type == "llama3") frequency = llama3_frequency(frequency, settings);
      frequencies_.push_back(frequency);
    }
  }

  static double llama3_frequency(double frequency, const nlohmann::json& settings) {
    const double factor = settings["factor"], low = settings["low_freq_factor"], high = settings["high_freq_factor"];
    const double original = settings["original_max_position_embeddings"];
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < original / high) return frequency;
    if (wavelength > original / low) return frequency / factor;
    const double smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
  }

  static void add(Vector& x, const Vector& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  static Vector multiply(const Matrix& matrix, const Vector& x) {
    Vector y(matrix.rows);
    for (size_t row = 0; row < matrix.rows; ++row) {
      const double* values = matrix.values.data() + row * matrix.columns;
      for (size_t column = 0; column < matrix.columns; ++column) y[row] += values[column] * x[column];
    }
    return y;
  }

  Vector project(const std::string& name, const Vector& x) const {
    Vector y = multiply(weights_.get(name + ".weight"), x);
    if (weights_.has(name + ".bias")) add(y, weights_.get(name + ".bias").values);
    return y;
  }

  Vector norm(const Vector& x, const std::string& weight) const {
    double square = 0;
    for (const double value : x) square += value * value;
    const double scale = 1 / std::sqrt(square / static_cast<double>(x.size()) + epsilon_);
    Vector y = x;
    for (size_t i = 0; i < y.size(); ++i) y[i] *= scale * weights_.get(weight).values[i];
    return y;
  }

  // A head of `from`, normalized where the model has a norm for it, turned where it should be.
  Vector head_of(const Vector& from, size_t head, const std::string& norm_weight, bool turn) const {
    const auto begin = from.begin() + static_cast<ptrdiff_t>(head * head_size_);
    Vector x(begin, begin + static_cast<ptrdiff_t>(head_size_));
    if (weights_.has(norm_weight)) x = norm(x, norm_weight);
    if (!turn) return x;
    Vector y = x;
    const size_t half = head_size_ / 2;
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position_) * frequencies_[i];
      y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
      y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
    }
    return y;
  }

  Vector attention(size_t layer, const std::string& name, const Vector& x) {
    const Vector q = project(name + "q_proj", x), k = project(name + "k_proj", x), v = project(name + "v_proj", x);
    for (size_t head = 0; head < kv_heads_; ++head) {
      keys_[layer].push_back(head_of(k, head, name + "k_norm.weight", true));
      values_[layer].push_back(head_of(v, head, "", false));
    }
    Vector joined;
    for (size_t head = 0; head < heads_; ++head) {
      const Vector query = head_of(q, head, name + "q_norm.weight", true);
      const Vector out = attend(query, layer, head / (heads_ / kv_heads_));
      joined.insert(joined.end(), out.begin(), out.end());
    }
    return project(name + "o_proj", joined);
  }

  Vector attend(const Vector& query, size_t layer, size_t kv_head) const {
    Vector scores;
    for (size_t p = 0; p <= position_; ++p) {
      const Vector& key = keys_[layer][p * kv_heads_ + kv_head];
      double score = 0;
      for (size_t i = 0; i < head_size_; ++i) score += query[i] * key[i];
      scores.push_back(score / std::sqrt(static_cast<double>(head_size_)));
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    Vector out(head_size_);
    for (size_t p = 0; p <= position_; ++p) {
      const Vector& value = values_[layer][p * kv_heads_ + kv_head];
      for (size_t i = 0; i < head_size_; ++i) out[i] += scores[p] / sum * value[i];
    }
    return out;
  }

  Vector feed_forward(const std::string& name, const Vector& x) const {
    Vector gate = project(name + "gate_proj", x);
    const Vector up = project(name + "up_proj", x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    return project(name + "down_proj", gate);
  }

  Weights weights_;
  nlohmann::json config_;
  size_t hidden_ = 0, layers_ = 0, heads_ = 0, kv_heads_ = 0, head_size_ = 0;
  double epsilon_ = 0;
  Vector frequencies_;
  size_t position_ = 0;
  std::vector<std::vector<Vector>> keys_, values_;  // [layer][position * kv_heads + head]
};

}  // namespace mkrt::reference
