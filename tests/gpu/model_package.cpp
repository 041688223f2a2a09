// model_package SHAPE|FOLDER OUTPUT CONTEXT BATCH[:CONTEXT]...: packages for the GPU.
//
// Writes a model folder with random weights as OUTPUT/model where a shape of tests/tools is named, and for each batch
// the package OUTPUT/batch-B with this build's kernels, or OUTPUT/batch-B-context-C where the batch has a context of
// its own. The weights are packed once: all packages share the files of the first.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "compile/compile.hpp"
#include "kernel_images.hpp"
#include "random_model.hpp"

namespace {

// Files of a model that are written at the same time.
constexpr uint32_t shards = 8;

struct Wanted {
  std::string folder;
  uint32_t batch, context;
};

// "B" or "B:C".
Wanted parse(const char* text, uint32_t context) {
  char* end = nullptr;
  const auto batch = static_cast<uint32_t>(std::strtoul(text, &end, 10));
  const std::string folder = "batch-" + std::to_string(batch);
  if (*end != ':') return {folder, batch, context};
  const auto own = static_cast<uint32_t>(std::strtoul(end + 1, nullptr, 10));
  return {folder + "-context-" + std::to_string(own), batch, own};
}

int make(const std::string& model, const std::string& output, const std::vector<Wanted>& packages) {
  using namespace mkrt;
  const std::vector<std::string> shapes = tools::shape_names();
  std::string folder = model;
  if (std::find(shapes.begin(), shapes.end(), model) != shapes.end()) {
    tools::RandomModel random;
    random.config = tools::shape_config(model);
    random.shards = shards;
    folder = output + "/model";
    tools::write_random_model(random, folder);
  }
  compile::Options options;
  options.model = folder;
  options.images = test::kernel_images();
  for (const Wanted& package : packages) {
    options.output = output + "/" + package.folder;
    options.batch = package.batch;
    options.context = package.context;
    compile::compile_model(options);
    if (options.weights_of.empty()) options.weights_of = options.output;
  }
  return 0;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 5) {
    std::fprintf(stderr, "usage: model_package SHAPE|FOLDER OUTPUT CONTEXT BATCH[:CONTEXT]...\n");
    return 2;
  }
  const auto context = static_cast<uint32_t>(std::strtoul(arguments[3], nullptr, 10));
  std::vector<Wanted> packages;
  for (int i = 4; i < argument_count; ++i) packages.push_back(parse(arguments[i], context));
  try {
    return make(arguments[1], arguments[2], packages);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "model_package: %s\n", failure.what());
    return 1;
  }
}
