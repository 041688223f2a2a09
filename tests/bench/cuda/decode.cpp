// decode PACKAGE [CONTEXT...]: milliseconds a token of a compiled model, with CONTEXT tokens before it (128, 1024).
//
// The caches are filled by decoding random tokens, so that what is read is what a text leaves there. Three ways to ask
// for steps: many in one execute; one an execute, waiting for each; one an execute, up to 32 in flight. A step reads
// every weight matrix once and the cache of every position so far: that divided by the time is the rate. The device's
// read limit is measured before and after each. MKRT_BENCH_TOGETHER=1 of the environment: the first way alone.
//
// The kernel's own time for a step is the slope between executes of many and of fewer steps with the same position in
// the middle: what a launch costs, and the wait for its end, is in both.
#include "cli/device_read_limit.hpp"
#include "decoder.hpp"
#include "kernel_images.hpp"

namespace {

using namespace mkrt::bench;

constexpr uint32_t steps = 200;  // measured around a context
constexpr uint32_t fewer_steps = 64;
constexpr int repeats = 3;

constexpr const char* asking_names[] = {"many steps an execute", "one step an execute, waited for",
                                        "one step an execute, 32 in flight"};

class Measurement {
 public:
  Measurement(const char* package, bool together_only)
      : decoder_(package),
        limit_({cuda()}, mkrt::test::kernel_images("mkrt_read")),
        package_(package),
        together_only_(together_only) {}

  ordered_json measure(const std::vector<uint32_t>& contexts) {
    for (const uint32_t context : contexts) {
      if (context < steps / 2 || context + steps / 2 >= decoder_.context) {
        throw std::runtime_error("context " + std::to_string(context) + " does not fit the package's " +
                                 std::to_string(decoder_.context));
      }
    }
    decoder_.fill(*std::max_element(contexts.begin(), contexts.end()) + steps / 2);
    for (const uint32_t context : contexts) {
      for (const uint32_t queue_mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) measure_queue(context, queue_mode);
    }
    return {{"benchmark", "decode"}, {"device", decoder_.describe_device()},
            {"package", package_},   {"package_context", decoder_.context},
            {"steps", steps},        {"results", results_}};
  }

 private:
  void measure_queue(uint32_t context, uint32_t queue_mode) {
    const double own = measure_together(context, queue_mode);
    if (together_only_) return;
    for (const Asking asking : {Asking::one_by_one, Asking::ahead}) {
      const double limit_before = limit_.measure();
      const std::vector<double> milliseconds = sample(context, queue_mode, asking);
      add(context, queue_mode, asking, milliseconds, own, (limit_before + limit_.measure()) / 2);
    }
  }

  // Milliseconds of a whole run of `count` steps around `context`.
  double time_run(uint32_t context, uint32_t count, uint32_t queue_mode, Asking asking) {
    decoder_.go_to(context - count / 2);
    const Clock::time_point begin = Clock::now();
    decoder_.run(count, queue_mode, asking);
    return seconds_since(begin) * 1e3;
  }

  // Many steps an execute; milliseconds of the kernel's own for a step.
  double measure_together(uint32_t context, uint32_t queue_mode) {
    std::vector<double> many, fewer, milliseconds;
    const double limit_before = limit_.measure();
    for (int repeat = -1; repeat < repeats; ++repeat) {
      const double a = time_run(context, steps, queue_mode, Asking::together);
      const double b = time_run(context, fewer_steps, queue_mode, Asking::together);
      if (repeat < 0) continue;
      many.push_back(a);
      fewer.push_back(b);
      milliseconds.push_back(a / steps);
    }
    const double own = (percentile(many, 0.5) - percentile(fewer, 0.5)) / (steps - fewer_steps);
    add(context, queue_mode, Asking::together, milliseconds, own, (limit_before + limit_.measure()) / 2);
    return own;
  }

  // One step an execute: milliseconds a token, of each step where they are waited for, otherwise of each run.
  std::vector<double> sample(uint32_t context, uint32_t queue_mode, Asking asking) {
    decoder_.go_to(context - steps / 2);
    decoder_.time_each(warm_up, queue_mode);
    if (asking == Asking::one_by_one) {
      decoder_.go_to(context - steps / 2);
      return decoder_.time_each(steps, queue_mode);
    }
    std::vector<double> milliseconds;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      milliseconds.push_back(time_run(context, steps, queue_mode, asking) / steps);
    }
    return milliseconds;
  }

  void add(uint32_t context, uint32_t queue_mode, Asking asking, const std::vector<double>& milliseconds, double own,
           double read_limit) {
    // The measured steps have `context` tokens before them on average.
    const double cache_bytes = static_cast<double>(decoder_.batch * decoder_.cache_row_bytes) * (context + 0.5);
    const double median = percentile(milliseconds, 0.5);
    const double rate = (static_cast<double>(decoder_.weight_bytes) + cache_bytes) / (median / 1e3);
    const char* queue = queue_mode == MKRT_QUEUE_STATIC ? "static" : "dynamic";
    const char* name = asking_names[static_cast<int>(asking)];
    std::fprintf(stderr, "batch %2u context %5u %-7s %-33s %.4f ms a token (own %.4f), %.0f GB/s, %.1f %%\n",
                 static_cast<unsigned>(decoder_.batch), context, queue, name, median, own, rate / 1e9,
                 rate / read_limit * 100);
    results_.push_back({{"context", context},
                        {"batch", decoder_.batch},
                        {"queue", queue},
                        {"asking", name},
                        {"ms_per_token", summary(milliseconds)},
                        {"own_ms_per_token", own},
                        {"weight_bytes", decoder_.weight_bytes},
                        {"cache_bytes", cache_bytes},
                        {"gigabytes_per_second", rate / 1e9},
                        {"read_limit_gigabytes_per_second", read_limit / 1e9},
                        {"share_of_read_limit", rate / read_limit}});
  }

  static constexpr uint32_t warm_up = 16;

  Decoder decoder_;
  mkrt::cli::DeviceReadLimit limit_;
  std::string package_;
  bool together_only_;
  ordered_json results_ = ordered_json::array();
};

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
  const bool together_only = std::getenv("MKRT_BENCH_TOGETHER") != nullptr;
  return report("decode", [&] { return Measurement(arguments[1], together_only).measure(contexts); });
}
