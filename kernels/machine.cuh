// The virtual machine: one block an SM, warps with roles, all of them walking the same sequence of tiles.
//
// README.md beside this file draws the picture. This header holds what the roles share: shared memory, the barriers
// between roles, waits that cannot hang, and the walk over tiles. It knows the schedule's form and nothing of any
// instruction set.
#pragma once

#include <cstdint>

#include "mkrt/device/launch.h"
#include "mkrt/mkrt.h"
#include "ptx.cuh"

namespace mkrt::machine {

// Warps of a block. Eight consumers eat pages at more than twice the rate at which memory fills them; 16 did not help
// (PERFORMANCE.md). Two store warps hide a signal's latency behind the next tile's.
constexpr uint32_t consumer_warps = 8;
constexpr uint32_t store_warps = 2;
constexpr uint32_t fetch_warp = consumer_warps;
constexpr uint32_t weight_warp = fetch_warp + 1;
constexpr uint32_t activation_warp = weight_warp + 1;
constexpr uint32_t first_store_warp = activation_warp + 1;
constexpr uint32_t block_warps = first_store_warp + store_warps;
constexpr uint32_t block_threads = block_warps * 32;

// Tiles that are somewhere between fetch and store at a time. Two are being loaded, one computed, one stored, and two
// are on their way from the queue.
constexpr uint32_t tile_slots = 6;
// A page holds 8 rows x 1024 columns of bf16: 16 KB, the size at which bulk copies reach the read limit.
constexpr uint32_t page_bytes = 16384;
constexpr uint32_t maximum_pages = 16;
// What consumers hand to the store warps: 8 warps x 4 row blocks x 16 sequences x 8 rows of f32, and attention's parts.
constexpr uint32_t partial_bytes = 18432;
constexpr uint32_t maximum_batch = 16;

// A tile on its way through the block. The fetch warp fills it, every role reads it.
struct TileSlot {
  alignas(16) mkrt_record record;
  uint32_t index[MKRT_TILE_DIMENSIONS];
  uint64_t step;   // of the launch
  uint32_t epoch;  // of the entry
  uint32_t last;   // 1: no tile, the walk ends here
};
static_assert(sizeof(TileSlot) % 16 == 0 && alignof(TileSlot) == 16);

// Shared memory of a block: this, then two activation buffers, then the ring of pages.
struct Shared {
  TileSlot slot[tile_slots];
  alignas(16) unsigned char partial[2][partial_bytes];
  float sum_of_squares[2][consumer_warps][maximum_batch];
  alignas(16) float addend[2][4][maximum_batch][8];
  uint64_t slot_full[tile_slots];
  uint64_t slot_free[tile_slots];
  uint64_t page_full[maximum_pages];
  uint64_t page_free[maximum_pages];
  uint64_t input_full[2];
  uint64_t input_free[2];
  uint64_t partial_full[2];
  uint64_t partial_free[2];
  uint64_t consumer_barrier;
  uint32_t abort;
  uint32_t fault;
  uint32_t epoch;
  uint32_t first_tile[MKRT_LAUNCH_RECORDS + 1];
};
constexpr uint32_t fixed_shared_bytes = (sizeof(Shared) + 127) / 128 * 128;

struct Block {
  const mkrt_launch* launch;
  Shared* shared;
  unsigned char* activations;  // two buffers
  unsigned char* pages;

  __device__ mkrt_control* control() const { return reinterpret_cast<mkrt_control*>(launch->control); }
  __device__ unsigned char* activation_buffer(uint32_t number) const {
    return activations + static_cast<size_t>(number) * launch->activation_bytes;
  }
};

// ---- waits that cannot hang ---------------------------------------------------------------------------------------

// Waits for a phase of a block's barrier; false when the block is leaving. All lanes of a warp call it and agree.
__device__ inline bool wait_warp(const Block& block, uint64_t* barrier, uint32_t parity) {
  while (!__all_sync(ptx::full_mask, ptx::barrier_test(barrier, parity))) {
    if (__any_sync(ptx::full_mask, ptx::load_relaxed_block(&block.shared->abort) != 0)) return false;
  }
  return true;
}

// Position in a ring of `size` barriers: where, and how often it went round.
template <uint32_t size>
struct Ring {
  uint32_t place = 0;
  uint32_t phase = 0;
  __device__ void advance() {
    if (++place == size) {
      place = 0;
      phase ^= 1;
    }
  }
};

// Makes this block leave, and all others as soon as they look. The first one to come writes the report.
__device__ inline void give_up(const Block& block, const mkrt_report& report) {
  mkrt_control* control = block.control();
  if (ptx::compare_swap_relaxed_gpu(&control->abort, 0, report.status) == 0) {
    auto* out = reinterpret_cast<mkrt_report*>(block.launch->report);
    uint32_t sm;
    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    out->rank = block.launch->rank;
    out->sm = sm;
    out->record = report.record;
    out->tile = report.tile;
    out->step = report.step;
    out->counter = report.counter;
    out->value_seen = report.value_seen;
    out->value_wanted = report.value_wanted;
    out->fault = report.fault;
    out->waited_ns = report.waited_ns;
    // Release at system scope: a host that sees the status sees the rest.
    ptx::store_release_system(&out->status, report.status);
    const auto* delta = reinterpret_cast<const int64_t*>(block.launch->rank_delta);
    for (uint32_t rank = 0; rank < block.launch->rank_count; ++rank) {
      auto* theirs = reinterpret_cast<mkrt_control*>(reinterpret_cast<uint64_t>(control) + delta[rank]);
      ptx::store_release_system(&theirs->abort, report.status);
    }
  }
  ptx::store_relaxed_block(&block.shared->abort, 1);
}

__device__ inline uint64_t tile_in_record(const TileSlot& tile) {
  uint64_t number = 0;
  for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) number = number * tile.record.grid[d] + tile.index[d];
  return number;
}

// ---- a tile's operands, waits and signals -------------------------------------------------------------------------

__device__ inline uint64_t operand_start(const TileSlot& tile, uint32_t number) {
  const mkrt_operand& operand = tile.record.operand[number];
  uint64_t start = 0;
#pragma unroll
  for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) start += tile.index[d] * operand.stride[d];
  return start;
}
__device__ inline bool operand_present(const TileSlot& tile, uint32_t number) {
  return tile.record.operand[number].address != 0;
}
template <class Element>
__device__ Element* operand(const TileSlot& tile, uint32_t number) {
  return reinterpret_cast<Element*>(tile.record.operand[number].address + operand_start(tile, number));
}
// Elements of a row of the tile's slice, cut at the operand's limit.
template <class Element>
__device__ uint32_t operand_size(const TileSlot& tile, uint32_t number) {
  const mkrt_operand& operand = tile.record.operand[number];
  const uint64_t left = operand.limit - operand_start(tile, number);
  return static_cast<uint32_t>((left < operand.size ? left : operand.size) / sizeof(Element));
}
template <class Element>
__device__ uint64_t row_stride(const TileSlot& tile, uint32_t number) {
  return tile.record.operand[number].row_stride / sizeof(Element);
}

// Calls `body(delta)` for each rank that the selector means; adding delta to an own-rank address gives that rank's.
template <class Body>
__device__ void for_each_rank(const mkrt_launch& launch, const TileSlot& tile, mkrt_rank_selector selector, Body body) {
  if (selector.mode == MKRT_RANK_SELF) {
    body(int64_t{0});
    return;
  }
  const auto* delta = reinterpret_cast<const int64_t*>(launch.rank_delta);
  if (selector.mode == MKRT_RANK_ALL) {
    for (uint32_t rank = 0; rank < launch.rank_count; ++rank) body(delta[rank]);
    return;
  }
  uint32_t rank = selector.offset;
  if (selector.mode == MKRT_RANK_RELATIVE) {
    rank += launch.rank + (selector.dimension < MKRT_TILE_DIMENSIONS ? tile.index[selector.dimension] : 0);
    rank %= launch.rank_count;
  }
  body(delta[rank]);
}

template <class WaitOrSignal>
__device__ uint32_t counter_number(const TileSlot& tile, const WaitOrSignal& of) {
  uint32_t number = of.first;
#pragma unroll
  for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) {
    if (of.stride[d] != 0) number += tile.index[d] / of.divide[d] * of.stride[d];
  }
  return number;
}
__device__ inline uint32_t* counter_address(const mkrt_launch& launch, uint32_t number) {
  return reinterpret_cast<uint32_t*>(launch.counters + static_cast<uint64_t>(number) * MKRT_COUNTER_STRIDE);
}

// ---- waiting for counters (activation warp) ------------------------------------------------------------------------

// Polls between two looks at the clock and the abort word: about 50 us, so that looking costs nothing and a cancel is
// seen well within a millisecond.
constexpr uint32_t polls_between_looks = 64;

// Waits for one record's wait; lanes share its counters. False when the block is leaving.
__device__ inline bool wait_counters(const Block& block, const TileSlot& tile, const mkrt_wait& wait) {
  const mkrt_launch& launch = *block.launch;
  const uint32_t target = (tile.epoch + static_cast<uint32_t>(wait.step_offset)) * wait.step_total + wait.value;
  const uint32_t first = counter_number(tile, wait);
  uint64_t begin = 0;
  for (uint32_t base = 0; base < wait.count; base += 32) {
    const uint32_t mine = base + ptx::lane_number();
    const uint32_t* address = counter_address(launch, first + (mine < wait.count ? mine : base));
    for (uint32_t polls = 1;; ++polls) {
      // Acquire: pairs with the release of every signal that the value counts, so that what those tiles wrote is
      // visible to whoever is told next through the block's barriers. System scope where peers signal.
      const uint32_t value =
          launch.rank_count == 1 ? ptx::load_acquire_gpu(address) : ptx::load_acquire_system(address);
      const bool reached = static_cast<int32_t>(value - target) >= 0;
      if (__all_sync(ptx::full_mask, reached)) break;
      if (polls % polls_between_looks != 0) continue;
      const uint64_t now = ptx::time_ns();
      if (begin == 0) begin = now;
      const bool aborted = ptx::load_relaxed_gpu(&block.control()->abort) != 0;
      const bool late = now - begin > launch.wait_limit_ns;
      if (__any_sync(ptx::full_mask, aborted)) {
        ptx::store_relaxed_block(&block.shared->abort, 1);
        return false;
      }
      if (!__any_sync(ptx::full_mask, late)) continue;
      const uint32_t behind = __ballot_sync(ptx::full_mask, !reached);
      if (ptx::lane_number() == __ffs(behind) - 1) {
        mkrt_report report{};
        report.status = MKRT_ERROR_DEADLINE;
        report.record = tile.record.index;
        report.tile = tile_in_record(tile);
        report.step = tile.step;
        report.counter = first + mine;
        report.value_seen = value;
        report.value_wanted = target;
        report.waited_ns = now - begin;
        give_up(block, report);
      }
      __syncwarp();
      return false;
    }
  }
  // Lanes acquired different counters; from here on each has what all acquired.
  __syncwarp();
  return true;
}

__device__ inline bool wait_all_counters(const Block& block, const TileSlot& tile) {
  for (uint32_t w = 0; w < tile.record.wait_count; ++w) {
    if (!wait_counters(block, tile, tile.record.wait[w])) return false;
  }
  return true;
}

// ---- signalling (store warps) --------------------------------------------------------------------------------------

// Adds up a store warp's signals to one counter and sends them together: the release costs as much for many tiles as
// for one (0.696 -> 0.664 ms for the chain of PERFORMANCE.md).
struct PendingSignals {
  uint32_t counter = 0;
  uint32_t count = 0;
};

__device__ inline void send_signal(const mkrt_launch& launch, const TileSlot& tile, const mkrt_signal& signal,
                                   uint32_t number, uint32_t count) {
  for_each_rank(launch, tile, signal.rank, [&](int64_t delta) {
    auto* address = reinterpret_cast<uint32_t*>(reinterpret_cast<uint64_t>(counter_address(launch, number)) + delta);
    // Release: everything that this tile wrote, and read, comes before the count. The block's barriers made it known
    // to this thread; system scope reaches peers.
    if (signal.rank.mode == MKRT_RANK_SELF) {
      ptx::add_release_gpu(address, count);
    } else {
      ptx::add_release_system(address, count);
    }
  });
}

// ---- fetch warp -----------------------------------------------------------------------------------------------------

// Arrivals that make a slot full.
constexpr uint32_t slot_arrivals = MKRT_BULK_COPY ? 1 : ptx::copy_arrivals + 1;

// Waits for the records that are still on their way: nothing may arrive in a block that has left.
__device__ inline void drain_slots(Shared& shared, const Ring<tile_slots>& next) {
  for (uint32_t place = 0; place < tile_slots; ++place) {
    const uint32_t parity = place < next.place ? next.phase : next.phase ^ 1;
    while (!ptx::barrier_test(&shared.slot_full[place], parity)) {
    }
  }
}

// Takes tile numbers and brings their records into slots, several ahead of the other roles.
__device__ inline void fetch_role(const Block& block) {
  const mkrt_launch& launch = *block.launch;
  Shared& shared = *block.shared;
  mkrt_control* control = block.control();
  const bool dynamic = launch.queue_mode == MKRT_QUEUE_DYNAMIC;
  const uint32_t tiles_per_step = shared.first_tile[launch.record_count];
  const uint32_t lane = ptx::lane_number();
  // Numbers on their way. Three are enough to cover the queue's latency of about a microsecond under load.
  constexpr uint32_t ahead = 3;
  uint64_t number[ahead];
  uint64_t taken = blockIdx.x;
  const auto take = [&]() -> uint64_t {
    if (dynamic) return lane == 0 ? ptx::fetch_add_relaxed_gpu(&control->queue, 1) : 0;
    const uint64_t mine = taken;
    taken += gridDim.x;
    return mine;
  };
  // A canceled or failed launch stops here even where no tile waits for long; looked at as far ahead as the numbers.
  uint32_t aborted[ahead];
#pragma unroll
  for (uint32_t i = 0; i < ahead; ++i) {
    number[i] = take();
    aborted[i] = ptx::load_relaxed_gpu(&control->abort);
  }

  uint64_t step_base = 0;
  uint32_t step = 0;
  uint32_t cursor = 0;
  Ring<tile_slots> ring;
  for (;;) {
#pragma unroll
    for (uint32_t i = 0; i < ahead; ++i) {
      const uint64_t current = __shfl_sync(ptx::full_mask, number[i], 0);
      const bool leaving = __any_sync(ptx::full_mask, aborted[i] != 0);
      number[i] = take();
      aborted[i] = ptx::load_relaxed_gpu(&control->abort);
      while (current - step_base >= tiles_per_step && step < launch.step_count) {
        step_base += tiles_per_step;
        ++step;
        cursor = 0;
      }
      if (leaving) ptx::store_relaxed_block(&shared.abort, 1);
      if (leaving || !wait_warp(block, &shared.slot_free[ring.place], ring.phase ^ 1)) {
        drain_slots(shared, ring);
        return;
      }
      TileSlot& slot = shared.slot[ring.place];
      if (step >= launch.step_count) {
        if (lane == 0) slot.last = 1;
        __syncwarp();
        for (uint32_t a = lane; a < slot_arrivals; a += 32) ptx::barrier_arrive(&shared.slot_full[ring.place]);
        return;
      }
      const uint32_t tile = static_cast<uint32_t>(current - step_base);
      while (tile >= shared.first_tile[cursor + 1]) ++cursor;
      const auto* record = reinterpret_cast<const mkrt_record*>(launch.records) + cursor;
      if (lane == 0) {
        slot.last = 0;
        slot.step = step;
        slot.epoch = shared.epoch + step;
        // The record's own grid arrives later; this one is the same and already cached.
        uint32_t rest = tile - shared.first_tile[cursor];
#pragma unroll
        for (int d = MKRT_TILE_DIMENSIONS - 1; d > 0; --d) {
          const uint32_t extent = __ldg(&record->grid[d]);
          slot.index[d] = extent == 1 ? 0 : rest % extent;
          rest = extent == 1 ? rest : rest / extent;
        }
        slot.index[0] = rest;
      }
      __syncwarp();
#if MKRT_BULK_COPY
      if (lane == 0) {
        ptx::barrier_expect(&shared.slot_full[ring.place], sizeof(mkrt_record));
        ptx::bulk_copy(&slot.record, record, sizeof(mkrt_record), &shared.slot_full[ring.place]);
      }
#else
      for (uint32_t at = lane * 16; at < sizeof(mkrt_record); at += 32 * 16) {
        ptx::async_copy_16(reinterpret_cast<unsigned char*>(&slot.record) + at,
                           reinterpret_cast<const unsigned char*>(record) + at);
      }
      ptx::async_copy_arrive(&shared.slot_full[ring.place]);
      // The copies' arrivals say nothing of what lane 0 stored above; this one does.
      if (lane == 0) ptx::barrier_arrive(&shared.slot_full[ring.place]);
#endif
      ring.advance();
    }
  }
}

// The walk of every other role over the same tiles.
struct Walk {
  Ring<tile_slots> ring;

  // The next tile, or nullptr at the end or when the block is leaving.
  __device__ const TileSlot* next(const Block& block) {
    if (!wait_warp(block, &block.shared->slot_full[ring.place], ring.phase)) return nullptr;
    const TileSlot* slot = &block.shared->slot[ring.place];
    return slot->last != 0 ? nullptr : slot;
  }
  // Done with the tile: the slot may be filled again once every role said so.
  __device__ void release(const Block& block) {
    __syncwarp();
    if (ptx::lane_number() == 0) ptx::barrier_arrive(&block.shared->slot_free[ring.place]);
    ring.advance();
  }
};

// ---- start and end of a block --------------------------------------------------------------------------------------

__device__ inline void start_block(const Block& block) {
  Shared& shared = *block.shared;
  const mkrt_launch& launch = *block.launch;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < tile_slots; ++i) {
      ptx::barrier_init(&shared.slot_full[i], slot_arrivals);
      ptx::barrier_init(&shared.slot_free[i], consumer_warps + 2 + store_warps);
    }
    for (uint32_t i = 0; i < launch.page_count; ++i) {
      ptx::barrier_init(&shared.page_full[i], ptx::copy_arrivals);
      ptx::barrier_init(&shared.page_free[i], consumer_warps);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      ptx::barrier_init(&shared.input_full[i], ptx::copy_arrivals);
      ptx::barrier_init(&shared.input_free[i], consumer_warps);
      ptx::barrier_init(&shared.partial_full[i], consumer_warps);
      ptx::barrier_init(&shared.partial_free[i], 1);
    }
    ptx::barrier_init(&shared.consumer_barrier, consumer_warps);
    ptx::barrier_init_fence();
    shared.abort = 0;
    shared.fault = 0;
    shared.epoch = *reinterpret_cast<const uint32_t*>(launch.epoch);
  }
  const auto* first_tiles = reinterpret_cast<const uint32_t*>(launch.first_tiles);
  for (uint32_t i = threadIdx.x; i <= launch.record_count; i += block_threads) shared.first_tile[i] = first_tiles[i];
  __syncthreads();
}

// The last block to leave makes the control words ready for the next launch and tells the host.
__device__ inline void finish_block(const Block& block) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  const mkrt_launch& launch = *block.launch;
  mkrt_control* control = block.control();
  // Acquire and release: the last block comes after all others' work, and its timeline store tells the host of it.
  if (ptx::fetch_add_acq_rel_gpu(&control->blocks_done, 1) != gridDim.x - 1) return;
  control->queue = 0;
  control->blocks_done = 0;
  *reinterpret_cast<uint32_t*>(launch.epoch) += launch.step_count;
  __threadfence_system();
  ptx::store_release_system(reinterpret_cast<uint64_t*>(launch.timeline), launch.timeline_value);
}

}  // namespace mkrt::machine
