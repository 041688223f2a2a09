#include "oracle.hpp"

#include <algorithm>
#include <stdexcept>

namespace mkrt::verify::test {
namespace {

using Indices = std::array<uint32_t, 4>;

Indices indices_of(const package::Record& record, uint32_t tile) {
  Indices indices{};
  for (int d = 3; d >= 0; --d) {
    indices[d] = tile % record.grid[d];
    tile /= record.grid[d];
  }
  return indices;
}

std::vector<uint32_t> ranks_of(const mkrt_rank_selector& selector, uint32_t own, const Indices& indices,
                               uint32_t rank_count) {
  if (selector.mode == MKRT_RANK_SELF) return {own};
  if (selector.mode == MKRT_RANK_FIXED) return {selector.offset};
  if (selector.mode == MKRT_RANK_RELATIVE) {
    const uint32_t index = selector.dimension == 0xff ? 0 : indices[selector.dimension];
    return {(own + selector.offset + index) % rank_count};
  }
  std::vector<uint32_t> all;
  for (uint32_t rank = 0; rank < rank_count; ++rank) all.push_back(rank);
  return all;
}

template <class Target>
uint32_t counter_of(const Target& target, const Indices& indices) {
  uint32_t counter = target.counter;
  for (int d = 0; d < 4; ++d) counter += indices[d] / target.divide[d] * target.strides[d];
  return counter;
}

std::bitset<Oracle::kMostElements> elements_of(const package::Operand& operand, uint32_t rank, const Indices& indices) {
  std::bitset<Oracle::kMostElements> elements;
  uint64_t start = 0;
  for (int d = 0; d < 4; ++d) start += indices[d] * operand.strides[d];
  for (uint64_t row = 0; row < operand.rows; ++row) {
    for (uint64_t i = start; i < start + operand.size && i < operand.limit; ++i) {
      elements.set(operand.offset + operand.rank_stride * rank + row * operand.row_stride + i);
    }
  }
  return elements;
}

}  // namespace

Oracle::Oracle(const package::Program& program)
    : rank_count_(program.rank_count), counter_count_(program.entries[0].counter_count) {
  make_nodes(program);
  drop_missing_counters();
  count_signals();
  resolve_waits();
  close_order();
  check_phases();
  find_conflicts();
}

void Oracle::report(const std::string& problem) {
  if (problem_.empty()) problem_ = problem;
}

void Oracle::make_nodes(const package::Program& program) {
  const package::Entry& entry = program.entries[0];
  for (uint32_t step = 0; step < kSteps; ++step) {
    for (uint32_t record = 0; record < entry.records.size(); ++record) {
      for (uint32_t tile = 0; tile < entry.records[record].tile_count; ++tile) {
        for (uint32_t rank = 0; rank < rank_count_; ++rank) {
          nodes_.push_back(make_node(program, step, rank, record, tile));
        }
      }
    }
  }
  if (nodes_.size() > kMostNodes) throw std::length_error("the program is too large for the oracle");
}

Oracle::Node Oracle::make_node(const package::Program& program, uint32_t step, uint32_t rank, uint32_t record_number,
                               uint32_t tile) const {
  const package::Record& record = program.entries[0].records[record_number];
  const Indices indices = indices_of(record, tile);
  Node node{step, rank, record_number, tile, indices, {}, {}, {}};
  for (const package::Wait& wait : record.waits) {
    NodeWait node_wait;
    const uint32_t first = counter_of(wait, indices);
    for (uint32_t k = 0; k < wait.count; ++k) node_wait.counters.push_back(rank * counter_count_ + first + k);
    node_wait.step = step + static_cast<uint32_t>(wait.step_offset);  // UINT32_MAX: before the first step
    node_wait.value = wait.value;
    node.waits.push_back(node_wait);
  }
  for (const package::Signal& signal : record.signals) {
    for (uint32_t target : ranks_of(signal.rank, rank, indices, rank_count_)) {
      node.signals.push_back(target * counter_count_ + counter_of(signal, indices));
    }
  }
  for (uint32_t o = 0; o < record.operands.size(); ++o) {
    const package::Operand& operand = *record.operands[o];
    const package::OperandDefinition& definition = program.isa.opcodes[record.opcode].operands[o];
    const package::Access access = definition.access;
    for (uint32_t target : ranks_of(operand.rank, rank, indices, rank_count_)) {
      node.accesses.push_back({o, operand.tensor * rank_count_ + target, access != package::Access::write,
                               package::is_write(access), access == package::Access::append,
                               definition.shared_dimensions, elements_of(operand, rank, indices)});
    }
  }
  return node;
}

// A program may have several faults, and be refused for another one.
void Oracle::drop_missing_counters() {
  const auto drop = [this](std::vector<uint32_t>& counters) {
    if (std::erase_if(counters, [this](uint32_t counter) { return counter >= rank_count_ * counter_count_; }) > 0) {
      report("a counter that does not exist");
    }
  };
  for (Node& node : nodes_) {
    drop(node.signals);
    for (NodeWait& wait : node.waits) drop(wait.counters);
  }
}

void Oracle::count_signals() {
  totals_.assign(size_t{rank_count_} * counter_count_, 0);
  last_signaller_.assign(totals_.size(), -1);
  for (const Node& node : nodes_) {
    if (node.step != 0) continue;
    for (uint32_t counter : node.signals) {
      ++totals_[counter];
      last_signaller_[counter] = std::max<int64_t>(last_signaller_[counter], node.record);
    }
  }
}

void Oracle::resolve_waits() {
  for (Node& node : nodes_) {
    if (totals_of_waits_.size() <= node.record) totals_of_waits_.resize(node.record + 1);
    std::vector<uint32_t>& totals = totals_of_waits_[node.record];
    totals.resize(node.waits.size());
    for (size_t w = 0; w < node.waits.size(); ++w) {
      NodeWait& wait = node.waits[w];
      for (uint32_t counter : wait.counters) {
        if (totals[w] == 0) totals[w] = totals_[counter];
        if (totals_[counter] == 0 || totals_[counter] != totals[w]) report("totals of a wait differ or are 0");
        if (wait.value > totals_[counter]) report("a wait for more than comes");
        if (wait.step == node.step && last_signaller_[counter] >= node.record) report("a wait for a later record");
      }
      wait.total = totals[w];
      if (wait.value == 0) wait.value = wait.total;
    }
  }
}

void Oracle::close_order() {
  before_.resize(nodes_.size());
  for (size_t y = 0; y < nodes_.size(); ++y) {
    for (const NodeWait& wait : nodes_[y].waits) {
      if (wait.step == UINT32_MAX || wait.value != wait.total) continue;
      for (size_t x = 0; x < y; ++x) {
        if (nodes_[x].step != wait.step) continue;
        const std::vector<uint32_t>& signals = nodes_[x].signals;
        const bool signals_it = std::any_of(wait.counters.begin(), wait.counters.end(), [&](uint32_t counter) {
          return std::find(signals.begin(), signals.end(), counter) != signals.end();
        });
        if (!signals_it) continue;
        before_[y] |= before_[x];
        before_[y].set(x);
      }
    }
  }
}

void Oracle::check_phases() {
  std::vector<bool> is_waited_for(totals_.size());
  for (const Node& node : nodes_) {
    for (const NodeWait& wait : node.waits) {
      for (uint32_t counter : wait.counters) is_waited_for[counter] = true;
    }
  }
  for (size_t y = 0; y < nodes_.size(); ++y) {
    for (uint32_t counter : nodes_[y].signals) {
      if (!is_waited_for[counter]) continue;
      for (size_t x = 0; x < y; ++x) {
        const std::vector<uint32_t>& signals = nodes_[x].signals;
        if (nodes_[x].step + 1 != nodes_[y].step || before_[y][x]) continue;
        if (std::find(signals.begin(), signals.end(), counter) != signals.end()) report("a counter mixes two steps");
      }
    }
  }
}

bool Oracle::read_the_same(const Node& a, const Node& b) {
  for (const NodeAccess& x : a.accesses) {
    if (!x.reads) continue;
    const bool is_there = std::any_of(b.accesses.begin(), b.accesses.end(), [&](const NodeAccess& y) {
      return x.operand == y.operand && x.instance == y.instance && x.elements == y.elements;
    });
    if (!is_there) return false;
  }
  return true;
}

// Whether the two tiles are of those among which only one writes to the slice that both append to.
bool Oracle::may_share(const Node& a, const NodeAccess& x, const Node& b, const NodeAccess& y) {
  if (a.step != b.step || a.record != b.record || a.rank != b.rank) return false;
  if (!x.appends || x.operand != y.operand || x.elements != y.elements) return false;
  for (uint32_t d = 0; d < 4; ++d) {
    const bool is_shared =
        std::find(x.shared_dimensions.begin(), x.shared_dimensions.end(), d) != x.shared_dimensions.end();
    if (!is_shared && a.indices[d] != b.indices[d]) return false;
  }
  return read_the_same(a, b);
}

bool Oracle::conflict(const Node& a, const Node& b) const {
  for (const NodeAccess& x : a.accesses) {
    for (const NodeAccess& y : b.accesses) {
      if (x.instance != y.instance || !(x.writes || y.writes) || (x.elements & y.elements).none()) continue;
      if (!may_share(a, x, b, y)) return true;
    }
  }
  return false;
}

void Oracle::find_conflicts() {
  conflicts_.resize(nodes_.size());
  for (size_t y = 0; y < nodes_.size(); ++y) {
    for (size_t x = 0; x < y; ++x) {
      if (!conflict(nodes_[x], nodes_[y])) continue;
      conflicts_[x].set(y);
      conflicts_[y].set(x);
      if (!before_[y][x]) report("a conflict without order");
    }
  }
}

bool Oracle::is_met(const Node& node, const std::vector<uint32_t>& counts) {
  for (const NodeWait& wait : node.waits) {
    if (wait.step == UINT32_MAX) continue;
    for (uint32_t counter : wait.counters) {
      if (counts[counter] < wait.step * wait.total + wait.value) return false;
    }
  }
  return true;
}

bool Oracle::one_worker_finishes(std::mt19937& random) const {
  std::vector<std::vector<size_t>> queues(rank_count_);
  for (size_t n = 0; n < nodes_.size(); ++n) queues[nodes_[n].rank].push_back(n);
  std::vector<size_t> next(rank_count_);
  std::vector<uint32_t> counts(totals_.size());
  while (true) {
    std::vector<uint32_t> ready;
    bool is_done = true;
    for (uint32_t rank = 0; rank < rank_count_; ++rank) {
      if (next[rank] == queues[rank].size()) continue;
      is_done = false;
      if (is_met(nodes_[queues[rank][next[rank]]], counts)) ready.push_back(rank);
    }
    if (is_done) return true;
    if (ready.empty()) return false;
    const uint32_t rank = ready[random() % ready.size()];
    for (uint32_t counter : nodes_[queues[rank][next[rank]]].signals) ++counts[counter];
    ++next[rank];
  }
}

bool Oracle::random_run_has_no_race(std::mt19937& random) const {
  std::vector<uint32_t> counts(totals_.size());
  std::bitset<kMostNodes> started, finished;
  size_t left = nodes_.size();
  // Some nodes are slow: they start and finish only when nothing else can, so that others run ahead of them.
  std::bitset<kMostNodes> slow;
  for (size_t n = 0; n < nodes_.size(); ++n) slow[n] = random() % 4 == 0;
  while (left > 0) {
    std::vector<size_t> choices, slow_choices;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (finished[n] || (!started[n] && !is_met(nodes_[n], counts))) continue;
      (slow[n] ? slow_choices : choices).push_back(n);
    }
    if (choices.empty()) choices = slow_choices;
    if (choices.empty()) return false;
    const size_t n = choices[random() % choices.size()];
    if (!started[n]) {
      started.set(n);
      for (size_t other = 0; other < nodes_.size(); ++other) {
        if (!conflicts_[n][other]) continue;
        if (other < n ? !finished[other] : started[other]) return false;
      }
    } else {
      finished.set(n);
      --left;
      for (uint32_t counter : nodes_[n].signals) ++counts[counter];
    }
  }
  return true;
}

}  // namespace mkrt::verify::test
