#include "cli/trace_figures.hpp"

#include <algorithm>
#include <cassert>
#include <map>
#include <numeric>
#include <utility>

namespace mkrt::cli {
namespace {

// Tiles that a block has between fetch and store: a tile gets its place once the fourth before it has left
// (kernels/machine.cuh).
constexpr size_t kTileSlots = 4;

// Times when the consumers waited for a known tile, in order, none of them overlapping: from the time when they were
// done with the tile before, and this one had been fetched, to its inputs. A tile without that event waits for nothing:
// it goes on with inputs that are there.
std::vector<Window> waits_of_consumers(const WorkerTrace& tiles) {
  std::vector<Window> waits;
  uint64_t free = 0;  // when the consumers were done with all tiles so far
  for (const mkrt_trace_tile& tile : tiles) {
    const uint64_t begin = std::max(free, tile.time[MKRT_TRACE_FETCHED]);
    const uint64_t end = tile.time[MKRT_TRACE_INPUTS];
    if (end > begin) waits.push_back({begin, end});
    free = std::max({free, end, tile.time[MKRT_TRACE_CONSUMED]});
  }
  return waits;
}

// Divides a window into streaming and idle times, from its beginning to its end.
class Account {
 public:
  Account(const WorkerTrace& tiles, Window window)
      : waits_(waits_of_consumers(tiles)), end_(window.end), at_(window.begin) {}

  // No weights are on their way from here on; up to here they were.
  void stop(uint64_t time) {
    time = std::min(time, end_);
    if (time <= at_) return;
    times_.streaming += time - at_;
    at_ = time;
  }
  // Up to here no weights were on their way: for the consumers' waits, where they did wait, otherwise for `cause`.
  void idle_while_working(uint64_t time, Idle cause) {
    time = std::min(time, end_);
    while (at_ < time) {
      while (next_wait_ < waits_.size() && waits_[next_wait_].end <= at_) ++next_wait_;
      const Window wait = next_wait_ < waits_.size() ? waits_[next_wait_] : Window{time, time};
      if (wait.begin > at_) idle(std::min(wait.begin, time), cause);
      if (at_ < time) idle(std::min(wait.end, time), Idle::dependency);
    }
  }
  // Up to here no weights were on their way, because of `cause`.
  void idle(uint64_t time, Idle cause) {
    time = std::min(time, end_);
    if (time <= at_) return;
    times_.idle[static_cast<size_t>(cause)] += time - at_;
    at_ = time;
  }
  const MemoryTimes& times() const { return times_; }

 private:
  std::vector<Window> waits_;
  size_t next_wait_ = 0;
  uint64_t end_;
  uint64_t at_;  // what is before is divided
  MemoryTimes times_;
};

[[maybe_unused]] uint64_t sum(const MemoryTimes& times) {
  return std::accumulate(times.idle.begin(), times.idle.end(), times.streaming);
}

}  // namespace

Window window_of(std::span<const WorkerTrace> workers) {
  Window window{UINT64_MAX, 0};
  for (const WorkerTrace& tiles : workers) {
    for (const mkrt_trace_tile& tile : tiles) {
      for (const uint64_t time : tile.time) {
        if (time == 0) continue;
        window.begin = std::min(window.begin, time);
        window.end = std::max(window.end, time);
      }
    }
  }
  return window.end == 0 ? Window{} : window;
}

MemoryTimes memory_times(const WorkerTrace& tiles, Window window) {
  Account account(tiles, window);
  bool idle = true;  // nothing was asked for yet
  for (size_t i = 0; i < tiles.size(); ++i) {
    const auto& time = tiles[i].time;
    if (idle) {
      // What holds the slot that the tile needs leaves with its signal.
      if (i >= kTileSlots) {
        account.idle_while_working(
            std::min(tiles[i - kTileSlots].time[MKRT_TRACE_SIGNALLED], time[MKRT_TRACE_WEIGHTS_BEGIN]),
            Idle::ring_empty);
      }
      account.idle(time[MKRT_TRACE_WEIGHTS_BEGIN], Idle::fetch);
    }
    if (time[MKRT_TRACE_WEIGHTS_END] != 0) {
      idle = false;
      if (time[MKRT_TRACE_STALL_END] != 0) {
        account.stop(time[MKRT_TRACE_STALL_BEGIN]);
        account.idle_while_working(time[MKRT_TRACE_STALL_END], Idle::ring_full);
      }
    }
    if (time[MKRT_TRACE_DRAINED] != 0 && !idle) {
      idle = true;
      account.stop(time[MKRT_TRACE_DRAINED]);
    }
  }
  // Without the event the last weights had come when they were used, at the latest.
  if (!idle) account.stop(tiles.back().time[MKRT_TRACE_CONSUMED]);
  account.idle(window.end, Idle::tail);
  assert(sum(account.times()) == window.end - window.begin);
  return account.times();
}

std::vector<RecordTimes> record_times(std::span<const WorkerTrace> workers) {
  struct Last {
    RecordTimes times;
    std::array<uint64_t, kRecordParts> event{};  // when the last tile came to it
  };
  std::map<std::pair<uint32_t, uint32_t>, Last> records;
  for (const WorkerTrace& tiles : workers) {
    for (const mkrt_trace_tile& tile : tiles) {
      Last& last = records[{tile.step, tile.record}];
      last.times.step = tile.step;
      last.times.record = tile.record;
      ++last.times.tiles;
      for (size_t e = 0; e < kRecordParts; ++e) last.event[e] = std::max(last.event[e], tile.time[kRecordEvents[e]]);
      const uint64_t begin = tile.time[MKRT_TRACE_WEIGHTS_BEGIN], end = tile.time[MKRT_TRACE_WEIGHTS_END];
      if (end > begin) last.times.streaming.push_back(end - begin);
    }
  }
  std::vector<RecordTimes> out;
  uint64_t before = 0;
  for (auto& [place, last] : records) {
    // Records that do not depend on each other may end in another order; then the later one takes no time.
    uint64_t at = before;
    for (size_t e = 0; e < kRecordParts; ++e) {
      const uint64_t until = std::max(at, last.event[e]);
      last.times.parts[e] = until - at;
      at = until;
    }
    last.times.total = at - before;
    if (before != 0) out.push_back(std::move(last.times));
    before = at;
  }
  return out;
}

}  // namespace mkrt::cli
