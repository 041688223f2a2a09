#include "compile/model.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <numbers>
#include <optional>
#include <string_view>
#include <utility>

#include "base/failure.hpp"
#include "compile/json_file.hpp"

namespace mkrt::compile {
namespace {

using base::Failure;
using base::text;
using json = package::Json;

// Largest value of any size in a config. No model comes near it, and every product that lowering forms (the longest:
// batch * key-value heads * context * head size * bytes) stays below 2^63.
constexpr uint64_t kLargestSize = uint64_t{1} << 24;
// A schedule has six or seven records a layer and a tile for each head; far more than this would be a slip, not a
// model.
constexpr uint64_t kLargestLayers = 4096;
constexpr uint64_t kLargestHeads = 4096;
// The attention instruction's limit.
constexpr uint64_t kLargestHeadSize = 256;
// Values are shown in messages up to this length: the sentence has to fit into an mkrt_error.
constexpr size_t kShownBytes = 100;

// The start of a value as JSON, for a message.
std::string shown(const json& value) {
  std::string written = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (written.size() > kShownBytes) written = written.substr(0, kShownBytes) + "...";
  return written;
}

// An object of a config file with typed, checked access to its members. Every refusal names file, field and value.
class Fields {
 public:
  Fields(std::string file, std::string pointer, json object)
      : file_(std::move(file)), pointer_(std::move(pointer)), object_(std::move(object)) {}

  // The member, or nullptr where it is absent or null.
  const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void malformed(const char* name, const char* expected) const {
    const json* value = find(name);
    throw Failure(MKRT_ERROR_FORMAT,
                  text(where(name), value ? text(" is ", shown(*value)) : " is missing", "; expected ", expected));
  }

  [[noreturn]] void unsupported(const char* name, const std::string& reason) const {
    const json* value = find(name);
    throw Failure(MKRT_ERROR_UNSUPPORTED,
                  text(where(name), value ? text(" is ", shown(*value)) : " is missing", ": ", reason));
  }

  // Refuses members other than `known`, each by its name: what one changes cannot be told. Null says nothing.
  void expect_only(const std::vector<std::string_view>& known, const std::string& reason) const {
    for (const auto& [name, value] : object_.items()) {
      const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
      if (!is_known && !value.is_null()) unsupported(name.c_str(), reason);
    }
  }

  // Refuses objects inside this one, whatever their names.
  void expect_flat(const std::string& reason) const {
    for (const auto& [name, value] : object_.items()) {
      if (value.is_object()) unsupported(name.c_str(), reason);
    }
  }

  std::optional<uint64_t> size(const char* name) const {
    const json* value = find(name);
    if (!value) return std::nullopt;
    if (!value->is_number_integer() || value->get<int64_t>() < 1 || value->get<uint64_t>() > kLargestSize) {
      malformed(name, "an integer from 1 to 2^24");
    }
    return value->get<uint64_t>();
  }

  uint64_t required_size(const char* name) const {
    const std::optional<uint64_t> value = size(name);
    if (!value) malformed(name, "an integer from 1 to 2^24");
    return *value;
  }

  double positive(const char* name, std::optional<double> absent) const {
    const json* value = find(name);
    if (!value && absent) return *absent;
    if (!value || !value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
      malformed(name, "a positive number");
    }
    return value->get<double>();
  }

  // The same as a float, which must hold it: a positive number may be 0 or infinite there.
  float positive_float(const char* name, double absent) const {
    constexpr double largest = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::min();
    const double value = positive(name, absent);
    if (value > largest || value < least) malformed(name, "a positive number that 32 bits hold");
    return static_cast<float>(value);
  }

  bool flag(const char* name, bool absent) const {
    const json* value = find(name);
    if (!value) return absent;
    if (!value->is_boolean()) malformed(name, "true or false");
    return value->get<bool>();
  }

  std::string string(const char* name, const char* absent) const {
    const json* value = find(name);
    if (!value && absent) return absent;
    if (!value || !value->is_string()) malformed(name, "a string");
    return value->get<std::string>();
  }

  std::optional<Fields> object(const char* name) const {
    const json* value = find(name);
    if (!value) return std::nullopt;
    if (!value->is_object()) malformed(name, "an object");
    return Fields(file_, pointer_ + "/" + name, *value);
  }

  // A token number or a list of them; empty where the member is absent.
  std::vector<int64_t> tokens(const char* name) const {
    const json* value = find(name);
    if (!value) return {};
    const json list = value->is_array() ? *value : json::array({*value});
    std::vector<int64_t> numbers;
    for (const json& token : list) {
      if (!token.is_number_integer() || token.get<int64_t>() < 0 || token.get<uint64_t>() >= kLargestSize) {
        malformed(name, "a token number or a list of them");
      }
      numbers.push_back(token.get<int64_t>());
    }
    return numbers;
  }

 private:
  std::string where(const char* name) const {
    return text(file_, ": ", pointer_, package::json_pointer({{false, name, 0}}));
  }

  std::string file_;
  std::string pointer_;
  json object_;
};

Fields read_object(const std::string& path) {
  json parsed = read_json(path);
  if (!parsed.is_object()) throw Failure(MKRT_ERROR_FORMAT, text(base::shown_path(path), " does not hold an object"));
  return Fields(base::shown_path(path), "", std::move(parsed));
}

// What tells the families apart.
struct Family {
  const char* model_type;
  const char* architecture;
  bool qkv_bias;
  bool per_head_norm;
  bool attention_bias_field;  // whether `attention_bias` gives q, k, v and o a bias
};
constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", false, false, true},
    {"mistral", "MistralForCausalLM", false, false, false},
    {"qwen2", "Qwen2ForCausalLM", true, false, false},
    {"qwen3", "Qwen3ForCausalLM", false, true, true},
};

const Family& read_family(const Fields& config) {
  const std::string model_type = config.string("model_type", nullptr);
  const Family* family = nullptr;
  for (const Family& known : kFamilies) {
    if (model_type == known.model_type) family = &known;
  }
  if (!family) config.unsupported("model_type", "supported are llama, mistral, qwen2 and qwen3");
  if (const json* architectures = config.find("architectures")) {
    if (!architectures->is_array() || architectures->size() != 1 || (*architectures)[0] != family->architecture) {
      config.unsupported("architectures", text("a ", model_type, " model must be a ", family->architecture));
    }
  }
  return *family;
}

// Fields of other families' configs, which files of these families may carry as well. Each changes what a layer
// computes unless it has the neutral value or is null or an empty list.
struct ForeignField {
  const char* name;
  std::optional<double> neutral;
};
constexpr ForeignField kForeignFields[] = {
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"attention_multiplier", std::nullopt},  // stands in the place of 1 / sqrt(head size): 1 is not neutral
    {"logits_scaling", 1},
    {"logit_scale", 1},
    {"clip_qkv", 0},
    {"no_rope_layers", std::nullopt},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
};

void refuse_foreign_fields(const Fields& config) {
  for (const ForeignField& field : kForeignFields) {
    const json* value = config.find(field.name);
    if (!value || (value->is_array() && value->empty())) continue;
    if (field.neutral && value->is_number() && value->get<double>() == *field.neutral) continue;
    config.unsupported(field.name, "layers that it changes are not supported");
  }
}

void refuse_what_changes_the_arithmetic(const Fields& config, const Family& family) {
  if (config.find("quantization_config")) {
    config.unsupported("quantization_config", "weights must be stored as F32, F16 or BF16");
  }
  if (config.string("hidden_act", "silu") != "silu") config.unsupported("hidden_act", "only silu is supported");
  if (config.flag("mlp_bias", false)) config.unsupported("mlp_bias", "feed-forward biases are not supported");
  if (!family.attention_bias_field && !family.qkv_bias && config.flag("attention_bias", false)) {
    config.unsupported("attention_bias", text("a ", family.model_type, " model has no attention biases"));
  }
  if (const json* layer_types = config.find("layer_types")) {
    if (!layer_types->is_array()) config.malformed("layer_types", "a list of strings");
    for (const json& type : *layer_types) {
      if (type != "full_attention") config.unsupported("layer_types", "only full_attention is supported");
    }
  }
  // Qwen models carry a window that their flag turns off; elsewhere a window is in force where it is given.
  if (std::string_view(family.model_type).starts_with("qwen")) {
    if (config.flag("use_sliding_window", false)) {
      config.unsupported("use_sliding_window", "sliding-window attention is not supported");
    }
  } else if (config.find("sliding_window")) {
    config.unsupported("sliding_window", "sliding-window attention is not supported");
  }
}

// The kind of scaling that `settings` name. Without a name, the new style means the default and the old one nothing.
std::string read_rope_type(const Fields& settings, bool new_style) {
  // Newer files of models with several kinds of layers give each kind settings of its own.
  settings.expect_flat("rotary settings for each kind of layer are not supported");
  // Early files call the field `type`, and some have both.
  const char* name = settings.find("rope_type") || !settings.find("type") ? "rope_type" : "type";
  std::string type = settings.string(name, new_style ? "default" : nullptr);
  if (settings.string("type", type.c_str()) != type) settings.unsupported("type", "rope_type is another");
  if (type != "default" && type != "linear" && type != "llama3") {
    settings.unsupported(name, "supported are default, linear and llama3");
  }
  std::vector<std::string_view> known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  if (type != "default") known.emplace_back("factor");
  if (type == "llama3") {
    known.insert(known.end(), {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
  }
  settings.expect_only(known, text("the rotary embedding of type ", type, " has no such setting"));
  return type;
}

// The theta of `config`, or that of `settings`, which must be the same where both have one.
double read_theta(const Fields& config, const Fields& settings, double absent) {
  const double outer = config.positive("rope_theta", absent);
  const double theta = settings.positive("rope_theta", outer);
  if (config.find("rope_theta") && theta != outer) {
    settings.unsupported("rope_theta", text("/rope_theta is ", shown(*config.find("rope_theta"))));
  }
  return theta;
}

void expect_whole_heads(const Fields& fields) {
  if (fields.positive("partial_rotary_factor", 1.0) != 1.0) {
    fields.unsupported("partial_rotary_factor", "the rotary embedding must cover whole heads");
  }
}

// `rope_parameters`, or `rope_scaling` in older files, holds the settings; these have theta beside it.
Rope read_rope(const Fields& config) {
  Rope rope;
  const bool new_style = config.find("rope_parameters") != nullptr;
  const std::optional<Fields> settings = config.object(new_style ? "rope_parameters" : "rope_scaling");
  // Which of the two a model was trained with cannot be told.
  if (new_style && config.object("rope_scaling")) {
    config.unsupported("rope_scaling", "rope_parameters is there as well");
  }
  rope.theta = config.positive("rope_theta", rope.theta);
  expect_whole_heads(config);
  if (!settings) return rope;

  const std::string type = read_rope_type(*settings, new_style);
  rope.theta = read_theta(config, *settings, rope.theta);
  expect_whole_heads(*settings);
  if (type == "default") return rope;
  rope.factor = settings->positive("factor", std::nullopt);
  rope.scaling = Rope::Scaling::linear;
  if (type == "llama3") {
    rope.scaling = Rope::Scaling::llama3;
    rope.low_factor = settings->positive("low_freq_factor", std::nullopt);
    rope.high_factor = settings->positive("high_freq_factor", std::nullopt);
    rope.original_positions = settings->positive("original_max_position_embeddings", std::nullopt);
    if (rope.high_factor <= rope.low_factor) settings->malformed("high_freq_factor", "more than low_freq_factor");
  }
  return rope;
}

void read_heads(const Fields& config, const Family& family, ModelDescription& model) {
  model.heads = config.required_size("num_attention_heads");
  if (model.heads > kLargestHeads) config.unsupported("num_attention_heads", text("at most ", kLargestHeads));
  // Llama 1 and 2 files may leave it out; every query head then has its own key-value head.
  model.kv_heads = config.size("num_key_value_heads").value_or(model.heads);
  if (model.heads % model.kv_heads != 0) config.malformed("num_key_value_heads", "a divisor of num_attention_heads");
  if (const std::optional<uint64_t> head_size = config.size("head_dim")) {
    model.head_size = *head_size;
  } else if (family.per_head_norm) {
    config.malformed("head_dim", "an integer, which qwen3 does not derive from other fields");
  } else {
    if (model.hidden % model.heads != 0) config.malformed("num_attention_heads", "a divisor of hidden_size");
    model.head_size = model.hidden / model.heads;
  }
  if (model.head_size % 2 != 0 || model.head_size > kLargestHeadSize) {
    throw Failure(MKRT_ERROR_UNSUPPORTED,
                  text("the head size, ", model.head_size,
                       config.find("head_dim") ? " (head_dim)" : " (hidden_size / num_attention_heads)",
                       ", is not an even number up to ", kLargestHeadSize));
  }
}

// generation_config.json says what generation uses; config.json speaks where it is silent.
void read_special_tokens(const std::string& folder, const Fields& config, ModelDescription& model) {
  model.bos_tokens = config.tokens("bos_token_id");
  model.eos_tokens = config.tokens("eos_token_id");
  const std::string path = folder + "/generation_config.json";
  if (!std::filesystem::exists(path)) return;
  const Fields generation = read_object(path);
  if (generation.find("bos_token_id")) model.bos_tokens = generation.tokens("bos_token_id");
  if (generation.find("eos_token_id")) model.eos_tokens = generation.tokens("eos_token_id");
}

}  // namespace

ModelDescription read_model(const std::string& folder) {
  const Fields config = read_object(folder + "/config.json");
  const Family& family = read_family(config);
  refuse_what_changes_the_arithmetic(config, family);
  refuse_foreign_fields(config);

  ModelDescription model;
  model.model_type = family.model_type;
  model.architecture = family.architecture;
  model.hidden = config.required_size("hidden_size");
  model.feed_forward = config.required_size("intermediate_size");
  model.layers = config.required_size("num_hidden_layers");
  if (model.layers > kLargestLayers) config.unsupported("num_hidden_layers", text("at most ", kLargestLayers));
  model.vocabulary = config.required_size("vocab_size");
  model.max_positions = config.required_size("max_position_embeddings");
  model.epsilon = config.positive_float("rms_norm_eps", 1e-6);
  model.rope = read_rope(config);
  model.tied_embeddings = config.flag("tie_word_embeddings", false);
  model.output_bias = family.attention_bias_field && config.flag("attention_bias", false);
  model.qkv_bias = family.qkv_bias || model.output_bias;
  model.per_head_norm = family.per_head_norm;
  read_heads(config, family, model);
  read_special_tokens(folder, config, model);
  return model;
}

std::vector<float> rope_frequencies(const ModelDescription& model) {
  const Rope& rope = model.rope;
  std::vector<float> frequencies(model.head_size / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(model.head_size));
    if (rope.scaling == Rope::Scaling::linear) frequency /= rope.factor;
    if (rope.scaling == Rope::Scaling::llama3) {
      // Long waves are stretched by the factor, short ones are kept, those between are blended by their turns in the
      // original context.
      const double turns = rope.original_positions * frequency / (2 * std::numbers::pi);
      const double kept = std::clamp((turns - rope.low_factor) / (rope.high_factor - rope.low_factor), 0.0, 1.0);
      frequency = kept * frequency + (1 - kept) * frequency / rope.factor;
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace mkrt::compile
