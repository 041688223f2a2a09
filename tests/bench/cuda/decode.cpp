// decode PACKAGE [CONTEXT...]: milliseconds a token of a compiled model, with CONTEXT tokens before it (128, 1024).
//
// The caches are filled by decoding random tokens, so that what is read is what a text leaves there. Three ways to ask
// for steps: many in one execute; one an execute, waiting for each; one an execute, up to 32 in flight. A step reads
// every weight matrix once and the cache of every position so far: that divided by the time is the rate. The device's
// read limit is measured before and after each.
#include "cli/device_read_limit.hpp"
#include "decoder.hpp"
#include "kernel_images.hpp"

namespace {

using namespace mkrt::bench;

constexpr uint32_t steps = 64;  // measured around a context
constexpr int repeats = 5;

constexpr const char* asking_names[] = {"many steps an execute", "one step an execute, waited for",
                                        "one step an execute, 32 in flight"};

ordered_json measure_one(Decoder& decoder, mkrt::cli::DeviceReadLimit& limit, uint32_t context, uint32_t queue_mode,
                         Asking asking) {
  const uint32_t first = context - steps / 2;
  std::vector<double> milliseconds;
  const double limit_before = limit.measure();
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
  const double read_limit = (limit_before + limit.measure()) / 2;
  const char* queue = queue_mode == MKRT_QUEUE_STATIC ? "static" : "dynamic";
  std::fprintf(stderr, "batch %2u context %5u %-7s %-33s %.4f ms a token, %.0f GB/s, %.1f %%\n",
               static_cast<unsigned>(decoder.batch), context, queue, asking_names[static_cast<int>(asking)], median,
               rate / 1e9, rate / read_limit * 100);
  return {{"context", context},
          {"batch", decoder.batch},
          {"queue", queue},
          {"asking", asking_names[static_cast<int>(asking)]},
          {"ms_per_token", summary(milliseconds)},
          {"weight_bytes", decoder.weight_bytes},
          {"cache_bytes", cache_bytes},
          {"gigabytes_per_second", rate / 1e9},
          {"read_limit_gigabytes_per_second", read_limit / 1e9},
          {"share_of_read_limit", rate / read_limit}};
}

ordered_json measure(const char* package, const std::vector<uint32_t>& contexts) {
  Decoder decoder(package);
  mkrt::cli::DeviceReadLimit limit({cuda()}, mkrt::test::kernel_images("mkrt_read"));
  for (const uint32_t context : contexts) {
    if (context < steps / 2 || context + steps / 2 >= decoder.context) {
      throw std::runtime_error("context " + std::to_string(context) + " does not fit the package's " +
                               std::to_string(decoder.context));
    }
  }
  decoder.fill(*std::max_element(contexts.begin(), contexts.end()) + steps / 2);
  ordered_json results = ordered_json::array();
  for (const uint32_t context : contexts) {
    for (const uint32_t queue_mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      for (const Asking asking : {Asking::together, Asking::one_by_one, Asking::ahead}) {
        results.push_back(measure_one(decoder, limit, context, queue_mode, asking));
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
