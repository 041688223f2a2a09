// A language model as the tool runs it: a package that `mkrt compile` wrote, on devices of the user's choice.
//
// src/compile/README.md says what the tensors and the metadata mean that are named here.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/interrupt.hpp"
#include "mkrt/mkrt.hpp"

namespace mkrt::cli {

// Where and how to run; the texts are those of the command line.
struct RunOptions {
  std::string device = "default";  // "default", "host", "cuda" or "cuda:N"
  uint32_t workers = 0;            // 0: all
  std::string queue = "dynamic";   // "dynamic" or "static"
};

// Descriptions of `rank_count` ranks: of the same kind, CUDA devices counted up from the one that is named.
// Throws Error where `options.device` is no device's name.
std::vector<RankOptions> describe_ranks(const RunOptions& options, uint32_t rank_count);

// The name that --device takes.
std::string device_option(const DeviceInfo& device);

// A metadata value; throws Error where the package has none.
std::string metadata(const Program& program, const char* key);
// The same as a number from 0 to 2^62.
uint64_t metadata_number(const Program& program, const char* key);
// Numbers joined by commas; empty where the package has no such value.
std::vector<int32_t> metadata_tokens(const Program& program, const char* key);

class Decoder {
 public:
  // Loads the package and makes it ready; throws mkrt::Error. `interrupt` must outlive the decoder.
  Decoder(const std::string& package, const RunOptions& options, Interrupt& interrupt);
  ~Decoder() { interrupt_.watch(nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const Program& program() const { return program_; }
  const Mesh& mesh() const { return mesh_; }
  // What it runs on, such as "NVIDIA H200, cuda:0, 132 workers", and why where a default did not become a GPU.
  std::string device_text() const;
  // The same in a few words, such as "cuda:0, 132 workers".
  std::string short_device_text() const;
  uint32_t batch() const { return batch_; }
  uint32_t context() const { return context_; }  // places of a token list
  uint32_t vocabulary() const { return vocabulary_; }

  // Puts sequence 0 at the beginning of `prompt`; all other sequences stand still. A greedy choice among `stops` ends
  // it. Throws Error where the prompt is empty, does not leave a place for a new token, holds tokens that the model
  // does not have, or where the program has no room for as many stops.
  void start(std::span<const int32_t> prompt, std::span<const int32_t> stops);
  // Puts every sequence at `position` of an otherwise empty list, without stops.
  void start_all(uint32_t position);

  // Called every tenth of a second while an execute runs, with the seconds since it began.
  using Ticker = std::function<void(double seconds)>;
  // Runs that many steps in one execute and waits for them. Throws Interrupted when the user stopped it.
  void run(uint32_t steps, const Ticker& ticker = {});

  // Runs that many steps from `position` on in one execute, and returns what each worker of rank 0 did in them, tile by
  // tile: other devices have clocks of their own. CUDA devices only.
  std::vector<std::vector<mkrt_trace_tile>> trace(uint32_t position, uint32_t steps);

  // Of sequence 0.
  uint32_t position() const;
  bool active() const;
  std::vector<int32_t> tokens(uint32_t begin, uint32_t end) const;
  void set_token(uint32_t place, int32_t token);
  void read_logits(std::vector<float>& out) const;  // of the last step

 private:
  // The same on every rank.
  void write(uint32_t tensor, std::span<const int32_t> values, uint64_t offset = 0);

  // Keeps the library's warnings; called while the constructor runs.
  static void keep_warning(void* decoder, uint32_t level, const char* message);
  Executable load(const RunOptions& options);
  std::string worker_text() const;

  Interrupt& interrupt_;
  std::string warnings_;
  Runtime runtime_;
  Program program_;
  Mesh mesh_;
  Executable executable_;
  Session session_;
  ExecuteOptions execute_;
  uint32_t tokens_, positions_, active_, prompt_length_, stop_tokens_, stop_count_, logits_;
  uint32_t batch_, context_, vocabulary_, stop_capacity_;
};

}  // namespace mkrt::cli
