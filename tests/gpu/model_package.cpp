// model_package SHAPE|FOLDER OUTPUT CONTEXT BATCH...: packages for the GPU.
//
// Writes a model folder with random weights as OUTPUT/model where a shape of tests/tools is named, and for each batch
// the package OUTPUT/batch-B with this build's kernels. The batches are compiled at the same time.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "compile/compile.hpp"
#include "kernel_images.hpp"
#include "random_model.hpp"

namespace {

int make(const std::string& model, const std::string& output, uint32_t context, const std::vector<uint32_t>& batches) {
  using namespace mkrt;
  const std::vector<std::string> shapes = tools::shape_names();
  std::string folder = model;
  if (std::find(shapes.begin(), shapes.end(), model) != shapes.end()) {
    tools::RandomModel random;
    random.config = tools::shape_config(model);
    folder = output + "/model";
    tools::write_random_model(random, folder);
  }
  std::vector<std::future<void>> packages;
  for (const uint32_t batch : batches) {
    compile::Options options;
    options.model = folder;
    options.output = output + "/batch-" + std::to_string(batch);
    options.batch = batch;
    options.context = context;
    options.images = test::kernel_images();
    packages.push_back(std::async(std::launch::async, [options] { compile::compile_model(options); }));
  }
  for (std::future<void>& package : packages) package.get();
  return 0;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 5) {
    std::fprintf(stderr, "usage: model_package SHAPE|FOLDER OUTPUT CONTEXT BATCH...\n");
    return 2;
  }
  std::vector<uint32_t> batches;
  for (int i = 4; i < argument_count; ++i) {
    batches.push_back(static_cast<uint32_t>(std::strtoul(arguments[i], nullptr, 10)));
  }
  try {
    return make(arguments[1], arguments[2], static_cast<uint32_t>(std::strtoul(arguments[3], nullptr, 10)), batches);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "model_package: %s\n", failure.what());
    return 1;
  }
}
