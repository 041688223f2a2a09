#include "compile/compile.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/failure.hpp"
#include "base/mapped_file.hpp"
#include "base/path.hpp"
#include "compile/checkpoint.hpp"
#include "compile/llm_isa.hpp"
#include "compile/lower.hpp"
#include "compile/model.hpp"
#include "compile/pack.hpp"
#include "package/isa.hpp"
#include "package/writer.hpp"

namespace mkrt::compile {
namespace {

namespace fs = std::filesystem;
using base::Failure;
using base::text;

// Positions where the caller does not say: as many as most hosts use, a few hundred megabytes of cache for an 8B model.
constexpr uint64_t kDefaultContext = 4096;
// The instruction set's limit.
constexpr uint32_t kLargestBatch = 16;
// A tile's results of 16 sequences are then 8 KB, which fits every device's shared memory beside the weights.
constexpr uint32_t kLargestTileRows = 128;
// Splits beyond this would be more than all SMs of the largest device can hold at once.
constexpr uint32_t kLargestSplits = 256;

constexpr char kWeightFile[] = "weights.safetensors";
std::string rank_weight_file(uint32_t rank) { return text("weights.rank", rank, ".safetensors"); }
constexpr char kProgramFile[] = "program.json";
// What hosts with a tokenizer read; copied where the model has it.
constexpr const char* kCopiedFiles[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"};

Choices resolve_choices(const Options& options, const ModelDescription& model) {
  if (options.batch < 1 || options.batch > kLargestBatch) {
    throw Failure(MKRT_ERROR_ARGUMENT, text("batch is ", options.batch, "; it goes from 1 to ", kLargestBatch));
  }
  if (options.tile_rows % 16 != 0 || options.tile_rows > kLargestTileRows) {
    throw Failure(MKRT_ERROR_ARGUMENT,
                  text("tile_rows is ", options.tile_rows, "; it is a multiple of 16 up to ", kLargestTileRows));
  }
  if (options.context > model.max_positions) {
    throw Failure(MKRT_ERROR_ARGUMENT, text("context is ", options.context, "; the model's max_position_embeddings is ",
                                            model.max_positions));
  }
  const uint64_t context = options.context ? options.context : std::min(model.max_positions, kDefaultContext);
  if (options.splits > kLargestSplits || options.splits > context) {
    throw Failure(MKRT_ERROR_ARGUMENT, text("splits is ", options.splits, "; it goes up to ", kLargestSplits,
                                            " and to the context, ", context));
  }
  if (options.ranks < 1 || options.ranks > MKRT_MAX_RANKS) {
    throw Failure(MKRT_ERROR_ARGUMENT, text("ranks is ", options.ranks, "; it goes from 1 to ", MKRT_MAX_RANKS));
  }
  return {options.batch, static_cast<uint32_t>(context), options.tile_rows, options.splits, options.ranks};
}

// The check at load follows all exchanges through sets of all ranks' counters, and refuses what takes it too long: 80
// layers on 60 ranks with 38 640 counters pass, on 61 with 39 284 they do not.
constexpr uint64_t kMostCounters = 37'000;

void check_counters(const package::Program& program, const ModelDescription& model) {
  const uint64_t counters = uint64_t{program.entries.front().counter_count} * program.rank_count;
  if (counters <= kMostCounters) return;
  throw Failure(MKRT_ERROR_ARGUMENT,
                text("ranks is ", program.rank_count, ", and num_hidden_layers ", model.layers, ": together they need ",
                     counters, " counters, and a program can be checked with at most ", kMostCounters));
}

package::IsaDefinition llm_isa() {
  const std::string name = "mkrt.llm.json";
  package::JsonOrigin origin;
  origin.file = name;
  const package::Json json = package::parse_json(kLlmIsaJson, name);
  return package::parse_isa(package::JsonView(json, origin));
}

std::vector<BoundWeight> bind_sources(const std::vector<Weight>& weights, Checkpoint& checkpoint) {
  std::vector<BoundWeight> bound;
  for (const Weight& weight : weights) {
    BoundWeight one{&weight, {}};
    for (const Weight::Source& source : weight.sources) {
      const bool vector = weight.layout == Weight::Layout::vector;
      one.sources.push_back(
          checkpoint.take(source.name, vector ? std::vector{source.rows} : std::vector{source.rows, weight.columns}));
    }
    bound.push_back(std::move(one));
  }
  return bound;
}

// Several weights may be made of parts of one tensor, which counts once.
uint64_t count_parameters(const std::vector<BoundWeight>& weights) {
  uint64_t count = 0;
  std::set<std::string_view> counted;
  for (const BoundWeight& weight : weights) {
    for (size_t i = 0; i < weight.sources.size(); ++i) {
      if (!counted.insert(weight.weight->sources[i].name).second) continue;
      count += weight.sources[i].bytes.size() / dtype_bytes(weight.sources[i].dtype);
    }
  }
  return count;
}

std::string joined(const std::vector<int64_t>& numbers) {
  std::string written;
  for (const int64_t number : numbers) written += text(written.empty() ? "" : ",", number);
  return written;
}

std::vector<package::Metadata> make_metadata(const ModelDescription& model, const Choices& choices,
                                             uint64_t parameters) {
  std::vector<package::Metadata> metadata{
      {"model_type", model.model_type},
      {"architecture", model.architecture},
      {"vocabulary", std::to_string(model.vocabulary)},
      {"context", std::to_string(choices.context)},
      {"batch", std::to_string(choices.batch)},
      {"layers", std::to_string(model.layers)},
      {"hidden", std::to_string(model.hidden)},
      {"feed_forward", std::to_string(model.feed_forward)},
      {"heads", std::to_string(model.heads)},
      {"kv_heads", std::to_string(model.kv_heads)},
      {"head_size", std::to_string(model.head_size)},
      {"max_positions", std::to_string(model.max_positions)},
      {"tied_embeddings", model.tied_embeddings ? "true" : "false"},
      {"parameters", std::to_string(parameters)},
  };
  // A model may list several; the first begins a text.
  if (!model.bos_tokens.empty()) metadata.push_back({"bos_token", std::to_string(model.bos_tokens.front())});
  if (!model.eos_tokens.empty()) metadata.push_back({"eos_tokens", joined(model.eos_tokens)});
  return metadata;
}

void create_output_folder(const Options& options) {
  std::error_code error;
  fs::create_directories(options.output, error);
  if (error) throw Failure(MKRT_ERROR_FILE, text(base::shown_path(options.output), ": ", error.message()));
  if (fs::equivalent(options.model, options.output, error)) {
    throw Failure(MKRT_ERROR_ARGUMENT, text(base::shown_path(options.output), " is the model's own folder"));
  }
  // An older package in the folder stops being one before its weights are replaced.
  fs::remove(fs::path(options.output) / kProgramFile, error);
  if (error)
    throw Failure(MKRT_ERROR_FILE, text(base::shown_path(options.output), "/", kProgramFile, ": ", error.message()));
  // Its ranks' weights are of no use to a program with fewer ranks.
  for (uint32_t rank = 0; rank < MKRT_MAX_RANKS; ++rank) {
    fs::remove(fs::path(options.output) / rank_weight_file(rank), error);
  }
}

void share_weights(const Options& options, const std::string& name) {
  const fs::path source = fs::path(options.weights_of) / name;
  const fs::path target = fs::path(options.output) / name;
  std::error_code error;
  fs::remove(target, error);
  fs::create_hard_link(source, target, error);
  if (error) fs::copy_file(source, target, error);
  if (error) {
    throw Failure(MKRT_ERROR_FILE, text(base::shown_path(source.string()), " cannot be shared with ",
                                        base::shown_path(target.string()), ": ", error.message()));
  }
}

// Writes the file of what all ranks share, and one for each rank where ranks have weights of their own. Returns their
// names.
std::vector<std::string> write_weight_files(const std::vector<BoundWeight>& weights, const Options& options,
                                            const ProgressCallback& progress) {
  std::vector<std::string> names;
  uint64_t done = 0, total = 0;
  for (const BoundWeight& weight : weights) total += weight.weight->size_bytes();
  const auto write = [&](const std::string& name, const std::optional<uint32_t>& rank) {
    std::vector<BoundWeight> of_file;
    for (const BoundWeight& weight : weights) {
      if (weight.weight->rank == rank) of_file.push_back(weight);
    }
    if (of_file.empty()) return;
    names.push_back(name);
    if (!options.weights_of.empty()) {
      share_weights(options, name);
      return;
    }
    uint64_t size = 0;
    write_weights(of_file, options.output + "/" + name, [&](uint64_t written, uint64_t all) {
      size = all;
      if (progress) progress(done + written, total);
    });
    done += size;
  };
  write(kWeightFile, std::nullopt);
  for (uint32_t rank = 0; rank < options.ranks; ++rank) write(rank_weight_file(rank), rank);
  return names;
}

// Before minutes of packing: what is there under a companion's name can be copied. A pipe would never end.
void check_companions(const Options& options) {
  for (const char* name : kCopiedFiles) {
    const std::string path = options.model + "/" + name;
    if (fs::exists(base::system_path(path))) const base::MappedFile readable(path);
  }
}

void copy_companions(const Options& options) {
  for (const char* name : kCopiedFiles) {
    const fs::path source = fs::path(options.model) / name;
    const fs::path target = fs::path(options.output) / name;
    std::error_code error;
    fs::remove(target, error);
    if (!fs::exists(source)) continue;
    fs::copy_file(source, target, fs::copy_options::overwrite_existing, error);
    if (error) {
      throw Failure(MKRT_ERROR_FILE, text(base::shown_path(source.string()), " cannot be copied to ",
                                          base::shown_path(target.string()), ": ", error.message()));
    }
  }
}

// Checks the images that the caller gives, and lists them as the package will hold them: by the name of their file.
std::vector<package::Image> list_images(const std::vector<ImageFile>& files) {
  std::vector<package::Image> images;
  for (const ImageFile& file : files) {
    package::Image image{file.target, base::utf8_path(base::system_path(file.path).filename())};
    for (const package::Image& other : images) {
      if (other.target != image.target && other.file != image.file) continue;
      throw Failure(MKRT_ERROR_ARGUMENT,
                    text("two images are for ", base::quoted(image.target), " or named ", base::quoted(image.file)));
    }
    images.push_back(std::move(image));
  }
  return images;
}

void copy_images(const Options& options, const std::vector<package::Image>& images) {
  for (size_t i = 0; i < images.size(); ++i) {
    const fs::path target = fs::path(options.output) / images[i].file;
    std::error_code error;
    fs::copy_file(base::system_path(options.images[i].path), target, fs::copy_options::overwrite_existing, error);
    if (error) {
      throw Failure(MKRT_ERROR_FILE, text(base::shown_path(options.images[i].path), " cannot be copied to ",
                                          base::shown_path(target.string()), ": ", error.message()));
    }
  }
}

}  // namespace

void compile_model(const Options& options, const ProgressCallback& progress) {
  const ModelDescription model = read_model(options.model);
  const Choices choices = resolve_choices(options, model);
  check_companions(options);
  Checkpoint checkpoint(options.model);
  Plan plan = lower(model, choices, llm_isa());
  check_counters(plan.program, model);
  const std::vector<BoundWeight> weights = bind_sources(plan.weights, checkpoint);
  checkpoint.refuse_unused(model.tied_embeddings);
  plan.program.metadata = make_metadata(model, choices, count_parameters(weights));
  plan.program.images = list_images(options.images);

  create_output_folder(options);
  const std::vector<std::string> weight_files = write_weight_files(weights, options, progress);
  copy_companions(options);
  copy_images(options, plan.program.images);
  // Last: a folder with a program.json is a whole package.
  package::write_program(plan.program, {.weights = weight_files, .sources = plan.sources},
                         options.output + "/" + kProgramFile);
}

}  // namespace mkrt::compile
