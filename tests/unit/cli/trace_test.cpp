#include <doctest/doctest.h>

#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cli/trace_figures.hpp"
#include "cli/trace_report.hpp"

namespace {

using namespace mkrt::cli;
using Events = std::vector<std::pair<uint32_t, uint64_t>>;

mkrt_trace_tile tile(const Events& events, uint32_t record = 0, uint32_t step = 0) {
  mkrt_trace_tile out{};
  out.record = record;
  out.step = step;
  for (const auto& [event, time] : events) out.time[event] = time;
  return out;
}

uint64_t whole(const MemoryTimes& times) {
  return std::accumulate(times.idle.begin(), times.idle.end(), times.streaming);
}

uint64_t idle(const MemoryTimes& times, Idle cause) { return times.idle[static_cast<size_t>(cause)]; }

// A tile with weights whose role in the block takes a moment each, from `time` on; inputs at once.
mkrt_trace_tile quick_tile(uint64_t time) {
  return tile({{MKRT_TRACE_FETCHED, time},
               {MKRT_TRACE_WEIGHTS_BEGIN, time + 1},
               {MKRT_TRACE_WEIGHTS_END, time + 8},
               {MKRT_TRACE_INPUTS, time + 2},
               {MKRT_TRACE_CONSUMED, time + 9},
               {MKRT_TRACE_SIGNALLED, time + 10}});
}

}  // namespace

TEST_CASE("a worker without tiles has nothing but a tail") {
  const MemoryTimes times = memory_times({}, {100, 350});
  CHECK(times.streaming == 0);
  CHECK(idle(times, Idle::tail) == 250);
  CHECK(whole(times) == 250);
}

TEST_CASE("a launch's start is fetch, and what follows the last weights is tail") {
  mkrt_trace_tile only = quick_tile(110);
  only.time[MKRT_TRACE_DRAINED] = 130;
  const MemoryTimes times = memory_times({only}, {100, 200});
  CHECK(idle(times, Idle::fetch) == 11);
  CHECK(times.streaming == 19);
  CHECK(idle(times, Idle::tail) == 70);
  CHECK(whole(times) == 100);
}

TEST_CASE("where nothing says when the last weights came, they had come when they were used") {
  const MemoryTimes times = memory_times({quick_tile(110)}, {100, 200});
  CHECK(times.streaming == 119 - 111);
  CHECK(idle(times, Idle::tail) == 81);
}

TEST_CASE("a full ring is a dependency while the consumers wait, and a full ring while they work") {
  // Fetched at 100 and asked for at 101; the ring is full and all has come at 120; inputs come at 150, room at 170.
  const WorkerTrace tiles = {tile({{MKRT_TRACE_FETCHED, 100},
                                   {MKRT_TRACE_WEIGHTS_BEGIN, 101},
                                   {MKRT_TRACE_STALL_BEGIN, 120},
                                   {MKRT_TRACE_STALL_END, 170},
                                   {MKRT_TRACE_WEIGHTS_END, 180},
                                   {MKRT_TRACE_INPUTS, 150},
                                   {MKRT_TRACE_CONSUMED, 190},
                                   {MKRT_TRACE_DRAINED, 185},
                                   {MKRT_TRACE_SIGNALLED, 200}})};
  const MemoryTimes times = memory_times(tiles, {100, 200});
  CHECK(idle(times, Idle::fetch) == 1);
  CHECK(idle(times, Idle::dependency) == 30);
  CHECK(idle(times, Idle::ring_full) == 20);
  CHECK(times.streaming == 19 + 15);
  CHECK(idle(times, Idle::tail) == 15);
  CHECK(whole(times) == 100);
}

TEST_CASE("consumers that are busy with the tile before do not wait for the next one's inputs") {
  mkrt_trace_tile first = quick_tile(100);
  first.time[MKRT_TRACE_CONSUMED] = 160;  // the second tile's inputs are taken when the first is done
  first.time[MKRT_TRACE_SIGNALLED] = 162;
  mkrt_trace_tile second = tile({{MKRT_TRACE_FETCHED, 105},
                                 {MKRT_TRACE_WEIGHTS_BEGIN, 108},
                                 {MKRT_TRACE_STALL_BEGIN, 120},
                                 {MKRT_TRACE_STALL_END, 158},
                                 {MKRT_TRACE_WEIGHTS_END, 159},
                                 {MKRT_TRACE_INPUTS, 161},
                                 {MKRT_TRACE_CONSUMED, 170},
                                 {MKRT_TRACE_SIGNALLED, 171}});
  const MemoryTimes times = memory_times({first, second}, {100, 171});
  CHECK(idle(times, Idle::ring_full) == 38);
  CHECK(idle(times, Idle::dependency) == 0);
  CHECK(whole(times) == 71);
}

TEST_CASE("without a free slot the ring runs empty, for the consumers' waits or their work; with one it is fetch") {
  WorkerTrace tiles;
  // Three quick tiles, and a fourth and fifth whose inputs come late; a slot is free when the first leaves.
  for (const uint64_t time : {100, 103, 106}) tiles.push_back(quick_tile(time));
  tiles[0].time[MKRT_TRACE_SIGNALLED] = 170;
  tiles.push_back(tile({{MKRT_TRACE_FETCHED, 109},
                        {MKRT_TRACE_WEIGHTS_BEGIN, 112},
                        {MKRT_TRACE_WEIGHTS_END, 118},
                        {MKRT_TRACE_DRAINED, 130},
                        {MKRT_TRACE_INPUTS, 150},
                        {MKRT_TRACE_CONSUMED, 165},
                        {MKRT_TRACE_SIGNALLED, 175}}));
  tiles.push_back(tile({{MKRT_TRACE_FETCHED, 174},
                        {MKRT_TRACE_WEIGHTS_BEGIN, 180},
                        {MKRT_TRACE_WEIGHTS_END, 190},
                        {MKRT_TRACE_INPUTS, 181},
                        {MKRT_TRACE_CONSUMED, 192},
                        {MKRT_TRACE_DRAINED, 191},
                        {MKRT_TRACE_SIGNALLED, 195}}));
  const MemoryTimes times = memory_times(tiles, {101, 200});
  CHECK(idle(times, Idle::dependency) == 20);  // 130 to 150
  CHECK(idle(times, Idle::ring_empty) == 20);  // to 170
  CHECK(idle(times, Idle::fetch) == 10);       // to 180
  CHECK(times.streaming == 29 + 11);
  CHECK(idle(times, Idle::tail) == 9);
  CHECK(whole(times) == 99);
}

TEST_CASE("tiles without weights do not end an idle time, and none begins while pages are on their way") {
  mkrt_trace_tile first = quick_tile(100);
  first.time[MKRT_TRACE_DRAINED] = 112;
  mkrt_trace_tile small = tile({{MKRT_TRACE_FETCHED, 120},
                                {MKRT_TRACE_WEIGHTS_BEGIN, 122},
                                {MKRT_TRACE_DRAINED, 123},
                                {MKRT_TRACE_INPUTS, 140},
                                {MKRT_TRACE_CONSUMED, 142},
                                {MKRT_TRACE_SIGNALLED, 143}});
  mkrt_trace_tile last = quick_tile(150);
  last.time[MKRT_TRACE_DRAINED] = 160;
  CHECK(memory_times({first, small, last}, {100, 160}).streaming == 11 + 9);
  // The first tile's weights are still on their way when the small one has been passed.
  first.time[MKRT_TRACE_DRAINED] = 0;
  const MemoryTimes times = memory_times({first, small, last}, {100, 160});
  CHECK(times.streaming == 22 + 9);
  CHECK(idle(times, Idle::fetch) == 1 + (151 - 123));
}

TEST_CASE("a breakdown adds up exactly, whatever a trace holds") {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 2000; ++round) {
    WorkerTrace tiles(random() % 12);
    for (mkrt_trace_tile& one : tiles) {
      for (uint64_t& time : one.time) time = random() % 4 == 0 ? 0 : 1000 + random() % 300;
    }
    const Window window{1000 + random() % 100, 1200 + random() % 200};
    REQUIRE(whole(memory_times(tiles, window)) == window.end - window.begin);
  }
}

TEST_CASE("the window reaches from the first event to the last, and a report's parts add up to it") {
  mkrt_trace_tile early = quick_tile(1000), late = quick_tile(5000);
  early.time[MKRT_TRACE_DRAINED] = 1200;
  const std::vector<WorkerTrace> workers = {{early}, {}, {late}};
  const Window window = window_of(workers);
  CHECK(window.begin == 1000);
  CHECK(window.end == 5010);
  CHECK(window_of(std::vector<WorkerTrace>(2)).end == 0);
  const auto report = memory_report(workers, 2);
  CHECK(report["microseconds"].get<double>() == doctest::Approx(4.010 / 2));
  double sum = report["streaming"].get<double>();
  for (const auto& time : report["idle"]) sum += time.get<double>();
  CHECK(sum == doctest::Approx(4.010 / 2));
  CHECK(report["idle"].size() == kIdleCauses);
  CHECK(memory_text(report).find("ring empty") != std::string::npos);
}

TEST_CASE("records' times add up from the first one's last signal to the last one's") {
  const auto at = [](uint64_t waited, uint64_t consumed, uint64_t signalled, uint32_t record, uint32_t step) {
    return tile({{MKRT_TRACE_WEIGHTS_BEGIN, 10},
                 {MKRT_TRACE_WEIGHTS_END, 14},
                 {MKRT_TRACE_WAIT_END, waited},
                 {MKRT_TRACE_CONSUMED, consumed},
                 {MKRT_TRACE_SIGNALLED, signalled}},
                record, step);
  };
  const std::vector<WorkerTrace> workers = {{at(20, 25, 30, 0, 0), at(35, 50, 60, 1, 0), at(65, 66, 67, 0, 1)},
                                            {at(20, 26, 40, 0, 0), at(42, 45, 55, 1, 0)}};
  const std::vector<RecordTimes> records = record_times(workers);
  REQUIRE(records.size() == 2);  // nothing is before the first
  CHECK(records[0].record == 1);
  CHECK(records[0].tiles == 2);
  CHECK(records[0].total == 20);
  CHECK(records[0].parts[0] == 2);  // waited
  CHECK(records[0].parts[1] == 0);  // an event that no tile has
  CHECK(records[0].parts[3] == 8);  // consumed
  CHECK(records[0].parts[6] == 10);
  CHECK(records[0].streaming == std::vector<uint64_t>{4, 4});
  CHECK(records[1].step == 1);
  CHECK(records[1].total == 7);

  const auto report = record_report(workers, [](uint32_t record) { return record == 0 ? "embed" : "l0.qkv"; });
  REQUIRE(report.size() == 2);
  CHECK(report[0]["record"] == "qkv");
  CHECK(report[0]["microseconds"].get<double>() == doctest::Approx(0.020));
  CHECK(report[0]["parts"]["signalled"].get<double>() == doctest::Approx(0.010));
  CHECK(record_text(report).find("qkv") != std::string::npos);
}

TEST_CASE("a record that ended before the one before it takes no time") {
  const std::vector<WorkerTrace> workers = {{tile({{MKRT_TRACE_SIGNALLED, 50}}, 0),
                                             tile({{MKRT_TRACE_SIGNALLED, 40}}, 1),
                                             tile({{MKRT_TRACE_SIGNALLED, 70}}, 2)}};
  const std::vector<RecordTimes> records = record_times(workers);
  REQUIRE(records.size() == 2);
  CHECK(records[0].total == 0);
  CHECK(records[1].total == 20);
}
