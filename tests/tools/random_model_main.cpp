// random_model OUTPUT --shape llama-3.2-1b: a model folder with random weights.
#include <CLI/CLI.hpp>
#include <chrono>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>

#include "random_model.hpp"

int main(int argc, char** argv) {
  using namespace mkrt::tools;
  CLI::App app("Writes a Hugging Face model folder with random weights.");
  std::string folder, shape, config_file;
  uint64_t layers = 0;
  RandomModel model;
  app.add_option("OUTPUT", folder, "folder to write")->required();
  auto* named = app.add_option("--shape", shape, "a built-in shape")->check(CLI::IsMember(shape_names()));
  app.add_option("--config", config_file, "a config.json to follow")->check(CLI::ExistingFile)->excludes(named);
  app.add_option("--layers", layers, "layers, instead of the shape's")->check(CLI::PositiveNumber);
  app.add_option("--seed", model.seed, "seed of the weights")->capture_default_str();
  app.add_option("--deviation", model.deviation, "standard deviation of matrices")->capture_default_str();
  app.add_option("--shards", model.shards, "number of weight files")->capture_default_str();
  const std::map<std::string, StoredDtype> dtypes{
      {"bf16", StoredDtype::bf16}, {"f16", StoredDtype::f16}, {"f32", StoredDtype::f32}};
  app.add_option("--dtype", model.dtype, "dtype of the weights")->transform(CLI::CheckedTransformer(dtypes));
  CLI11_PARSE(app, argc, argv);

  try {
    if (!config_file.empty()) {
      std::ifstream file(config_file);
      model.config = nlohmann::ordered_json::parse(file);
    } else {
      model.config = shape_config(shape.empty() ? "tiny-llama" : shape);
    }
    if (layers != 0) model.config["num_hidden_layers"] = layers;
    write_random_model(model, folder);
  } catch (const std::exception& failure) {
    std::cerr << "random_model: " << failure.what() << '\n';
    return 1;
  }
  return 0;
}
