// trace PACKAGE [CONTEXT [static|dynamic]]: where the time of a decoded token goes, record by record.
//
// Decodes a few tokens in one execute and reads the trace of a step in the middle. A record's time is counted from the
// last signal of the record before it to its own last signal, so that the times of all records add up to the step. It
// is split by the last tile that came to each event: how long after the last signal the last tile saw its counters
// reached, had its inputs, had them prepared, had used its weights, had its sums, had stored them, had signalled.
// Records of one name in several layers are shown as one, by their medians.
#include <cstring>
#include <map>

#include "decoder.hpp"

namespace {

using namespace mkrt::bench;

constexpr uint32_t steps = 4;
constexpr uint32_t traced_step = 2;
constexpr uint32_t tiles_per_worker = 4096;

constexpr uint32_t events[] = {MKRT_TRACE_WAIT_END,    MKRT_TRACE_INPUTS,    MKRT_TRACE_PREPARED, MKRT_TRACE_CONSUMED,
                               MKRT_TRACE_STORE_BEGIN, MKRT_TRACE_STORE_END, MKRT_TRACE_SIGNALLED};
constexpr const char* event_names[] = {"waited", "inputs", "prepared", "consumed", "summed", "stored", "signalled"};
constexpr size_t event_count = sizeof events / sizeof events[0];

// Of one record: when the last tile came to each event, and how long tiles streamed their weights.
struct Times {
  uint32_t tiles = 0;
  uint64_t last[event_count] = {};
  std::vector<double> streaming;
};

std::map<uint32_t, Times> read_times(mkrt::Session& session, uint32_t workers) {
  std::map<uint32_t, Times> records;
  std::vector<mkrt_trace_tile> tiles(tiles_per_worker);
  for (uint32_t worker = 0; worker < workers; ++worker) {
    session.read_trace(worker, {tiles.data(), tiles.size()});
    for (const mkrt_trace_tile& tile : tiles) {
      if (tile.step != traced_step || tile.time[MKRT_TRACE_FETCHED] == 0) continue;
      Times& times = records[tile.record];
      ++times.tiles;
      for (size_t e = 0; e < event_count; ++e) times.last[e] = std::max(times.last[e], tile.time[events[e]]);
      if (tile.time[MKRT_TRACE_WEIGHTS_END] > tile.time[MKRT_TRACE_WEIGHTS_BEGIN]) {
        times.streaming.push_back(
            static_cast<double>(tile.time[MKRT_TRACE_WEIGHTS_END] - tile.time[MKRT_TRACE_WEIGHTS_BEGIN]) / 1e3);
      }
    }
  }
  return records;
}

// Records of one name: microseconds of each.
struct Row {
  uint32_t tiles = 0;
  std::vector<double> total, streaming;
  std::vector<double> part[event_count];
};

std::string short_name(std::string_view label) {
  const size_t dot = label.rfind('.');
  return std::string(dot == label.npos ? label : label.substr(dot + 1));
}

ordered_json report_rows(const std::vector<std::pair<std::string, Row>>& rows) {
  std::fprintf(stderr, "%-16s %5s %6s %8s", "record", "times", "tiles", "total us");
  for (const char* name : event_names) std::fprintf(stderr, " %9s", name);
  std::fprintf(stderr, " %9s\n", "streaming");
  ordered_json out = ordered_json::array();
  for (const auto& [name, row] : rows) {
    ordered_json parts;
    std::fprintf(stderr, "%-16s %5zu %6u %8.2f", name.c_str(), row.total.size(), row.tiles, percentile(row.total, 0.5));
    for (size_t e = 0; e < event_count; ++e) {
      const double part = percentile(row.part[e], 0.5);
      std::fprintf(stderr, " %9.2f", part);
      parts[event_names[e]] = part;
    }
    const double streaming = row.streaming.empty() ? 0 : percentile(row.streaming, 0.5);
    std::fprintf(stderr, " %9.2f\n", streaming);
    out.push_back({{"record", name},
                   {"times", row.total.size()},
                   {"tiles", row.tiles},
                   {"microseconds", percentile(row.total, 0.5)},
                   {"parts", parts},
                   {"streaming_microseconds_of_a_tile", streaming}});
  }
  return out;
}

ordered_json measure(const char* package, uint32_t context, uint32_t queue_mode) {
  Decoder decoder(package);
  decoder.fill(context);
  decoder.session().trace(tiles_per_worker);
  decoder.go_to(context);
  decoder.run(steps, queue_mode, Asking::together);
  const ordered_json device = decoder.describe_device();
  const std::map<uint32_t, Times> records = read_times(decoder.session(), device["sms"]);

  std::vector<std::pair<std::string, Row>> rows;
  double step_time = 0;
  uint64_t before = 0;
  for (const auto& [record, times] : records) {
    const uint64_t end = times.last[event_count - 1];
    if (before != 0) {
      const std::string name = short_name(decoder.program().record_info(0, record).label);
      auto found = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.first == name; });
      if (found == rows.end()) found = rows.insert(rows.end(), {name, Row()});
      Row& row = found->second;
      row.tiles = times.tiles;
      const double total = (static_cast<double>(end) - static_cast<double>(before)) / 1e3;
      row.total.push_back(total);
      step_time += total;
      row.streaming.insert(row.streaming.end(), times.streaming.begin(), times.streaming.end());
      // Events that a tile skips take no time.
      uint64_t at = before;
      for (size_t e = 0; e < event_count; ++e) {
        const uint64_t last = std::max(at, times.last[e]);
        row.part[e].push_back(static_cast<double>(last - at) / 1e3);
        at = last;
      }
    }
    before = end;
  }
  std::fprintf(stderr, "context %u, %s: %.1f us from the first record's last signal to the last one's\n", context,
               queue_mode == MKRT_QUEUE_STATIC ? "static" : "dynamic", step_time);
  return {{"benchmark", "trace"},      {"device", device},
          {"context", context},        {"queue", queue_mode == MKRT_QUEUE_STATIC ? "static" : "dynamic"},
          {"microseconds", step_time}, {"records", report_rows(rows)}};
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
