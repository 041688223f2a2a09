// A compiled model whose caches hold decoded random tokens, for benchmarks that decode from any position on.
#pragma once

#include <random>
#include <string_view>

#include "bench.hpp"

namespace mkrt::bench {

// Three ways to ask for steps: many in one execute; one an execute, waiting for each; one an execute, up to 32 in
// flight.
enum class Asking { together, one_by_one, ahead };
constexpr uint32_t in_flight = 32;

class Decoder {
 public:
  explicit Decoder(const char* package)
      : mesh_(runtime_, cuda()),
        program_(runtime_, package),
        executable_(program_, mesh_, 0, 8),
        session_(executable_) {
    batch = number("batch");
    context = number("context");
    const uint64_t vocabulary = number("vocabulary");
    // Weights that a step reads, all stored as bf16 (norms and biases, f32, are a thousandth). Where embeddings are not
    // tied, only a row of the token table is read.
    weight_bytes = 2 * number("parameters");
    if (program_.metadata("tied_embeddings") != "true") weight_bytes -= 2 * vocabulary * number("hidden");
    cache_row_bytes = number("layers") * 2 * number("kv_heads") * number("head_size") * 2;
    std::mt19937 random(1);
    std::vector<int32_t> tokens(batch * context);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocabulary);
    session_.write<int32_t>(program_.find_tensor("tokens"), tokens);
    // Every token is given: choices are made and thrown away.
    set_all("prompt_length", static_cast<int32_t>(context));
  }

  ordered_json describe_device() const { return describe(mesh_.device_info()); }
  const mkrt::Program& program() const { return program_; }
  mkrt::Session& session() { return session_; }

  // Fills the caches of the first `count` positions: the first ones as decoding leaves them, the others with copies of
  // those, because eight thousand tokens of a large model would take half a minute.
  void fill(uint32_t count) {
    const uint32_t decoded = std::min(count, most_decoded);
    go_to(0);
    run(decoded, MKRT_QUEUE_STATIC, Asking::together);
    if (decoded == count) return;
    const uint32_t tensors = program_.info().tensor_count;
    for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
      const mkrt::TensorInfo info = program_.tensor_info(tensor);
      if (std::string_view(info.name).ends_with("_cache")) repeat_rows(tensor, info, decoded, count);
    }
  }

  void go_to(uint32_t position) {
    set_all("positions", static_cast<int32_t>(position));
    set_all("active", 1);
  }
  // `worker_limit`: most SMs, 0: all.
  void run(uint32_t count, uint32_t queue_mode, Asking asking, uint32_t worker_limit = 0) {
    mkrt::ExecuteOptions options;
    options.queue_mode = queue_mode;
    options.worker_limit = worker_limit;
    options.step_count = asking == Asking::together ? count : 1;
    uint64_t value = 0;
    for (uint32_t i = 0; i < count / options.step_count; ++i) {
      value = session_.execute(options);
      if (asking == Asking::one_by_one) session_.wait(value);
      if (asking == Asking::ahead && i >= in_flight) session_.wait(value - in_flight);
    }
    session_.wait(value);
  }
  // The same one by one; milliseconds of each.
  std::vector<double> time_each(uint32_t count, uint32_t queue_mode, uint32_t worker_limit = 0) {
    std::vector<double> milliseconds;
    for (uint32_t i = 0; i < count; ++i) {
      const Clock::time_point begin = Clock::now();
      run(1, queue_mode, Asking::one_by_one, worker_limit);
      milliseconds.push_back(seconds_since(begin) * 1e3);
    }
    return milliseconds;
  }

  uint64_t batch = 0, context = 0, weight_bytes = 0, cache_row_bytes = 0;

 private:
  static constexpr uint32_t most_decoded = 512;

  // A cache is [batch, heads, context, head size] of f16.
  void repeat_rows(uint32_t tensor, const mkrt::TensorInfo& info, uint32_t decoded, uint32_t count) {
    std::vector<uint16_t> cache(info.size_bytes / sizeof(uint16_t));
    session_.read<uint16_t>(tensor, cache);
    const uint64_t row = info.shape[3], list = info.shape[2] * row;
    for (uint64_t first = 0; first < cache.size(); first += list) {
      for (uint64_t i = decoded * row; i < count * row; ++i) cache[first + i] = cache[first + i - decoded * row];
    }
    session_.write<uint16_t>(tensor, cache);
  }

  uint64_t number(const char* key) const { return std::stoull(std::string(program_.metadata(key))); }
  void set_all(const char* tensor, int32_t value) {
    session_.write<int32_t>(program_.find_tensor(tensor), std::vector<int32_t>(batch, value));
  }

  mkrt::Runtime runtime_;
  mkrt::Mesh mesh_;
  mkrt::Program program_;
  mkrt::Executable executable_;
  mkrt::Session session_;
};

}  // namespace mkrt::bench
