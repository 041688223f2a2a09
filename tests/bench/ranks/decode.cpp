// Decoding of models of real shapes on several ranks, and what the edges between ranks cost.
//
// A package of a whole model is large, and what its weights are does not matter here: all layers share the bytes of the
// first one in the weight file, and every matrix holds the same random numbers over and over. On the device each has
// memory of its own.
#include <filesystem>
#include <random>
#include <span>

#include "compile/llm_isa.hpp"
#include "compile/lower.hpp"
#include "kernel_images.hpp"
#include "package/isa.hpp"
#include "package/json.hpp"
#include "package/writer.hpp"
#include "random_model.hpp"
#include "ranks.hpp"

namespace mkrt::bench {
namespace {

namespace fs = std::filesystem;

struct Shape {
  std::string name;
  ordered_json config;
};

// Layers that the 70B shape is measured with: 16 of 80, 31 GB with both token tables, fit any device that the shape is
// meant for and load in a second.
constexpr uint64_t layers_of_70b = 16;

std::vector<Shape> shapes(const Machine& machine) {
  if (machine.host()) return {{"tiny-llama", tools::shape_config("tiny-llama")}};
  const ordered_json small = tools::shape_config("llama-3.1-8b");
  ordered_json large = small;
  large.update({{"hidden_size", 8192},
                {"intermediate_size", 28672},
                {"num_hidden_layers", layers_of_70b},
                {"num_attention_heads", 64}});
  return {{"llama-3.1-8b", small}, {"llama-3.1-70b", large}};
}

package::IsaDefinition llm_isa() {
  package::JsonOrigin origin;
  origin.file = "mkrt.llm.json";
  const package::Json json = package::parse_json(compile::kLlmIsaJson, origin.file);
  return package::parse_isa(package::JsonView(json, origin));
}

// The name of the same tensor of the first layer: "rank1.l0.qkv.weight" for "rank1.l31.qkv.weight".
std::string of_first_layer(std::string name) {
  const size_t layer = name.starts_with("rank") ? name.find('.') + 1 : 0;
  const size_t end = name.find_first_not_of("0123456789", layer + 1);
  const bool has_layer = name[layer] == 'l' && end != std::string::npos && end > layer + 1 && name[end] == '.';
  return has_layer ? name.replace(layer, end - layer, "l0") : name;
}

// Random bf16 numbers of a usual size for matrices, and ones for norms.
class Filler {
 public:
  Filler() : matrix_(8 << 20), ones_(1 << 16, 1.0f) {
    std::mt19937 random(1);
    for (uint16_t& bits : matrix_) {
      // Magnitudes from 2^-13 to 2^-5.
      const uint32_t word = random();
      bits = static_cast<uint16_t>((word & 0x807f) | ((word >> 20 & 7) + 114) << 7);
    }
  }
  void write(package::SafetensorsWriter& out, const compile::Weight& weight) const {
    const std::span<const float> values = weight.layout == compile::Weight::Layout::values ? weight.values : ones_;
    const std::span<const std::byte> bytes =
        weight.is_matrix() ? std::as_bytes(std::span(matrix_)) : std::as_bytes(values);
    for (uint64_t left = weight.size_bytes(); left != 0;) {
      const uint64_t piece = std::min<uint64_t>(left, bytes.size());
      out.write(bytes.first(piece));
      left -= piece;
    }
  }

 private:
  std::vector<uint16_t> matrix_;
  std::vector<float> ones_;
};

constexpr const char* weight_file = "weights.safetensors";

void write_weights(const compile::Plan& plan, const std::string& path) {
  std::vector<package::SafetensorsWriter::TensorSpec> specs;
  std::vector<const compile::Weight*> weights;
  for (const compile::Weight& weight : plan.weights) {
    if (of_first_layer(weight.name) != weight.name) continue;
    specs.push_back({weight.name, weight.dtype(), weight.shape()});
    weights.push_back(&weight);
  }
  package::SafetensorsWriter out(path, specs);
  const Filler filler;
  for (const compile::Weight* weight : weights) filler.write(out, *weight);
  out.finish();
}

// Each rank's results and signals stay at home. What other ranks would have written is then never written, and the sums
// are wrong, but every record does the same work.
void keep_local(package::Program& program) {
  const mkrt_rank_selector self{MKRT_RANK_SELF, 0xff, 0};
  for (package::Record& record : program.entries.front().records) {
    for (std::optional<package::Operand>& operand : record.operands) {
      if (operand) operand->rank = self;
    }
    for (package::Signal& signal : record.signals) signal.rank = self;
  }
}

// A package of a shape for so many ranks, and beside it the same one with local edges.
class ShapePackage {
 public:
  ShapePackage(const Machine& machine, const Shape& shape, uint32_t ranks) {
    folder_.write("config.json", shape.config.dump());
    compile::Choices choices;
    choices.context = context(machine);
    choices.ranks = ranks;
    compile::Plan plan = compile::lower(compile::read_model(folder_.path()), choices, llm_isa());
    for (std::string& source : plan.sources) source = of_first_layer(source);
    for (const char* name : {"across", "local"}) fs::create_directories(path(name));
    write_weights(plan, path("across") + "/" + weight_file);
    fs::create_symlink(path("across") + "/" + weight_file, path("local") + "/" + weight_file);
    for (const compile::ImageFile& image : mkrt::test::kernel_images()) {
      if (machine.host()) break;
      const std::string file = fs::path(image.path).filename().string();
      plan.program.images.push_back({image.target, file});
      for (const char* name : {"across", "local"}) fs::copy_file(image.path, path(name) + "/" + file);
    }
    const package::ProgramFiles files{{weight_file}, plan.sources};
    package::write_program(plan.program, files, path("across") + "/program.json");
    keep_local(plan.program);
    package::write_program(plan.program, files, path("local") + "/program.json");
  }

  static uint32_t context(const Machine& machine) { return machine.host() ? 64 : 512; }
  std::string path(const char* name) const { return folder_.path(name); }

 private:
  TemporaryFolder folder_;
};

// Bytes of weights that a rank's step reads: all but the token table, of which it is a row, unless the head is the same
// table.
uint64_t step_bytes(const mkrt::Program& program, bool head_is_table) {
  uint64_t bytes = program.info().weight_bytes;
  const uint32_t records = program.entry_info(0).record_count;
  for (uint32_t record = 0; record < records && !head_is_table; ++record) {
    const mkrt::RecordInfo info = program.record_info(0, record);
    if (info.opcode == "embed") bytes -= info.bytes_read;
  }
  return bytes;
}

ordered_json time_decoding(const Machine& machine, const std::string& package, uint32_t ranks, bool tied) {
  Runner runner(machine, package, ranks);
  const uint32_t context = ShapePackage::context(machine);
  const auto set = [&](const char* tensor, int32_t value) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      runner.session().write_value<int32_t>(runner.program().find_tensor(tensor), value, 0, rank);
    }
  };
  set("prompt_length", static_cast<int32_t>(context));  // every token is given: choices are thrown away
  const uint32_t steps = machine.host() ? 8 : 64;
  std::vector<double> milliseconds;
  mkrt::ExecuteOptions options;
  options.step_count = steps;
  options.queue_mode = machine.queue_mode();
  for (int sample = -1; sample < 5; ++sample) {
    set("positions", machine.host() ? 16 : 128 - static_cast<int32_t>(steps) / 2);
    set("active", 1);
    const Clock::time_point begin = Clock::now();
    runner.session().wait(runner.session().execute(options));
    if (sample >= 0) milliseconds.push_back(seconds_since(begin) * 1e3 / steps);
  }
  const uint64_t bytes = step_bytes(runner.program(), tied && ranks == 1);
  return {{"ms_per_token", summary(milliseconds)},
          {"weight_bytes_of_a_rank", bytes},
          {"gigabytes_per_second_of_a_rank", static_cast<double>(bytes) / percentile(milliseconds, 0.5) / 1e6}};
}

}  // namespace

void add_images(const Machine& machine, tools::MoveSchedule& schedule) {
  if (machine.host()) return;
  for (const compile::ImageFile& image : mkrt::test::kernel_images()) schedule.image(image.target, image.path);
}

ordered_json measure_decoding(const Machine& machine) {
  ordered_json results = ordered_json::array();
  for (const Shape& shape : shapes(machine)) {
    double alone = 0;
    const bool tied = shape.config.at("tie_word_embeddings");
    std::vector<uint32_t> counts = {1};
    counts.insert(counts.end(), machine.ranks.begin(), machine.ranks.end());
    for (const uint32_t ranks : counts) {
      const ShapePackage package(machine, shape, ranks);
      ordered_json result = machine.describe(ranks);
      result["shape"] = shape.name;
      result["layers"] = shape.config.at("num_hidden_layers");
      result["context"] = machine.host() ? 20 : 128;
      result["decode"] = time_decoding(machine, package.path("across"), ranks, tied);
      const double median = result["decode"]["ms_per_token"]["p50"];
      if (ranks == 1) alone = median;
      result["times_faster_than_one_rank"] = alone / median;
      if (ranks != 1) {
        result["with_local_edges"] = time_decoding(machine, package.path("local"), ranks, tied);
        const double local = result["with_local_edges"]["ms_per_token"]["p50"];
        // Two sums a layer, the token's row, the logits and the choice.
        const double exchanges = 2 * shape.config.at("num_hidden_layers").get<double>() + 2;
        result["microseconds_an_exchange"] = (median - local) * 1e3 / exchanges;
        std::fprintf(stderr, "%u ranks: %s with local edges %.4f ms, %.2f us an exchange\n", ranks, shape.name.c_str(),
                     local, (median - local) * 1e3 / exchanges);
      }
      std::fprintf(stderr, "%u ranks: %s %.4f ms a token, %.2f times as fast as one\n", ranks, shape.name.c_str(),
                   median, alone / median);
      results.push_back(result);
    }
  }
  return {{"benchmark", "decoding"},
          {"unit", "batch 1, random weights; layers of the 70B shape are fewer than the model's 80"},
          {"results", results}};
}

}  // namespace mkrt::bench
