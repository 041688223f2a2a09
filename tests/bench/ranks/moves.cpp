// Flags, copies and all-reduces between ranks: one entry of one program for each thing that is measured.
#include <stdexcept>

#include "ranks.hpp"

namespace mkrt::bench {
namespace {

using tools::Move;
using tools::MoveSchedule;

MoveSchedule make_schedule(const Machine& machine, uint32_t ranks) {
  MoveSchedule schedule(std::string(MKRT_SOURCE_DIR) + "/isa/mkrt.llm.json", ranks);
  add_images(machine, schedule);
  return schedule;
}

// The SM counts of `wanted` that a rank has.
std::vector<uint32_t> at_most(const std::vector<uint32_t>& wanted, uint32_t workers) {
  std::vector<uint32_t> counts;
  for (const uint32_t count : wanted) {
    if (count <= workers) counts.push_back(count);
  }
  return counts;
}

uint32_t workers_of(const Machine& machine, uint32_t ranks) {
  const mkrt::Runtime runtime;
  return mkrt::Mesh(runtime, machine.rank_options(ranks)).device_info().worker_count;
}

// Two records, each of which waits for the other; `rank` is where they signal.
void add_flags(MoveSchedule& schedule, const std::string& entry, const ordered_json& rank) {
  schedule.entry(entry, {"ping", "pong"});
  const Move move{"copy", "in", "out", 4, 4, 1, true};
  ordered_json ping = tools::move_record(move), pong = ping;
  pong["operands"]["out"]["offset"] = 4;
  ping["wait"] = {{{"counter", "pong"}, {"step", -1}}};
  ping["signal"] = {{{"counter", "ping"}, {"rank", rank}}};
  pong["wait"] = {"ping"};
  pong["signal"] = {{{"counter", "pong"}, {"rank", rank}}};
  schedule.record(ping);
  schedule.record(pong);
}

}  // namespace

// A signal, its way, the wait, and a tile that copies 16 bytes: what a record costs that waits for another rank's, and
// for one of its own.
ordered_json measure_flags(const Machine& machine, uint32_t ranks) {
  TemporaryFolder folder;
  MoveSchedule schedule = make_schedule(machine, ranks);
  schedule.tensor("in", "f32", 4);
  schedule.tensor("out", "f32", 8);
  std::vector<const char*> entries = {"self", "all"};
  add_flags(schedule, "self", "self");
  add_flags(schedule, "all", "all");
  // Ranks in pairs, so that what one signals comes back to it.
  if (ranks % 2 == 0) {
    entries.push_back("peer");
    add_flags(schedule, "peer", {{"offset", ranks / 2}});
  }
  schedule.write(folder.path());
  Runner runner(machine, folder.path(), ranks);
  ordered_json result = machine.describe(ranks);
  for (const char* entry : entries) {
    std::vector<double> microseconds = runner.time(entry);
    for (double& sample : microseconds) sample /= 2;  // two in a step
    std::fprintf(stderr, "%u ranks: flag to %-4s %.2f us\n", ranks, entry, percentile(microseconds, 0.5));
    result[std::string("microseconds_to_") + entry] = summary(microseconds);
  }
  return {{"benchmark", "flags"}, {"unit", "one signal, wait and tile of 16 bytes"}, {"result", result}};
}

// Every rank copies to or from the next one at the same time, so a link is busy in both directions.
ordered_json measure_copies(const Machine& machine, uint32_t ranks) {
  const uint64_t elements = (machine.host() ? 1 << 20 : 64 << 20) / 4;
  TemporaryFolder folder;
  MoveSchedule schedule = make_schedule(machine, ranks);
  for (const char* name : {"in", "out"}) schedule.tensor(name, "f32", elements);
  struct Way {
    const char* name;
    bool pull, registers;
  };
  const std::vector<Way> ways = {
      {"push, bulk", false, false}, {"push, registers", false, true}, {"pull, bulk", true, false}};
  const std::vector<uint32_t> counts = at_most({1, 2, 4, 6, 8, 10, 12, 16, 32, 64, 132}, workers_of(machine, ranks));
  const auto entry_of = [](const Way& way, uint32_t sms) { return std::string(way.name) + " " + std::to_string(sms); };
  for (const Way& way : ways) {
    for (const uint32_t sms : counts) {
      const Move move{"copy", "in", "out", 4, elements, sms, way.registers};
      add_alone(schedule, entry_of(way, sms), tools::peer_copy(move, way.pull, ranks));
    }
  }
  schedule.write(folder.path());
  Runner runner(machine, folder.path(), ranks);
  ordered_json results = ordered_json::array();
  for (const Way& way : ways) {
    for (const uint32_t sms : counts) {
      const std::vector<double> microseconds = runner.time(entry_of(way, sms), 3, 5);
      const double rate = static_cast<double>(elements * 4) / (percentile(microseconds, 0.5) * 1e-6);
      std::fprintf(stderr, "%u ranks: %-15s %3u SMs %8.1f GB/s\n", ranks, way.name, sms, rate / 1e9);
      results.push_back({{"way", way.name},
                         {"sms", sms},
                         {"microseconds", summary(microseconds)},
                         {"gigabytes_per_second", rate / 1e9}});
    }
  }
  ordered_json result = machine.describe(ranks);
  result["bytes"] = elements * 4;
  result["results"] = results;
  return {
      {"benchmark", "copies"}, {"unit", "bytes of each rank in one direction, all ranks at once"}, {"result", result}};
}

namespace {

// A way to reduce that is measured for one size.
struct Reduction {
  std::string entry;
  std::string name;
  uint64_t bytes;
  uint32_t sms;
};

std::vector<Reduction> add_reductions(MoveSchedule& schedule, const std::vector<uint64_t>& sizes, uint64_t largest_push,
                                      uint32_t workers) {
  std::vector<Reduction> reductions;
  const auto add = [&](const char* name, uint64_t bytes, uint32_t sms, const auto& add_entry) {
    Reduction one{std::string(name) + " " + std::to_string(bytes) + " " + std::to_string(sms), name, bytes, sms};
    add_entry(one.entry);
    reductions.push_back(one);
  };
  for (const uint64_t bytes : sizes) {
    Move move{"reduce_f32", "in", "out"};
    for (const uint32_t sms : at_most({1, 2, 4, 8, 12, 16, 32}, workers)) {
      move.sms = sms;
      move.registers = false;
      if (bytes / sms < 1024) continue;
      // The part that a rank adds up; sizes are multiples of ranks times 16 bytes.
      move.elements = bytes / 4 / schedule.ranks();
      add("reduce, bulk", bytes, sms, [&](const auto& entry) { add_alone(schedule, entry, tools::all_reduce(move)); });
      if (bytes > largest_push) continue;
      move.registers = true;
      add("reduce, registers", bytes, sms,
          [&](const auto& entry) { add_alone(schedule, entry, tools::all_reduce(move)); });
      move.elements = bytes / 4;
      add("push and sum", bytes, sms,
          [&](const auto& entry) { tools::add_push_all_reduce(schedule, entry, move, "parts"); });
    }
  }
  return reductions;
}

// Elements at both ends of a sum that are looked at.
constexpr uint64_t some = 64;

void poison_sums(Runner& runner, uint32_t ranks, uint64_t elements) {
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (const uint64_t first : {uint64_t{0}, elements - some}) {
      runner.session().write<float>(runner.program().find_tensor("out"), std::vector<float>(some, NAN), first, rank);
    }
  }
}

void check_sums(Runner& runner, uint32_t ranks, uint64_t elements, const Reduction& reduction) {
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (const uint64_t first : {uint64_t{0}, elements - some}) {
      std::vector<float> sums(some, NAN);
      runner.session().read<float>(runner.program().find_tensor("out"), sums, first, rank);
      for (uint64_t i = 0; i < some; ++i) {
        // Rank r brings (r + 1) * (i % 64 + 1).
        const float expected = static_cast<float>(ranks * (ranks + 1) / 2 * (i + 1));
        if (sums[i] == expected) continue;
        throw std::runtime_error(reduction.entry + ": rank " + std::to_string(rank) + " has a wrong sum");
      }
    }
  }
}

void write_inputs(Runner& runner, uint32_t ranks, uint64_t elements) {
  std::vector<float> values(std::min<uint64_t>(elements, 1 << 20));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((rank + 1) * (i % 64 + 1));
    for (uint64_t at = 0; at < elements; at += values.size()) {
      runner.session().write<float>(runner.program().find_tensor("in"),
                                    {values.data(), std::min<uint64_t>(values.size(), elements - at)}, at, rank);
    }
  }
}

}  // namespace

ordered_json measure_all_reduces(const Machine& machine, uint32_t ranks, std::vector<AllReduce>& out_best) {
  std::vector<uint64_t> sizes = {4 << 10, 64 << 10};
  if (!machine.host()) {
    sizes = {4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20};
  }
  // Parts of ranks are multiples of 64 elements, which check_sums looks at.
  for (uint64_t& bytes : sizes) bytes = (bytes + 256 * ranks - 1) / (256 * ranks) * (256 * ranks);
  constexpr uint64_t largest_push = 1 << 20;
  TemporaryFolder folder;
  MoveSchedule schedule = make_schedule(machine, ranks);
  for (const char* name : {"in", "out"}) schedule.tensor(name, "f32", sizes.back() / 4);
  schedule.tensor("parts", "f32", ranks * (largest_push / 4 + 64 * ranks));
  const std::vector<Reduction> reductions =
      add_reductions(schedule, sizes, largest_push + 256 * ranks, workers_of(machine, ranks));
  schedule.write(folder.path());
  Runner runner(machine, folder.path(), ranks);
  write_inputs(runner, ranks, sizes.back() / 4);
  ordered_json results = ordered_json::array();
  for (const Reduction& reduction : reductions) {
    poison_sums(runner, ranks, reduction.bytes / 4);
    const std::vector<double> microseconds = runner.time(reduction.entry, 2, 5);
    check_sums(runner, ranks, reduction.bytes / 4, reduction);
    const double median = percentile(microseconds, 0.5);
    results.push_back({{"bytes", reduction.bytes},
                       {"way", reduction.name},
                       {"sms", reduction.sms},
                       {"microseconds", summary(microseconds)}});
    const std::string way = reduction.name + ", " + std::to_string(reduction.sms) + " SMs";
    if (out_best.empty() || out_best.back().bytes != reduction.bytes) {
      out_best.push_back({reduction.bytes, median, way});
    } else if (median < out_best.back().microseconds) {
      out_best.back() = {reduction.bytes, median, way};
    }
  }
  for (const AllReduce& best : out_best) {
    std::fprintf(stderr, "%u ranks: all-reduce of %9llu bytes %9.1f us (%s)\n", ranks,
                 static_cast<unsigned long long>(best.bytes), best.microseconds, best.way.c_str());
  }
  ordered_json result = machine.describe(ranks);
  result["results"] = results;
  return {{"benchmark", "all-reduce"},
          {"unit", "f32, one step: an all-reduce, and every rank knows that all are done"},
          {"result", result}};
}

}  // namespace mkrt::bench
