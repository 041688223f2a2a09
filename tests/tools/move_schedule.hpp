// Writes schedules of mkrt.llm as JSON, for tests and benchmarks of data movement between ranks: a program.json as
// src/package/README.md specifies it, and the records that isa/README.md calls peer copy, all-gather, reduce-scatter
// and all-reduce.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace mkrt::tools {

using nlohmann::ordered_json;

constexpr uint64_t dtype_bytes(const std::string& dtype) {
  if (dtype == "u8") return 1;
  return dtype == "f16" || dtype == "bf16" ? 2 : 4;
}

// A program.json in the making. Tensors are state, so that a host may write and read all of them.
class MoveSchedule {
 public:
  // `isa_path`: isa/mkrt.llm.json.
  MoveSchedule(const std::string& isa_path, uint32_t ranks) : ranks_(ranks) {
    std::ifstream isa(isa_path);
    program_ = {{"format", "mkrt.program"},
                {"version", 1},
                {"ranks", ranks},
                {"isa", ordered_json::parse(isa)},
                {"images", ordered_json::array()},
                {"metadata", ordered_json::object()},
                {"weights", ordered_json::array()},
                {"tensors", ordered_json::array()},
                {"entries", ordered_json::array()}};
  }

  uint32_t ranks() const { return ranks_; }
  // Everything that was added so far, for tests that spoil it.
  ordered_json& program() { return program_; }

  void image(const std::string& target, const std::string& path) {
    program_["images"].push_back({{"target", target}, {"file", std::filesystem::path(path).filename().string()}});
    images_.push_back(path);
  }
  void tensor(const std::string& name, const std::string& dtype, uint64_t elements) {
    program_["tensors"].push_back({{"name", name}, {"dtype", dtype}, {"shape", {elements}}, {"kind", "state"}});
  }
  // What is added next belongs to this entry, whose counters have these names.
  void entry(const std::string& name, const std::vector<std::string>& counters) {
    ordered_json list = ordered_json::array();
    for (const std::string& counter : counters) list.push_back({{"name", counter}, {"size", 1}});
    program_["entries"].push_back({{"name", name}, {"counters", list}, {"records", ordered_json::array()}});
  }
  void record(const ordered_json& record) { program_["entries"].back()["records"].push_back(record); }

  // Writes the package. `folder` exists.
  void write(const std::string& folder) const {
    namespace fs = std::filesystem;
    for (const std::string& path : images_) {
      fs::copy_file(path, fs::path(folder) / fs::path(path).filename(), fs::copy_options::overwrite_existing);
    }
    std::ofstream file(fs::path(folder) / "program.json");
    file << program_;
    file.close();
    if (!file) throw std::runtime_error(folder + ": program.json cannot be written");
  }

 private:
  uint32_t ranks_;
  ordered_json program_;
  std::vector<std::string> images_;
};

// What a collective is made of.
struct Move {
  std::string opcode;  // copy, reduce_f32, reduce_f16, reduce_bf16
  std::string in, out;
  uint64_t element_bytes = 4;
  uint64_t elements = 0;  // of a record's tiles together, on each rank
  uint32_t sms = 1;       // most that it may use
  bool registers = false;
  uint64_t in_offset = 0, out_offset = 0;            // elements
  uint64_t in_rank_stride = 0, out_rank_stride = 0;  // elements
  ordered_json in_rank = "self", out_rank = "self";
};

// The record, without waits and signals. Tiles start at multiples of 16 bytes; where there is not enough for all SMs it
// has fewer tiles.
inline ordered_json move_record(const Move& move) {
  const uint64_t granule = 16 / move.element_bytes;
  const uint64_t share = (move.elements + move.sms - 1) / move.sms;
  const uint64_t size = (share + granule - 1) / granule * granule;
  const uint64_t tiles = (move.elements + size - 1) / size;
  const auto slice = [&](const std::string& tensor, uint64_t offset, uint64_t rank_stride, const ordered_json& rank) {
    return ordered_json{{"tensor", tensor}, {"offset", offset},  {"rank_stride", rank_stride},
                        {"size", size},     {"strides", {size}}, {"limit", move.elements},
                        {"rank", rank}};
  };
  return {{"op", move.opcode},
          {"tiles", {tiles}},
          {"parameters", {{"sms", tiles}, {"registers", move.registers ? 1 : 0}}},
          {"operands",
           {{"in", slice(move.in, move.in_offset, move.in_rank_stride, move.in_rank)},
            {"out", slice(move.out, move.out_offset, move.out_rank_stride, move.out_rank)}}}};
}

// `in` of every rank goes to `out` of the next one, or with `pull` of the one before. A single rank is its own peer.
inline Move peer_copy(Move move, bool pull, uint32_t ranks) {
  (pull ? move.in_rank : move.out_rank) = {{"offset", ranks == 1 ? 0 : 1}};
  return move;
}
// Every rank's `elements` of `in` go to their place in every rank's `out`. Where both name one tensor they lie at their
// place already.
inline Move all_gather(Move move) {
  if (move.in == move.out) move.in_rank_stride = move.elements;
  move.out_rank_stride = move.elements;
  move.out_rank = "all";
  return move;
}
// The sum of every rank's `in`, of which each rank gets its `elements` at the beginning of `out`.
inline Move reduce_scatter(Move move) {
  move.in_rank = "all";
  move.in_rank_stride = move.elements;
  return move;
}
// The sum of all of every rank's `in` to every rank's `out`, which may be the same tensor. Each rank adds its
// `elements` of them up.
inline Move all_reduce(Move move) {
  move.in_rank = move.out_rank = "all";
  move.in_rank_stride = move.out_rank_stride = move.elements;
  return move;
}
// The same for `elements` in all, of which each rank reads everybody's: `out` must be another tensor.
inline Move reduce_everything(Move move) {
  move.in_rank = "all";
  return move;
}

// Adds a record that is the only one of an entry: its tiles on all ranks wait for those of the step before.
inline void add_alone(MoveSchedule& schedule, const std::string& entry, const Move& move) {
  schedule.entry(entry, {"done"});
  ordered_json record = move_record(move);
  record["wait"] = {{{"counter", "done"}, {"step", -1}}};
  record["signal"] = {{{"counter", "done"}, {"rank", "all"}}};
  schedule.record(record);
}

// Adds an all-reduce that pushes every rank's `elements` of `in` into a part of `parts` (ranks times as many) at every
// rank, where `out` is added up from them: one way from rank to rank instead of two. f32.
inline void add_push_all_reduce(MoveSchedule& schedule, const std::string& entry, const Move& move,
                                const std::string& parts) {
  schedule.entry(entry, {"pushed", "done"});
  Move push = move;
  push.opcode = "copy";
  push.out = parts;
  push.out_rank_stride = move.elements;
  push.out_rank = "all";
  ordered_json pushing = move_record(push);
  pushing["wait"] = {{{"counter", "done"}, {"step", -1}}};
  pushing["signal"] = {{{"counter", "pushed"}, {"rank", "all"}}};
  schedule.record(pushing);
  const uint64_t size = pushing["operands"]["in"]["size"];
  const uint64_t tiles = pushing["tiles"][0];
  ordered_json slice = {{"size", size}, {"strides", {size}}, {"limit", move.elements}};
  ordered_json partial = slice, out = slice;
  partial.update({{"tensor", parts}, {"rows", schedule.ranks()}, {"row_stride", move.elements}});
  out.update({{"tensor", move.out}, {"offset", move.out_offset}});
  schedule.record({{"op", "sum_partials"},
                   {"tiles", {tiles}},
                   {"parameters", {{"parts", schedule.ranks()}, {"batch", 1}}},
                   {"operands", {{"partial", partial}, {"out", out}}},
                   {"wait", {"pushed"}},
                   {"signal", {{{"counter", "done"}, {"rank", "all"}}}}});
}

}  // namespace mkrt::tools
