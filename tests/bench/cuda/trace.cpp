// trace PACKAGE [CONTEXT [static|dynamic]]: where the time of a decoded token goes, as `mkrt bench` says it: when no
// weights were on their way to a block and why, and record by record (src/cli/README.md).
#include <cstring>

#include "cli/trace_report.hpp"
#include "decoder.hpp"

namespace {

using namespace mkrt::bench;

constexpr uint32_t steps = 4;
constexpr uint32_t tiles_per_worker = 16384;

std::vector<mkrt::cli::WorkerTrace> read_traces(mkrt::Session& session, uint32_t workers) {
  std::vector<mkrt::cli::WorkerTrace> traces(workers);
  for (uint32_t worker = 0; worker < workers; ++worker) {
    mkrt::cli::WorkerTrace& tiles = traces[worker];
    tiles.resize(tiles_per_worker);
    session.read_trace(worker, tiles);
    const auto end = std::find_if(tiles.begin(), tiles.end(),
                                  [](const mkrt_trace_tile& tile) { return tile.time[MKRT_TRACE_FETCHED] == 0; });
    if (end == tiles.end()) throw std::runtime_error("a block ran more tiles than are traced");
    tiles.erase(end, tiles.end());
  }
  return traces;
}

ordered_json measure(const char* package, uint32_t context, uint32_t queue_mode) {
  Decoder decoder(package);
  decoder.fill(context);
  decoder.session().trace(tiles_per_worker);
  decoder.go_to(context);
  decoder.run(steps, queue_mode, Asking::together);
  const ordered_json device = decoder.describe_device();
  const std::vector<mkrt::cli::WorkerTrace> traces = read_traces(decoder.session(), device["sms"]);
  const ordered_json memory = mkrt::cli::memory_report(traces, steps);
  const ordered_json records = mkrt::cli::record_report(
      traces, [&](uint32_t record) { return std::string(decoder.program().record_info(0, record).label); });
  const char* queue = queue_mode == MKRT_QUEUE_STATIC ? "static" : "dynamic";
  std::fprintf(stderr, "context %u, %s: %s\n%s", context, queue, mkrt::cli::memory_text(memory).c_str(),
               mkrt::cli::record_text(records).c_str());
  return {{"benchmark", "trace"}, {"device", device}, {"context", context},
          {"queue", queue},       {"memory", memory}, {"records", records}};
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: trace PACKAGE [CONTEXT [static|dynamic]]\n");
    return 2;
  }
  const auto context = static_cast<uint32_t>(argument_count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 128);
  const bool dynamic = argument_count > 3 && std::strcmp(arguments[3], "dynamic") == 0;
  return report("trace",
                [&] { return measure(arguments[1], context, dynamic ? MKRT_QUEUE_DYNAMIC : MKRT_QUEUE_STATIC); });
}
