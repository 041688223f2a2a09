#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/error.hpp"
#include "cli/format.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/read_limit.hpp"

namespace mkrt::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

// Bytes that one step must read from memory, on all ranks together.
struct StepBytes {
  uint64_t weights = 0;
  double cache = 0;
};

// Every weight is read once a step, whatever the batch. A token table of its own is the exception: a step looks up one
// row of it for each sequence. (What records declare would count a norm once for each tile that reads it, although all
// but the first reading come out of a cache.)
uint64_t weight_bytes_read(const Program& program, uint32_t entry, uint32_t vocabulary) {
  const ProgramInfo info = program.info();
  uint64_t bytes = info.weight_bytes;
  // Several ranks divide the table by columns and the head by rows: tied ones are two there.
  if (info.rank_count == 1 && metadata(program, "tied_embeddings") == "true") return bytes;
  for (uint32_t i = 0; i < program.entry_info(entry).record_count; ++i) {
    const RecordInfo record = program.record_info(entry, i);
    if (record.opcode != "embed" || record.tile_count == 0) continue;
    const uint64_t table = record.bytes_read / record.tile_count;  // each tile declares all of it
    bytes = bytes - std::min(bytes, table) + table / vocabulary * record.tile_count;
  }
  return bytes * info.rank_count;
}

// At `position` a layer reads that many rows of keys and of values, for each key-value head of each sequence; f16.
// Ranks have equally many heads each, if need be some of them twice.
double cache_bytes_read(const Program& program, uint32_t batch, double position) {
  const uint64_t ranks = program.info().rank_count;
  const uint64_t heads = (metadata_number(program, "kv_heads") + ranks - 1) / ranks * ranks;
  const uint64_t row =
      metadata_number(program, "layers") * heads * metadata_number(program, "head_size") * 2 * sizeof(uint16_t);
  return static_cast<double>(row) * batch * position;
}

// The sample below which a share of `part` of all samples lies.
double percentile(std::vector<double> samples, double part) {
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(samples.size())));
  return samples[std::clamp<size_t>(rank, 1, samples.size()) - 1];
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs `steps` steps in executes of one step each; the seconds that each took.
std::vector<double> time_single_steps(Decoder& decoder, uint32_t position, uint32_t steps, const char* label) {
  decoder.start_all(position);
  Progress progress(label);
  std::vector<double> samples;
  for (uint32_t i = 0; i < steps; ++i) {
    const Clock::time_point start = Clock::now();
    decoder.run(1);
    samples.push_back(seconds_since(start));
    progress.update(i + 1, steps);
  }
  return samples;
}

// Runs `steps` steps in one execute, `repeats` times; the seconds a step of each.
std::vector<double> time_long_executes(Decoder& decoder, uint32_t position, uint32_t steps, uint32_t repeats,
                                       double expected_step_seconds) {
  Progress progress("many steps in one execute");
  std::vector<double> samples;
  for (uint32_t i = 0; i < repeats; ++i) {
    decoder.start_all(position);
    const double expected = steps * (samples.empty() ? expected_step_seconds : samples.back());
    const Clock::time_point start = Clock::now();
    decoder.run(steps, [&](double seconds) {
      const double done = i + std::min(seconds / expected, 1.0);
      progress.update(static_cast<uint64_t>(done * 1000), uint64_t{repeats} * 1000);
    });
    samples.push_back(seconds_since(start) / steps);
  }
  return samples;
}

// `step_seconds`: one sample for each execute, seconds a step. `limit`: bytes a second, 0 where it is not known.
ordered_json summarize(const std::vector<double>& step_seconds, uint32_t steps_per_execute, uint32_t batch,
                       const StepBytes& bytes, double limit) {
  double total = 0;
  for (const double seconds : step_seconds) total += seconds;
  const double mean = total / static_cast<double>(step_seconds.size());
  const double median = percentile(step_seconds, 0.5);
  const double rate = (static_cast<double>(bytes.weights) + bytes.cache) / median;
  ordered_json out;
  out["steps_per_execute"] = steps_per_execute;
  out["executes"] = step_seconds.size();
  out["tokens_per_second"] = batch / mean;
  // A step makes a token of each sequence, so this is what each sequence waits for its next token.
  out["ms_per_token"] = {{"mean", mean * 1e3}, {"p50", median * 1e3}, {"p95", percentile(step_seconds, 0.95) * 1e3}};
  out["bytes_read_per_second"] = rate;
  out["share_of_read_limit"] = limit > 0 ? ordered_json(rate / limit) : ordered_json(nullptr);
  return out;
}

std::string describe(const ordered_json& figures) {
  const ordered_json& ms = figures["ms_per_token"];
  std::string text = format_number(figures["tokens_per_second"], 1) + " tokens/s, " + format_number(ms["p50"], 3) +
                     " ms a token (p95 " + format_number(ms["p95"], 3) + "), " +
                     format_bytes(static_cast<uint64_t>(figures["bytes_read_per_second"].get<double>())) + "/s read";
  if (!figures["share_of_read_limit"].is_null()) {
    text += ", " + format_number(figures["share_of_read_limit"].get<double>() * 100, 1) + " % of the read limit";
  }
  return text;
}

std::string to_text(const ordered_json& report) {
  const ordered_json& device = report["device"];
  const ordered_json& limit = report["read_limit_bytes_per_second"];
  const auto bytes = static_cast<uint64_t>(report["bytes_read_per_token"].get<double>());
  return device["name"].get<std::string>() + ", " + device["workers"].dump() + " workers, " +
         report["queue"].get<std::string>() + " queue, batch " + report["batch"].dump() + ", from position " +
         report["position"].dump() + "\n" + "bytes read a token         " + format_bytes(bytes) +
         "\nread limit                 " +
         (limit.is_null() ? "not measured on this device"
                          : format_bytes(static_cast<uint64_t>(limit.get<double>())) + "/s") +
         "\none step an execute        " + describe(report["one_step_per_execute"]) + "\nmany steps an execute      " +
         describe(report["many_steps_per_execute"]) + "\n";
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) throw Error(path + " cannot be written");
}

}  // namespace

int bench(const BenchOptions& options) {
  Interrupt interrupt;
  Decoder decoder(options.package, options.run, interrupt);
  const Program& program = decoder.program();
  const uint32_t steps = options.tokens;
  if (uint64_t{options.position} + std::max(steps, options.warm_up) >= decoder.context()) {
    throw Error("the package's context of " + std::to_string(decoder.context()) + " does not hold " +
                std::to_string(std::max(steps, options.warm_up)) + " tokens from position " +
                std::to_string(options.position));
  }
  const DeviceInfo device = decoder.mesh().device_info();
  const uint32_t threads = device.worker_count * decoder.mesh().rank_count();
  const bool on_host = device.kind == MKRT_DEVICE_HOST;

  // The limit before and after: on a machine that others use too, one of the two may meet a bad moment.
  double limit = on_host ? measure_read_limit(threads) : 0;
  time_single_steps(decoder, options.position, options.warm_up, "warming up");
  const std::vector<double> single = time_single_steps(decoder, options.position, steps, "one step an execute");
  const std::vector<double> many =
      time_long_executes(decoder, options.position, steps, options.repeats, percentile(single, 0.5));
  if (on_host) limit = std::max(limit, measure_read_limit(threads));

  // The mean position of the measured steps stands for all of them.
  const double position = options.position + (steps - 1) / 2.0;
  const StepBytes bytes = {weight_bytes_read(program, program.find_entry("decode"), decoder.vocabulary()),
                           cache_bytes_read(program, decoder.batch(), position)};
  ordered_json report;
  report["package"] = options.package;
  report["device"] = {{"kind", device_kind_name(device.kind)},
                      {"name", device.name},
                      {"target", device.target},
                      {"workers", device.worker_count},
                      {"ranks", decoder.mesh().rank_count()}};
  report["queue"] = options.run.queue;
  report["batch"] = decoder.batch();
  report["position"] = options.position;
  report["warm_up_steps"] = options.warm_up;
  report["weight_bytes_read_per_step"] = bytes.weights;
  report["cache_bytes_read_per_step"] = bytes.cache;
  report["bytes_read_per_token"] = (static_cast<double>(bytes.weights) + bytes.cache) / decoder.batch();
  report["read_limit_bytes_per_second"] = on_host ? ordered_json(limit) : ordered_json(nullptr);
  report["one_step_per_execute"] = summarize(single, 1, decoder.batch(), bytes, limit);
  report["many_steps_per_execute"] = summarize(many, steps, decoder.batch(), bytes, limit);

  const std::string json = report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (options.json == "-") {
    print(json);
  } else {
    if (!options.json.empty()) write_file(options.json, json);
    print(to_text(report));
  }
  return 0;
}

}  // namespace mkrt::cli
