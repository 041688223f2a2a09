// The rules of a schedule by brute force, for small programs: every tile of three steps on every rank is a node, every
// order an edge, every element a bit. Shares no code with src/verify.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "package/program.hpp"

namespace mkrt::verify::test {

class Oracle {
 public:
  static constexpr uint32_t kSteps = 3;
  static constexpr size_t kMostNodes = 512;
  static constexpr size_t kMostElements = 64;  // of a tensor

  explicit Oracle(const package::Program& program);

  // What is wrong with the program, as far as waits, order and conflicts go; empty if nothing.
  const std::string& problem() const { return problem_; }

  // What a step adds to each of the counters that the wait names, if nothing is wrong.
  uint32_t step_total(uint32_t record, uint32_t wait) const { return totals_of_waits_[record][wait]; }

  // Runs the tiles in queue order with one worker on each rank, the ranks interleaved at random. False if all are
  // stuck.
  bool one_worker_finishes(std::mt19937& random) const;
  // Starts tiles at random as soon as the counters, as they really are, let them, and finishes them at random. Says
  // whether conflicting tiles never overlapped in time and ran in the order of the schedule.
  bool random_run_has_no_race(std::mt19937& random) const;

 private:
  struct NodeWait {
    std::vector<uint32_t> counters;  // rank * counter_count + counter
    uint32_t step = 0;               // whose signals
    uint32_t value = 0;
    uint32_t total = 0;
  };
  struct NodeAccess {
    uint32_t operand = 0;
    uint32_t instance = 0;  // tensor * rank_count + rank
    bool reads = false;
    bool writes = false;
    bool appends = false;
    std::vector<uint32_t> shared_dimensions;
    std::bitset<kMostElements> elements;
  };
  struct Node {
    uint32_t step = 0, rank = 0, record = 0, tile = 0;
    std::array<uint32_t, 4> indices{};
    std::vector<NodeWait> waits;
    std::vector<uint32_t> signals;
    std::vector<NodeAccess> accesses;
  };

  void make_nodes(const package::Program& program);
  Node make_node(const package::Program& program, uint32_t step, uint32_t rank, uint32_t record, uint32_t tile) const;
  void drop_missing_counters();
  void count_signals();
  void resolve_waits();
  void close_order();
  void check_phases();
  void find_conflicts();
  void report(const std::string& problem);
  static bool may_share(const Node& a, const NodeAccess& x, const Node& b, const NodeAccess& y);
  static bool read_the_same(const Node& a, const Node& b);
  bool conflict(const Node& a, const Node& b) const;
  static bool is_met(const Node& node, const std::vector<uint32_t>& counts);

  uint32_t rank_count_;
  uint32_t counter_count_;
  std::string problem_;
  std::vector<Node> nodes_;  // by step, record, tile, rank: a topological order
  std::vector<uint32_t> totals_;
  std::vector<int64_t> last_signaller_;
  std::vector<std::vector<uint32_t>> totals_of_waits_;  // of each record and wait, which all of its counters must have
  std::vector<std::bitset<kMostNodes>> before_;         // of each node, the nodes that precede it
  std::vector<std::bitset<kMostNodes>> conflicts_;      // of each node
};

}  // namespace mkrt::verify::test
