/* Continues a text with mkrt.hpp, and prints it as it is made.
 *
 * SPDX-License-Identifier: MIT
 *
 *     example_story PACKAGE [PROMPT] [TOKENS] [host]
 *
 * PACKAGE is what `mkrt compile` wrote. It runs on the first GPU, or on the processor where there is none, or where
 * "host" asks for it.
 */
#include <mkrt/mkrt.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "vocabulary.h"

namespace {

// Tokens of one execute: few enough that the text flows, many enough that calls cost nothing.
constexpr uint32_t tokens_at_once = 8;

// A compiled language model with one sequence. src/compile/README.md says what its tensors mean.
class Story {
 public:
  Story(const std::string& package, const mkrt::RankOptions& device)
      : mesh_(runtime_, device), program_(runtime_, package), executable_(program_, mesh_), session_(executable_) {
    steps_.entry = program_.find_entry("decode");
  }

  uint32_t context() const { return static_cast<uint32_t>(program_.tensor_info(tokens_).shape[1]); }
  uint32_t vocabulary_size() const { return static_cast<uint32_t>(program_.tensor_info(logits_).shape[1]); }
  std::string device_name() const { return mesh_.device_info().name; }

  // Begins with `prompt`, of at least one token.
  void begin(const std::vector<int32_t>& prompt) {
    session_.reset();
    session_.write<int32_t>(tokens_, prompt);
    session_.write_value<int32_t>(program_.find_tensor("prompt_length"), static_cast<int32_t>(prompt.size()));
    session_.write_value<int32_t>(program_.find_tensor("active"), 1);
    if (prompt.size() > 1) run(static_cast<uint32_t>(prompt.size()) - 1);
    length_ = static_cast<uint32_t>(prompt.size());
  }

  // Up to `count` more tokens; fewer where the text ended.
  std::vector<int32_t> more(uint32_t count) {
    count = std::min(count, context() - length_);
    if (count == 0) return {};
    run(count);
    const auto written = static_cast<uint32_t>(session_.read_value<int32_t>(program_.find_tensor("positions"))) + 1;
    std::vector<int32_t> tokens(written - length_);
    session_.read<int32_t>(tokens_, tokens, length_);
    length_ = written;
    return tokens;
  }

 private:
  // Nothing else is to be done here; a game would query once a frame instead (game.c).
  void run(uint32_t steps) {
    steps_.step_count = steps;
    session_.wait(session_.execute(steps_));
  }

  mkrt::Runtime runtime_;
  mkrt::Mesh mesh_;
  mkrt::Program program_;
  mkrt::Executable executable_;
  mkrt::Session session_;
  uint32_t tokens_ = program_.find_tensor("tokens");
  uint32_t logits_ = program_.find_tensor("logits");
  mkrt::ExecuteOptions steps_;
  uint32_t length_ = 0;
};

// The vocabulary goes with the object.
struct Vocabulary : vocabulary {
  Vocabulary(const std::string& package, uint32_t tokens) : vocabulary{} {
    if (vocabulary_load(this, package.c_str(), tokens) == 0) {
      std::fprintf(stderr, "%s has no tokenizer.json with a vocabulary\n", package.c_str());
      std::exit(1);
    }
  }
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;
  ~Vocabulary() { vocabulary_free(this); }
};

void tell(const std::string& package, const char* prompt, uint32_t token_count, const mkrt::RankOptions& device) {
  Story story(package, device);
  const Vocabulary words(package, story.vocabulary_size());
  std::fprintf(stderr, "on %s\n", story.device_name().c_str());

  std::vector<int32_t> tokens(story.context());
  tokens.resize(vocabulary_cut(&words, prompt, tokens.data(), story.context()));
  if (tokens.empty()) tokens.push_back(0);
  story.begin(tokens);
  while (!tokens.empty()) {
    vocabulary_print(&words, tokens.data(), static_cast<uint32_t>(tokens.size()));
    tokens = story.more(std::min(tokens_at_once, token_count));
    token_count -= static_cast<uint32_t>(tokens.size());
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: example_story PACKAGE [PROMPT] [TOKENS] [host]\n");
    return 2;
  }
  mkrt::RankOptions device;
  if (argc > 4 && std::strcmp(argv[4], "host") == 0) device.kind = MKRT_DEVICE_HOST;
  try {
    tell(argv[1], argc > 2 ? argv[2] : "The old house stood at the edge of the wood, and",
         argc > 3 ? static_cast<uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 80, device);
  } catch (const mkrt::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.status_name(), error.what());
    return 1;
  }
  return 0;
}
