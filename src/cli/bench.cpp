#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.hpp"
#include "cli/device_read_limit.hpp"
#include "cli/error.hpp"
#include "cli/format.hpp"
#include "cli/images.hpp"
#include "cli/output.hpp"
#include "cli/percentile.hpp"
#include "cli/progress.hpp"
#include "cli/read_limit.hpp"
#include "cli/trace_report.hpp"

namespace mkrt::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

// No round begins that would end later than this: who waits longer for a figure stops the program.
constexpr double kLongestSeconds = 30;

// Steps of a traced execute. A launch's start and end, some microseconds, count for a quarter in a step's time; a trace
// of a model of eight billion parameters takes some hundred megabytes.
constexpr uint32_t kTracedSteps = 4;

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

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// One kind of execute in one round, and how fast the machine's memory was just then.
struct Part {
  std::vector<double> step_seconds;  // of each execute
  double read_limit = 0;             // bytes a second, the mean of before and after
};

struct Measurement {
  std::vector<double> read_limits;
  std::vector<Part> single, many;  // by round
};

// Runs `steps` steps in executes of one step each; the seconds that each took.
std::vector<double> time_single_steps(Decoder& decoder, uint32_t position, uint32_t steps) {
  decoder.start_all(position);
  std::vector<double> samples;
  for (uint32_t i = 0; i < steps; ++i) {
    const Clock::time_point start = Clock::now();
    decoder.run(1);
    samples.push_back(seconds_since(start));
  }
  return samples;
}

// Runs `steps` steps in one execute; the seconds a step.
double time_long_execute(Decoder& decoder, uint32_t position, uint32_t steps) {
  decoder.start_all(position);
  const Clock::time_point start = Clock::now();
  decoder.run(steps);
  return seconds_since(start) / steps;
}

// Rounds of: the read limit, a share of the single steps, the read limit, one execute of all steps. A machine that
// others use too changes its pace within seconds, by half and more; what is compared is measured next to each other.
Measurement measure(Decoder& decoder, const BenchOptions& options, const std::function<double()>& measure_read_limit) {
  Measurement out;
  const auto look_at_limit = [&] { out.read_limits.push_back(measure_read_limit()); };
  // The mean of the last two looks.
  const auto limit_around = [&] {
    const size_t count = out.read_limits.size();
    return (out.read_limits[count - 2] + out.read_limits[count - 1]) / 2;
  };
  Progress progress("measuring");
  uint32_t single_steps = 0;
  const Clock::time_point begin = Clock::now();
  look_at_limit();
  for (uint32_t round = 0; round < options.repeats; ++round) {
    // Rounds take about equally long; the first always happens.
    if (round > 0 && seconds_since(begin) * (round + 1) / round > kLongestSeconds) break;
    // As evenly as it goes; a round may have none where there are more rounds than steps.
    const auto end = static_cast<uint32_t>(uint64_t{options.tokens} * (round + 1) / options.repeats);
    if (end > single_steps) {
      Part part{time_single_steps(decoder, options.position + single_steps, end - single_steps)};
      look_at_limit();
      part.read_limit = limit_around();
      out.single.push_back(std::move(part));
      single_steps = end;
    }
    Part part{{time_long_execute(decoder, options.position, options.tokens)}};
    look_at_limit();
    part.read_limit = limit_around();
    out.many.push_back(std::move(part));
    progress.update(round + 1, options.repeats);
  }
  return out;
}

// All figures are medians, but for what is called otherwise.
ordered_json summarize(const std::vector<Part>& parts, uint32_t steps_per_execute, uint32_t batch,
                       const StepBytes& bytes) {
  const double step_bytes = static_cast<double>(bytes.weights) + bytes.cache;
  std::vector<double> step_seconds, shares;
  for (const Part& part : parts) {
    step_seconds.insert(step_seconds.end(), part.step_seconds.begin(), part.step_seconds.end());
    shares.push_back(step_bytes / median(part.step_seconds) / part.read_limit);
  }
  double total = 0;
  for (const double seconds : step_seconds) total += seconds;
  const double middle = median(step_seconds);
  ordered_json out;
  out["steps_per_execute"] = steps_per_execute;
  out["executes"] = step_seconds.size();
  out["tokens_per_second"] = batch / middle;
  // A step makes a token of each sequence, so this is what each sequence waits for its next token.
  out["ms_per_token"] = {{"p50", middle * 1e3},
                         {"p95", percentile(step_seconds, 0.95) * 1e3},
                         {"mean", total / static_cast<double>(step_seconds.size()) * 1e3}};
  out["bytes_read_per_second"] = step_bytes / middle;
  out["share_of_read_limit"] = median(shares);
  out["share_of_read_limit_by_round"] = shares;
  return out;
}

std::string describe(const ordered_json& figures) {
  const ordered_json& ms = figures["ms_per_token"];
  const std::string text = format_number(figures["tokens_per_second"], 1) + " tokens/s, " +
                           format_number(ms["p50"], 3) + " ms a token (p95 " + format_number(ms["p95"], 3) + "), " +
                           format_bytes(static_cast<uint64_t>(figures["bytes_read_per_second"].get<double>())) +
                           "/s read";
  return text + ", " + format_number(figures["share_of_read_limit"].get<double>() * 100, 1) + " % of the read limit";
}

std::string to_text(const ordered_json& report, bool with_records) {
  const ordered_json& device = report["device"];
  const auto limit = static_cast<uint64_t>(report["read_limit_bytes_per_second"].get<double>());
  const auto bytes = static_cast<uint64_t>(report["bytes_read_per_token"].get<double>());
  std::string text = device["name"].get<std::string>() + ", " + device["workers"].dump() + " workers, " +
                     report["queue"].get<std::string>() + " queue, batch " + report["batch"].dump() +
                     ", from position " + report["position"].dump() + "; medians\n" + "bytes read a token         " +
                     format_bytes(bytes) + "\nread limit                 " + format_bytes(limit) + "/s" +
                     "\none step an execute        " + describe(report["one_step_per_execute"]) +
                     "\nmany steps an execute      " + describe(report["many_steps_per_execute"]) + "\n";
  if (!report["memory"].is_null()) text += "a traced step              " + memory_text(report["memory"]) + "\n";
  if (with_records && !report["records"].is_null()) text += record_text(report["records"]);
  if (report["fits_last_level_cache"] == true) {
    text += "remark                     the last-level cache holds " +
            format_bytes(report["last_level_cache_bytes"].get<uint64_t>()) +
            ", all that a step reads: shares of the memory's read limit say little\n";
  }
  return text;
}

// Where the time of a step goes, from a trace of a few of them in one execute.
void add_trace(Decoder& decoder, uint32_t position, ordered_json& out_report) {
  const std::vector<WorkerTrace> workers = decoder.trace(position, kTracedSteps);
  out_report["memory"] = memory_report(workers, kTracedSteps);
  const uint32_t entry = decoder.program().find_entry("decode");
  out_report["records"] = record_report(
      workers, [&](uint32_t record) { return std::string(decoder.program().record_info(entry, record).label); });
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) throw Error(path + " cannot be written");
}

std::vector<compile::ImageFile> find_read_images() {
  const std::string folder = own_image_folder(kReadKernel);
  if (folder.empty()) {
    throw Error("the read limit of a GPU cannot be measured: no " + std::string(kReadKernel) +
                ".TARGET.cubin was built or installed with this tool");
  }
  return find_images(folder, kReadKernel);
}

// What measures the memory of the decoder's devices, each time that it is called.
std::function<double()> read_limit_of(const Decoder& decoder, RunOptions options) {
  const DeviceInfo device = decoder.mesh().device_info();
  const uint32_t ranks = decoder.mesh().rank_count();
  if (device.kind == MKRT_DEVICE_HOST) {
    return [limit = std::make_shared<ReadLimit>(device.worker_count * ranks)] { return limit->measure(); };
  }
  options.device = device_option(device);
  return [limit = std::make_shared<DeviceReadLimit>(describe_ranks(options, ranks), find_read_images())] {
    return limit->measure();
  };
}

void check_room(const Decoder& decoder, const BenchOptions& options, uint32_t traced_steps) {
  const uint32_t steps = std::max({options.tokens, options.warm_up, traced_steps});
  if (uint64_t{options.position} + steps < decoder.context()) return;
  throw Error("the package's context of " + std::to_string(decoder.context()) + " does not hold " +
              std::to_string(steps) + " tokens from position " + std::to_string(options.position));
}

BenchOptions with_position(BenchOptions options) {
  if (!options.around) return options;
  if (*options.around < options.tokens / 2) {
    throw Error("--around " + std::to_string(*options.around) + " leaves no room for half of " +
                std::to_string(options.tokens) + " tokens before it");
  }
  options.position = *options.around - options.tokens / 2;
  return options;
}

}  // namespace

int bench(const BenchOptions& asked) {
  const BenchOptions options = with_position(asked);
  Interrupt interrupt;
  Decoder decoder(options.package, options.run, interrupt);
  const Program& program = decoder.program();
  const uint32_t steps = options.tokens;
  const DeviceInfo device = decoder.mesh().device_info();
  const bool on_host = device.kind == MKRT_DEVICE_HOST;
  check_room(decoder, options, on_host ? 0 : kTracedSteps);
  const std::function<double()> read_limit = read_limit_of(decoder, options.run);

  time_single_steps(decoder, options.position, options.warm_up);
  const Measurement measured = measure(decoder, options, read_limit);

  // The mean position of the measured steps stands for all of them.
  const double position = options.position + (steps - 1) / 2.0;
  const StepBytes bytes = {weight_bytes_read(program, program.find_entry("decode"), decoder.vocabulary()),
                           cache_bytes_read(program, decoder.batch(), position)};
  const double step_bytes = static_cast<double>(bytes.weights) + bytes.cache;
  const uint64_t cache = on_host ? last_level_cache_bytes() : 0;
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
  report["bytes_read_per_token"] = step_bytes / decoder.batch();
  report["last_level_cache_bytes"] = cache > 0 ? ordered_json(cache) : ordered_json(nullptr);
  report["fits_last_level_cache"] =
      cache > 0 ? ordered_json(step_bytes <= static_cast<double>(cache)) : ordered_json(nullptr);
  report["read_limit_bytes_per_second"] = median(measured.read_limits);
  report["one_step_per_execute"] = summarize(measured.single, 1, decoder.batch(), bytes);
  report["many_steps_per_execute"] = summarize(measured.many, steps, decoder.batch(), bytes);
  report["memory"] = report["records"] = nullptr;  // the host device does not trace
  if (!on_host) add_trace(decoder, options.position, report);

  const std::string json = report.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (options.json == "-") {
    print(json);
  } else {
    if (!options.json.empty()) write_file(options.json, json);
    print(to_text(report, options.records));
  }
  return 0;
}

}  // namespace mkrt::cli
