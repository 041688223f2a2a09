// tool_bench PACKAGE AROUND TOKENS QUEUE JSON: `mkrt bench PACKAGE --device cuda --around AROUND --tokens TOKENS
// --queue QUEUE --json JSON --records`, for machines without the libraries that the tool's other commands need.
#include <cstdio>
#include <cstdlib>

#include "cli/commands.hpp"

int main(int argument_count, char** arguments) {
  if (argument_count != 6) {
    std::fprintf(stderr, "usage: tool_bench PACKAGE AROUND TOKENS dynamic|static JSON\n");
    return 2;
  }
  mkrt::cli::BenchOptions options;
  options.package = arguments[1];
  options.around = static_cast<uint32_t>(std::strtoul(arguments[2], nullptr, 10));
  options.tokens = static_cast<uint32_t>(std::strtoul(arguments[3], nullptr, 10));
  options.run.device = "cuda";
  options.run.queue = arguments[4];
  options.json = arguments[5];
  options.records = true;
  try {
    return mkrt::cli::bench(options);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "tool_bench: %s\n", failure.what());
    return 1;
  }
}
