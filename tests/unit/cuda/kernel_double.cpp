#include "kernel_double.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "mkrt/mkrt.h"

namespace mkrt::cuda::test {
namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

class Kernel {
 public:
  Kernel(const mkrt_launch& launch, uint32_t grid, const mkrt_host_isa& isa, const Translate& translate,
         const Lost& lost)
      : launch_(launch), grid_(grid), isa_(isa), translate_(translate), lost_(lost), scratch_(isa.scratch_size + 63) {}

  void run() {
    if (!find_memory()) return;
    if (launch_.rank_count > 1 && !begin_together()) return finish();
    const uint32_t step_tiles = first_tiles_[launch_.record_count];
    for (uint64_t number = 0; number < uint64_t{step_tiles} * launch_.step_count; ++number) {
      if (launch_.queue_mode == MKRT_QUEUE_DYNAMIC) ++control_->queue;
      if (aborted() ||
          !run_tile(number, static_cast<uint32_t>(number / step_tiles), static_cast<uint32_t>(number % step_tiles))) {
        break;
      }
    }
    finish();
  }

 private:
  template <class T>
  bool find(T*& out, uint64_t address, uint64_t count, const char* what) {
    out = reinterpret_cast<T*>(translate_(address, count * sizeof(T), what));
    return out != nullptr;
  }

  bool find_memory() {
    if (!find(records_, launch_.records, launch_.record_count, "a launch's records")) return false;
    if (!find(first_tiles_, launch_.first_tiles, launch_.record_count + 1, "a launch's first tiles")) return false;
    if (!find(control_, launch_.control, 1, "a launch's control words")) return false;
    if (!find(epoch_, launch_.epoch, 1, "a launch's epoch")) return false;
    if (!find(rank_delta_, launch_.rank_delta, launch_.rank_count, "a launch's rank deltas")) return false;
    if (!find(report_, launch_.report, 1, "a launch's report")) return false;
    if (!find(timeline_, launch_.timeline, 1, "a launch's timeline")) return false;
    return launch_.trace == 0 || find(trace_, launch_.trace, uint64_t{grid_} * launch_.trace_tiles, "a launch's trace");
  }

  uint32_t abort_word() const { return std::atomic_ref(control_->abort).load(std::memory_order_relaxed); }
  bool aborted() const { return abort_word() != 0 || lost_(); }

  mkrt_control* control_at(uint32_t rank) {
    mkrt_control* control = nullptr;
    find(control, launch_.control + static_cast<uint64_t>(rank_delta_[rank]), 1, "a peer's control words");
    return control;
  }

  // Adds 1 to a word of every rank's control.
  void tell_ranks(uint32_t mkrt_control::*word) {
    for (uint32_t rank = 0; rank < launch_.rank_count; ++rank) {
      mkrt_control* theirs = control_at(rank);
      if (theirs != nullptr) std::atomic_ref(theirs->*word).fetch_add(1, std::memory_order_release);
    }
  }
  // Waits until every rank has done so for this launch.
  bool wait_for_ranks(uint32_t mkrt_control::*word, uint32_t which) {
    const uint32_t before = control_->launches * launch_.rank_count;
    const uint64_t begin = now_ns();
    for (;;) {
      const uint32_t come = std::atomic_ref(control_->*word).load(std::memory_order_acquire) - before;
      if (come >= launch_.rank_count) return true;
      if (aborted()) return false;
      if (const uint64_t waited = now_ns() - begin; waited > launch_.wait_limit_ns) {
        record_.index = which;
        report_->value_seen = come;
        report_->value_wanted = launch_.rank_count;
        report_->waited_ns = waited;
        give_up(MKRT_ERROR_DEADLINE);
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  bool begin_together() {
    tell_ranks(&mkrt_control::ranks_begun);
    return wait_for_ranks(&mkrt_control::ranks_begun, MKRT_REPORT_BEGIN);
  }

  // Whoever left early takes the others along, before they count it as done.
  void end_together() {
    if (const uint32_t abort = abort_word(); abort != 0) abort_ranks(abort);
    tell_ranks(&mkrt_control::ranks_ended);
    wait_for_ranks(&mkrt_control::ranks_ended, MKRT_REPORT_END);
    ++control_->launches;
    const uint32_t abort = abort_word();
    if (abort == 0 || std::atomic_ref(report_->status).load(std::memory_order_relaxed) != 0) return;
    report_->rank = launch_.rank;
    report_->record = MKRT_REPORT_LEFT;
    report_->timeline_value = launch_.timeline_value;
    std::atomic_ref(report_->status).store(abort, std::memory_order_release);
  }
  void abort_ranks(uint32_t status) {
    for (uint32_t rank = 0; rank < launch_.rank_count; ++rank) {
      mkrt_control* theirs = control_at(rank);
      uint32_t none = 0;
      if (theirs != nullptr) {
        std::atomic_ref(theirs->abort).compare_exchange_strong(none, status, std::memory_order_relaxed);
      }
    }
  }

  bool run_tile(uint64_t number, uint32_t step, uint32_t tile) {
    uint32_t r = 0;
    while (tile >= first_tiles_[r + 1]) ++r;
    record_ = records_[r];
    place_ = {r, step, tile - first_tiles_[r], static_cast<uint32_t>(number % grid_)};
    set_indices();
    if (!bias_operands()) return false;
    for (uint32_t i = 0; i < record_.wait_count; ++i) {
      if (!wait(record_.wait[i])) return false;
    }
    const uint32_t fault = isa_.instructions[record_.opcode](&tile_);
    if (fault != 0) {
      report_->fault = fault;
      give_up(MKRT_ERROR_FAULT);
      return false;
    }
    for (uint32_t i = 0; i < record_.signal_count; ++i) {
      if (!signal(record_.signal[i])) return false;
    }
    trace(number / grid_);
    return true;
  }

  bool signal(const mkrt_signal& signal) {
    const uint64_t number = counter_number(signal.first, signal.stride, signal.divide);
    const auto [first, count] = ranks_of(signal.rank);
    for (uint32_t rank = first; rank < first + count; ++rank) {
      uint32_t* counter = nullptr;
      if (!find_counter(counter, number, rank)) return false;
      std::atomic_ref(*counter).fetch_add(1, std::memory_order_release);
    }
    return true;
  }

  // The ranks that a selector means: first and number.
  std::pair<uint32_t, uint32_t> ranks_of(mkrt_rank_selector selector) const {
    switch (selector.mode) {
      case MKRT_RANK_ALL: return {0, launch_.rank_count};
      case MKRT_RANK_FIXED: return {selector.offset, 1};
      case MKRT_RANK_RELATIVE: {
        const uint32_t index = selector.dimension == 0xff ? 0 : tile_.index[selector.dimension];
        return {(launch_.rank + selector.offset + index) % launch_.rank_count, 1};
      }
      default: return {launch_.rank, 1};
    }
  }

  void set_indices() {
    uint64_t rest = place_.tile;
    for (int d = MKRT_TILE_DIMENSIONS - 1; d >= 0; --d) {
      tile_.index[d] = static_cast<uint32_t>(rest % record_.grid[d]);
      rest /= record_.grid[d];
    }
    tile_.record = &record_;
    tile_.rank = launch_.rank;
    tile_.rank_count = launch_.rank_count;
    tile_.step = place_.step;
    tile_.rank_delta = rank_delta_;
    auto scratch = reinterpret_cast<uintptr_t>(scratch_.data());
    tile_.scratch = reinterpret_cast<void*>((scratch + 63) / 64 * 64);
    tile_.scratch_size = isa_.scratch_size;
    tile_.execute_serial = launch_.timeline_value;
  }

  // Host code reads what the operands say: device addresses become host ones, each tile's slice checked.
  bool bias_operands() {
    for (uint32_t k = 0; k < record_.operand_count; ++k) {
      mkrt_operand& operand = record_.operand[k];
      if (operand.address == 0) continue;
      uint64_t start = 0;
      for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) start += tile_.index[d] * operand.stride[d];
      const uint64_t row = std::min(operand.size, operand.limit - start);
      const uint64_t bytes = (operand.rows - 1) * operand.row_stride + row;
      // Everything that the instruction may touch; the own rank's place last, as it is from there that it reaches
      // others.
      std::byte* slice = nullptr;
      const auto [first, count] = ranks_of(operand.rank);
      for (uint32_t rank = first; rank < first + count; ++rank) {
        const uint64_t theirs = operand.address + start + static_cast<uint64_t>(rank_delta_[rank]);
        if (translate_(theirs, bytes, "an operand's slice at a rank") == nullptr) return false;
      }
      slice = translate_(operand.address + start, bytes, "an operand's slice");
      if (slice == nullptr) return false;
      operand.address = reinterpret_cast<uintptr_t>(slice) - start;
    }
    return true;
  }

  uint64_t counter_number(uint32_t first, const uint32_t (&stride)[MKRT_TILE_DIMENSIONS],
                          const uint32_t (&divide)[MKRT_TILE_DIMENSIONS]) const {
    uint64_t number = first;
    for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) number += uint64_t{tile_.index[d] / divide[d]} * stride[d];
    return number;
  }
  bool find_counter(uint32_t*& out, uint64_t number, uint32_t rank) {
    const uint64_t own = launch_.counters + number * MKRT_COUNTER_STRIDE;
    return find(out, own + static_cast<uint64_t>(rank_delta_[rank]), 1, "a counter");
  }

  bool wait(const mkrt_wait& wait) {
    const uint64_t first = counter_number(wait.first, wait.stride, wait.divide);
    const uint32_t steps = *epoch_ + place_.step + static_cast<uint32_t>(wait.step_offset);
    const uint32_t wanted = steps * wait.step_total + wait.value;
    const uint64_t begin = now_ns();
    for (uint64_t number = first; number < first + wait.count; ++number) {
      uint32_t* counter = nullptr;
      if (!find_counter(counter, number, launch_.rank)) return false;
      for (;;) {
        const uint32_t seen = std::atomic_ref(*counter).load(std::memory_order_acquire);
        if (static_cast<int32_t>(seen - wanted) >= 0) break;
        // Where another rank's deadline passed, this tile may be what it waits for, and says what it waits for itself.
        const uint32_t abort = abort_word();
        if (lost_()) return false;
        if (abort != 0 && abort != MKRT_ERROR_DEADLINE) return false;
        const uint64_t waited = now_ns() - begin;
        if (abort != 0 || waited > launch_.wait_limit_ns) {
          report_->counter = static_cast<uint32_t>(number);
          report_->value_seen = seen;
          report_->value_wanted = wanted;
          report_->waited_ns = waited;
          give_up(MKRT_ERROR_DEADLINE);
          return false;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    return true;
  }

  void give_up(uint32_t status) {
    report_->rank = launch_.rank;
    report_->sm = place_.block;
    report_->record = record_.index;
    report_->tile = place_.tile;
    report_->step = place_.step;
    report_->timeline_value = launch_.timeline_value;
    std::atomic_ref(report_->status).store(status, std::memory_order_release);
    mkrt_report kept = *report_;
    kept.status = status;
    control_->report = kept;  // where hosts of other processes look
    abort_ranks(status);
  }

  void trace(uint64_t sequence) {
    if (trace_ == nullptr || sequence >= launch_.trace_tiles) return;
    mkrt_trace_tile& out = trace_[uint64_t{place_.block} * launch_.trace_tiles + sequence];
    out.record = place_.record;
    out.step = place_.step;
    out.tile = place_.tile;
    out.time[MKRT_TRACE_FETCHED] = now_ns();
    out.time[MKRT_TRACE_SIGNALLED] = now_ns();
  }

  void finish() {
    if (lost_()) return;
    control_->queue = 0;
    control_->blocks_done = 0;
    *epoch_ += launch_.step_count;
    if (launch_.rank_count > 1) end_together();
    if (lost_()) return;
    std::atomic_ref(*timeline_).store(launch_.timeline_value, std::memory_order_release);
  }

  struct Place {
    uint32_t record, step, tile, block;
  };

  const mkrt_launch launch_;
  const uint32_t grid_;  // blocks of the rank
  const mkrt_host_isa& isa_;
  const Translate& translate_;
  const Lost& lost_;
  std::vector<std::byte> scratch_;
  mkrt_record* records_ = nullptr;
  uint32_t* first_tiles_ = nullptr;
  mkrt_control* control_ = nullptr;
  uint32_t* epoch_ = nullptr;
  int64_t* rank_delta_ = nullptr;
  mkrt_report* report_ = nullptr;
  uint64_t* timeline_ = nullptr;
  mkrt_trace_tile* trace_ = nullptr;
  mkrt_record record_{};
  Place place_{};
  mkrt_host_tile tile_{};
};

}  // namespace

std::string run_kernel(const mkrt_launch& launch, uint32_t grid, const mkrt_host_isa& isa, const Translate& translate,
                       const Lost& lost) {
  if (launch.local_rank_count == 1) {
    Kernel(launch, grid, isa, translate, lost).run();
    return "";
  }
  const auto* ranks = reinterpret_cast<const mkrt_launch*>(
      translate(launch.local_ranks, launch.local_rank_count * sizeof(mkrt_launch), "a launch's ranks"));
  if (ranks == nullptr) return "";
  std::vector<std::thread> threads;
  uint32_t blocks = 0;
  std::vector<std::pair<mkrt_launch, uint32_t>> parts;
  for (uint32_t i = 0; i < launch.local_rank_count; ++i) {
    mkrt_launch part = launch;
    std::memcpy(&part, &ranks[i], offsetof(mkrt_launch, timeline_value));
    parts.emplace_back(part, std::min(part.blocks, launch.block_limit));
    blocks += parts.back().second;
  }
  if (blocks != grid) return "a launch's blocks are not those of its ranks";
  for (const auto& [part, share] : parts) {
    threads.emplace_back([&, part = part, share = share] { Kernel(part, share, isa, translate, lost).run(); });
  }
  for (std::thread& thread : threads) thread.join();
  return "";
}

}  // namespace mkrt::cuda::test
