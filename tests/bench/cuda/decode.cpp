// decode PACKAGE [CONTEXT...]: milliseconds a token of a compiled model, with CONTEXT tokens before it (128, 1024).
//
// The caches are filled by decoding random tokens, so that what is read is what a text leaves there. Three ways to ask
// for steps: many in one execute; one an execute, waiting for each; one an execute, up to 32 in flight. A step reads
// every weight matrix once and the cache of every position so far: that divided by the time is the rate.
#include <random>

#include "bench.hpp"

namespace {

using namespace mkrt::bench;

constexpr uint32_t steps = 64;  // measured around a context
constexpr int repeats = 5;
constexpr uint32_t in_flight = 32;

enum class Asking { together, one_by_one, ahead };
constexpr const char* asking_names[] = {"many steps an execute", "one step an execute, waited for",
                                        "one step an execute, 32 in flight"};

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

  void go_to(uint32_t position) {
    set_all("positions", static_cast<int32_t>(position));
    set_all("active", 1);
  }
  void run(uint32_t count, uint32_t queue_mode, Asking asking) {
    mkrt::ExecuteOptions options;
    options.queue_mode = queue_mode;
    options.step_count = asking == Asking::together ? count : 1;
    uint64_t value = 0;
    for (uint32_t i = 0; i < count / options.step_count; ++i) {
      value = session_.execute(options);
      if (asking == Asking::one_by_one) session_.wait(value);
      if (asking == Asking::ahead && i >= in_flight) session_.wait(value - in_flight);
    }
    session_.wait(value);
  }

  uint64_t batch = 0, context = 0, weight_bytes = 0, cache_row_bytes = 0;

 private:
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

ordered_json measure_one(Decoder& decoder, uint32_t context, uint32_t queue_mode, Asking asking) {
  const uint32_t first = context - steps / 2;
  std::vector<double> milliseconds;
  for (int repeat = -1; repeat < repeats; ++repeat) {
    decoder.go_to(first);
    const Clock::time_point begin = Clock::now();
    decoder.run(steps, queue_mode, asking);
    if (repeat >= 0) milliseconds.push_back(seconds_since(begin) * 1e3 / steps);
  }
  // The measured steps have `context` tokens before them on average.
  const double cache_bytes = static_cast<double>(decoder.batch * decoder.cache_row_bytes) * (context + 0.5);
  const double median = percentile(milliseconds, 0.5);
  const double rate = (static_cast<double>(decoder.weight_bytes) + cache_bytes) / (median / 1e3);
  const char* queue = queue_mode == MKRT_QUEUE_STATIC ? "static" : "dynamic";
  std::fprintf(stderr, "batch %2u context %5u %-7s %-33s %.4f ms a token, %.0f GB/s\n",
               static_cast<unsigned>(decoder.batch), context, queue, asking_names[static_cast<int>(asking)], median,
               rate / 1e9);
  return {{"context", context},
          {"batch", decoder.batch},
          {"queue", queue},
          {"asking", asking_names[static_cast<int>(asking)]},
          {"ms_per_token", summary(milliseconds)},
          {"weight_bytes", decoder.weight_bytes},
          {"cache_bytes", cache_bytes},
          {"gigabytes_per_second", rate / 1e9}};
}

ordered_json measure(const char* package, const std::vector<uint32_t>& contexts) {
  Decoder decoder(package);
  for (const uint32_t context : contexts) {
    if (context < steps / 2 || context + steps / 2 >= decoder.context) {
      throw std::runtime_error("context " + std::to_string(context) + " does not fit the package's " +
                               std::to_string(decoder.context));
    }
  }
  decoder.go_to(0);
  decoder.run(*std::max_element(contexts.begin(), contexts.end()) + steps / 2, MKRT_QUEUE_STATIC, Asking::together);
  ordered_json results = ordered_json::array();
  for (const uint32_t context : contexts) {
    for (const uint32_t queue_mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      for (const Asking asking : {Asking::together, Asking::one_by_one, Asking::ahead}) {
        results.push_back(measure_one(decoder, context, queue_mode, asking));
      }
    }
  }
  return {{"benchmark", "decode"},
          {"device", decoder.describe_device()},
          {"package", package},
          {"steps", steps},
          {"results", results}};
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: decode PACKAGE [CONTEXT...]\n");
    return 2;
  }
  std::vector<uint32_t> contexts;
  for (int i = 2; i < argument_count; ++i) {
    contexts.push_back(static_cast<uint32_t>(std::strtoul(arguments[i], nullptr, 10)));
  }
  if (contexts.empty()) contexts = {128, 1024};
  return report("decode", [&] { return measure(arguments[1], contexts); });
}
