// The model compiler: a Hugging Face model folder becomes a package.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mkrt::compile {

// A kernel image for the package.
struct ImageFile {
  std::string target;  // such as "sm_90a"
  std::string path;
};

struct Options {
  std::string model;       // folder with config.json and safetensors files
  std::string output;      // the package's folder; created where it is missing, its package files are replaced
  uint32_t batch = 1;      // sequences that decode together, 1 to 16
  uint32_t context = 0;    // positions of each sequence; 0: the model's limit, at most 4096
  uint32_t tile_rows = 0;  // rows of each matrix tile, a multiple of 16; 0: chosen by the matrix
  uint32_t splits = 0;     // tiles that share the positions of one key-value head; 0: chosen by the shape
  uint32_t ranks = 1;      // devices that share the model, 1 to 64 and at most its query heads
  std::vector<ImageFile> images = {};  // copied into the package; targets and file names differ
  // Folder of a package of the same model with the same tile_rows and ranks: its weight files are shared, as hard links
  // where the file system has them, instead of packed once more. What is packed depends on neither batch nor context.
  // The caller answers for the model being the same; a program that does not fit its weights is refused at load.
  std::string weights_of = {};
};

// Called from the thread that called compile_model, after each written piece of the weights.
using ProgressCallback = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// Throws base::Failure: FILE and FORMAT for a folder that is not a readable model, UNSUPPORTED for a model that
// mkrt.llm cannot run (the sentence names the field and its value, or the tensor), ARGUMENT for options that do not fit
// it. After a failure the output folder holds no program.json of this call.
void compile_model(const Options& options, const ProgressCallback& progress = {});

}  // namespace mkrt::compile
