#include "cli/trace_report.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "cli/format.hpp"
#include "cli/percentile.hpp"

namespace mkrt::cli {
namespace {

using nlohmann::ordered_json;

double microseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

std::string last_part(const std::string& label) { return label.substr(label.rfind('.') + 1); }

// Records of one name: microseconds of each.
struct Row {
  std::string name;
  uint32_t tiles = 0;
  std::vector<double> total, streaming;
  std::array<std::vector<double>, kRecordParts> parts;
};

std::vector<Row> join_records(std::span<const WorkerTrace> workers,
                              const std::function<std::string(uint32_t)>& label_of) {
  std::vector<Row> rows;
  for (const RecordTimes& record : record_times(workers)) {
    const std::string name = last_part(label_of(record.record));
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& one) { return one.name == name; });
    if (row == rows.end()) {
      row = rows.emplace(row);
      row->name = name;
    }
    row->tiles = record.tiles;
    row->total.push_back(microseconds(record.total));
    for (size_t e = 0; e < kRecordParts; ++e) row->parts[e].push_back(microseconds(record.parts[e]));
    for (const uint64_t time : record.streaming) row->streaming.push_back(microseconds(time));
  }
  return rows;
}

}  // namespace

ordered_json memory_report(std::span<const WorkerTrace> workers, uint32_t steps) {
  const Window window = window_of(workers);
  MemoryTimes sum;
  for (const WorkerTrace& tiles : workers) {
    const MemoryTimes times = memory_times(tiles, window);
    sum.streaming += times.streaming;
    for (size_t i = 0; i < kIdleCauses; ++i) sum.idle[i] += times.idle[i];
  }
  const auto mean = [&](uint64_t time) { return microseconds(time) / static_cast<double>(workers.size()) / steps; };
  ordered_json out = {{"steps", steps},
                      {"microseconds", microseconds(window.end - window.begin) / steps},
                      {"streaming", mean(sum.streaming)}};
  for (size_t i = 0; i < kIdleCauses; ++i) out["idle"][kIdleNames[i]] = mean(sum.idle[i]);
  return out;
}

std::string memory_text(const ordered_json& report) {
  std::string text = format_number(report["microseconds"], 1) + " us a step: weights on their way " +
                     format_number(report["streaming"], 1) + "; none because of";
  const char* separator = " ";
  for (const auto& [cause, time] : report["idle"].items()) {
    std::string words = cause;
    std::replace(words.begin(), words.end(), '_', ' ');
    text += separator + words + " " + format_number(time, 1);
    separator = ", ";
  }
  return text;
}

ordered_json record_report(std::span<const WorkerTrace> workers, const std::function<std::string(uint32_t)>& label_of) {
  ordered_json out = ordered_json::array();
  for (const Row& row : join_records(workers, label_of)) {
    ordered_json parts;
    for (size_t e = 0; e < kRecordParts; ++e) parts[kRecordPartNames[e]] = median(row.parts[e]);
    out.push_back({{"record", row.name},
                   {"times", row.total.size()},
                   {"tiles", row.tiles},
                   {"microseconds", median(row.total)},
                   {"parts", parts},
                   {"streaming_microseconds_of_a_tile", row.streaming.empty() ? 0.0 : median(row.streaming)}});
  }
  return out;
}

std::string record_text(const ordered_json& report) {
  std::vector<std::vector<std::string>> table = {{"record", "times", "tiles", "us"}};
  table.front().insert(table.front().end(), std::begin(kRecordPartNames), std::end(kRecordPartNames));
  table.front().push_back("streaming");
  for (const ordered_json& record : report) {
    std::vector<std::string> row = {record["record"], record["times"].dump(), record["tiles"].dump(),
                                    format_number(record["microseconds"], 2)};
    for (const ordered_json& part : record["parts"]) row.push_back(format_number(part, 2));
    row.push_back(format_number(record["streaming_microseconds_of_a_tile"], 2));
    table.push_back(std::move(row));
  }
  return format_table(table);
}

}  // namespace mkrt::cli
