// The tool's commands: what each takes from the command line, and the function that does it.
//
// Each returns the process's exit code or throws: Error, mkrt::Error and base::Failure with the sentence for standard
// error, Interrupted, OutputClosed. `main.cpp` turns these into exit codes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/decoder.hpp"
#include "cli/sampler.hpp"

namespace mkrt::cli {

struct CompileOptions {
  std::string model, package;
  uint32_t batch = 1, context = 0, tile_rows = 0, splits = 0, ranks = 1;
  std::string images;      // folder of kernel images; empty: the tool's own
  bool no_images = false;  // for the host device only
};
int compile(const CompileOptions& options);

struct InspectOptions {
  std::string package;
  bool json = false;
};
int inspect(const InspectOptions& options);

struct GenerateOptions {
  std::string package;
  RunOptions run;
  std::optional<std::string> prompt;  // this, or the prompt's tokens
  std::vector<int32_t> prompt_ids;
  std::string tokenizer;   // empty: the package's
  double temperature = 0;  // 0: the likeliest token, always
  SamplerOptions sampler;  // its temperature is the one above
  uint32_t max_tokens = 256;
  uint32_t logits = 0;         // new tokens whose logits are reported
  bool prompt_logits = false;  // report those of the prompt's tokens as well
  bool echo = false;           // print the prompt first
  bool json = false;
};
int generate(const GenerateOptions& options);

struct BenchOptions {
  std::string package;
  RunOptions run;
  std::string json;                // file for the report, "-": standard output, empty: a report for people
  uint32_t position = 0;           // of the first measured step
  std::optional<uint32_t> around;  // or of the middle one
  // A model of a billion parameters takes about half a minute with these on two cores.
  uint32_t tokens = 48, warm_up = 8, repeats = 5;
  bool records = false;  // show the times of each record; JSON always has them
};
int bench(const BenchOptions& options);

struct DevicesOptions {
  bool json = false;
};
int devices(const DevicesOptions& options);

}  // namespace mkrt::cli
