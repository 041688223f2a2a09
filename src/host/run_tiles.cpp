// The persistent loop of a worker: take a tile, wait for its counters, run it, signal.
#include <algorithm>
#include <atomic>

#include "device/failures.hpp"
#include "host/shared_session.hpp"
#include "host/spin.hpp"
#include "host/together.hpp"
#include "host/turn.hpp"

namespace mkrt::host {

namespace {

// A turn that others wait for ends at the first step that begins after this time. A change of turns costs all workers
// some microseconds (tests/bench/host_queue), so sessions that alternate lose about a hundredth.
constexpr uint64_t turn_ns = 1'000'000;

std::atomic_ref<uint32_t> counter_at(const RankTable& table, uint64_t index) noexcept {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(table.counters + index * MKRT_COUNTER_STRIDE));
}

// Counters and thresholds wrap around; they are never 2^31 apart (a step adds at most 2^30 to a counter).
bool reached(uint32_t seen, uint32_t wanted) noexcept { return static_cast<int32_t>(seen - wanted) >= 0; }

uint64_t counter_index(const uint32_t (&index)[MKRT_TILE_DIMENSIONS], uint32_t first,
                       const uint32_t (&stride)[MKRT_TILE_DIMENSIONS],
                       const uint32_t (&divide)[MKRT_TILE_DIMENSIONS]) noexcept {
  uint64_t counter = first;
  for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) {
    if (stride[d] != 0) counter += uint64_t{index[d] / divide[d]} * stride[d];
  }
  return counter;
}

class TileRunner {
 public:
  TileRunner(Turn& turn, uint32_t rank, uint32_t worker) noexcept;
  void run() noexcept;

 private:
  uint64_t take() noexcept;
  bool seek(uint64_t number) noexcept;
  bool run_tile() noexcept;
  void set_indices() noexcept;
  bool wait_for(const mkrt_wait& wait) noexcept;
  bool wait_longer(uint64_t counter, uint32_t wanted) noexcept;
  bool ended() const noexcept;
  void signal(const mkrt_signal& signal) noexcept;
  device::TilePlace place() const noexcept;

  Turn& turn_;
  Turn::Rank& queue_;
  const SharedSession* const shared_;
  const RankTable& table_;
  const uint64_t step_tiles_;
  const uint64_t end_;
  const uint32_t worker_;
  uint64_t next_;            // static mode: the tile to take next
  uint64_t step_ = 0;        // of the turn
  uint64_t step_begin_ = 0;  // number of its first tile
  bool step_admitted_ = false;
  const mkrt_record* record_;
  uint64_t tile_in_record_ = 0;
  uint64_t number_ = 0;  // of the tile, as Turn::Place has it
  mkrt_host_tile tile_{};
};

TileRunner::TileRunner(Turn& turn, uint32_t rank, uint32_t worker) noexcept
    : turn_(turn),
      queue_(turn.ranks[rank - turn.first_rank]),
      shared_(turn.tables->shared),
      table_(turn.entry->ranks[rank]),
      step_tiles_(turn.entry->definition->tile_count),
      end_(step_tiles_ * turn.step_count),
      worker_(worker),
      next_(worker),
      record_(table_.records) {
  tile_.rank = rank;
  tile_.rank_count = turn.rank_count;
  tile_.rank_delta = turn.tables->rank_deltas.data() + size_t{rank} * turn.rank_count;
  tile_.scratch_size = turn.tables->isa->scratch_size;
  if (tile_.scratch_size != 0)
    tile_.scratch = turn.tables->scratch[rank - turn.first_rank] + worker * turn.tables->scratch_stride;
  tile_.execute_serial = turn.execute_serial;
}

void TileRunner::run() noexcept {
  if (shared_ != nullptr && !begin_together(turn_)) return;
  for (uint64_t number = take(); number < end_ && seek(number); number = take()) {
    if (ended() || !run_tile()) return;
  }
}

// Whether the tile is not to be run any more. Relaxed: it may be seen a tile late, and nothing is read on its account.
bool TileRunner::ended() const noexcept {
  return number_ >= turn_.end.load(std::memory_order_relaxed) || (shared_ != nullptr && shared_->aborted());
}

// The queue. Relaxed: the number alone is what matters; counters order the tiles' data. It cannot overflow: a step has
// fewer than 2^32 tiles, an execute fewer than 2^32 steps, and each worker takes at most one number too many.
uint64_t TileRunner::take() noexcept {
  if (turn_.dynamic_queue) return queue_.next_tile.fetch_add(1, std::memory_order_relaxed);
  const uint64_t number = next_;
  next_ += queue_.workers;
  return number;
}

// Moves the cursor to tile `number`; numbers that one worker takes only grow. False where the turn ends before it.
bool TileRunner::seek(uint64_t number) noexcept {
  while (number - step_begin_ >= step_tiles_) {
    step_begin_ += step_tiles_;
    ++step_;
    step_admitted_ = false;
    record_ = table_.records;
  }
  if (!step_admitted_) {
    step_admitted_ = turn_.gate.admit(step_, [this] {
      return turn_.contended.load(std::memory_order_relaxed) && now_ns() - turn_.start_ns >= turn_ns;
    });
    if (!step_admitted_) return false;
  }
  const uint64_t tile = number - step_begin_;
  while (tile - record_->first_tile >= record_->tile_count) ++record_;
  tile_in_record_ = tile - record_->first_tile;
  number_ = step_ << 32 | tile;  // a step has fewer than 2^32 tiles
  return true;
}

bool TileRunner::run_tile() noexcept {
  tile_.record = record_;
  tile_.step = turn_.first_step + step_;
  set_indices();
  for (uint32_t i = 0; i < record_->wait_count; ++i) {
    if (!wait_for(record_->wait[i])) return false;
  }
  const uint32_t fault = turn_.tables->isa->instructions[record_->opcode](&tile_);
  if (fault != 0) {
    turn_.fail({number_, tile_.rank}, 0, [&](mkrt_error& failure) {
      device::fill_fault(turn_.tables->program->isa, *turn_.entry->definition, place(), fault, &failure);
    });
    return false;
  }
  for (uint32_t i = 0; i < record_->signal_count; ++i) signal(record_->signal[i]);
  return true;
}

void TileRunner::set_indices() noexcept {
  uint32_t rest = static_cast<uint32_t>(tile_in_record_);  // a record has fewer than 2^31 tiles
  for (int d = MKRT_TILE_DIMENSIONS - 1; d > 0; --d) {
    const uint32_t size = record_->grid[d];
    tile_.index[d] = size == 1 ? 0 : rest % size;
    if (size != 1) rest /= size;
  }
  tile_.index[0] = rest;
}

bool TileRunner::wait_for(const mkrt_wait& wait) noexcept {
  const uint64_t first = counter_index(tile_.index, wait.first, wait.stride, wait.divide);
  // Modulo 2^32, as the counters count.
  const uint32_t steps = turn_.epoch + static_cast<uint32_t>(step_) + static_cast<uint32_t>(wait.step_offset);
  const uint32_t wanted = steps * wait.step_total + wait.value;
  for (uint64_t counter = first; counter < first + wait.count; ++counter) {
    // Acquire: what the signalling tiles wrote is visible to this tile. Pairs with the release in `signal`; additions
    // in between continue its release sequence, so the last one seen stands for all.
    const uint32_t seen = counter_at(table_, counter).load(std::memory_order_acquire);
    if (!reached(seen, wanted) && !wait_longer(counter, wanted)) return false;
  }
  return true;
}

// Where a later tile's deadline has passed, this one goes on waiting until its own does: it may be what the other waits
// for, and then it is the one to report.
bool TileRunner::wait_longer(uint64_t counter, uint32_t wanted) noexcept {
  uint64_t waited = 0;
  Spinner spinner(turn_.yield_interval_ns);
  LossWatch loss;
  while (waited < turn_.wait_limit_ns) {
    const uint64_t last_look = spinner.now();
    bool over_for_all = false;
    const bool over = spinner.look([&] {
      // Acquire: as in wait_for.
      if (reached(counter_at(table_, counter).load(std::memory_order_acquire), wanted)) return true;
      over_for_all = ended();
      return over_for_all;
    });
    if (over) return !over_for_all;
    if (shared_ != nullptr && loss.look(turn_, spinner.now())) return false;
    waited += std::min(spinner.now() - last_look, Turn::longest_gap_ns);
  }
  const uint32_t seen = counter_at(table_, counter).load(std::memory_order_acquire);
  if (reached(seen, wanted)) return true;
  turn_.fail({number_, tile_.rank}, number_ + 1, [&](mkrt_error& failure) {
    const device::MissedCounter missed{static_cast<uint32_t>(counter), seen, wanted, waited};
    device::fill_deadline(*turn_.entry->definition, place(), missed, &failure);
  });
  return false;
}

void TileRunner::signal(const mkrt_signal& signal) noexcept {
  const uint64_t counter = counter_index(tile_.index, signal.first, signal.stride, signal.divide);
  uint32_t rank = tile_.rank;
  uint32_t count = 1;
  switch (signal.rank.mode) {
    case MKRT_RANK_ALL:
      rank = 0;
      count = turn_.rank_count;
      break;
    case MKRT_RANK_FIXED: rank = signal.rank.offset; break;
    case MKRT_RANK_RELATIVE: {
      const uint64_t index = signal.rank.dimension == 0xff ? 0 : tile_.index[signal.rank.dimension];
      rank = static_cast<uint32_t>((rank + signal.rank.offset + index) % turn_.rank_count);
      break;
    }
    default: break;
  }
  for (uint32_t end = rank + count; rank < end; ++rank) {
    // Release: what the tile wrote, here and at peers, is visible to whoever sees the count. Ranks are threads of one
    // machine, in one process or in several that share this memory, so this holds for a peer's counter just as well.
    // Pairs with the acquire in wait_for.
    counter_at(turn_.entry->ranks[rank], counter).fetch_add(1, std::memory_order_release);
  }
}

device::TilePlace TileRunner::place() const noexcept {
  return {tile_.rank, worker_, "worker", record_->index, tile_in_record_, turn_.first_step + step_};
}

}  // namespace

void Turn::abort_others() const noexcept { tables->shared->abort(); }

void run_tiles(Turn& turn, uint32_t rank, uint32_t worker) noexcept { TileRunner(turn, rank, worker).run(); }

}  // namespace mkrt::host
