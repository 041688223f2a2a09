// The virtual machine: one block an SM, warps with roles, all of them walking the same sequence of tiles.
//
// README.md beside this file draws the picture. This header holds what the roles share: shared memory, the barriers
// between roles, waits that cannot hang, and the walk over tiles. It knows the schedule's form and nothing of any
// instruction set.
#pragma once

#include <cstdint>

#include "mkrt/device/launch.h"
#include "mkrt/device/layout.h"
#include "mkrt/mkrt.h"
#include "ptx.cuh"

namespace mkrt::machine {

// What a kernel leaves out, where it is built to measure what the rest costs (MKRT_LEAVE_OUT of CMakeLists.txt). Its
// results are of no use then.
enum Part : uint32_t { part_dependencies = 1, part_attention = 2, part_products = 4 };
#ifndef MKRT_LEAVE_OUT
#define MKRT_LEAVE_OUT 0
#endif
__device__ constexpr bool left_out(Part part) { return (MKRT_LEAVE_OUT & part) != 0; }

// Warps of a block. Eight consumers eat pages at more than twice the rate at which memory fills them; 16 did not help
// (PERFORMANCE.md). Twelve warps in all leave each thread 168 registers, a thirteenth would leave 128.
constexpr uint32_t consumer_warps = 8;
constexpr uint32_t fetch_warp = consumer_warps;
constexpr uint32_t weight_warp = fetch_warp + 1;
constexpr uint32_t activation_warp = weight_warp + 1;
constexpr uint32_t store_warp = activation_warp + 1;
constexpr uint32_t block_warps = store_warp + 1;
constexpr uint32_t block_threads = block_warps * 32;

// The hardware barrier that consumers share; 0 is __syncthreads.
constexpr uint32_t consumer_barrier = 1;

// Tiles that are somewhere between fetch and store at a time: one on its way from the queue, one being loaded, one
// computed, one stored. More would take dynamic tiles away from blocks that are free sooner.
constexpr uint32_t tile_slots = 4;
// Chips with 99 KB of shared memory a block get a machine with pages and units of half the size. By their data sheets
// memory gives each of their SMs 5 to 15 bytes a ns, an H200's gets 35: half the bytes on their way and a quarter of
// the ring last about as long.
constexpr bool small_machine = MKRT_CHIP_SHARED_MEMORY < 128 * 1024;
// A page holds 8 rows x 1024 columns of bf16: 16 KB, the size at which bulk copies reach an H200's read limit.
constexpr uint32_t page_bytes = small_machine ? 8192 : 16384;
constexpr uint32_t maximum_pages = 16;
// Pages that stay for the ring when activations would like more: three or four on their way, two being eaten, and
// others to cover a wait (6 -> 8 took 1 % off, 9 cost a quarter, PERFORMANCE.md).
constexpr uint32_t preferred_pages = small_machine ? 4 : 8;
// Blocks of 8 rows that are worked on together.
constexpr uint32_t unit_row_blocks = small_machine ? 2 : 4;
constexpr uint32_t maximum_batch = 16;
// What consumers hand to the store warp: 8 warps x unit_row_blocks x 16 sequences x 8 rows of f32, or attention's parts
// of as many heads as fit: of 64 elements eight, in a small machine seven.
constexpr uint32_t partial_bytes = small_machine ? 8992 : 18432;

// Room for what an instruction set prepares.
constexpr uint32_t prepared_bytes = 96;

// A tile on its way through the block. The fetch warp fills it, every role reads it.
struct TileSlot {
  alignas(16) mkrt_record record;
  // Worked out once by the fetch warp, so that no role repeats it.
  uint64_t address[MKRT_RECORD_OPERANDS];  // first byte of the tile's slice on the own rank; 0: absent
  uint32_t size[MKRT_RECORD_OPERANDS];     // bytes of its rows, cut at the limit; at most 2^32 - 1
  uint32_t wait_counter[MKRT_RECORD_WAITS];
  uint32_t wait_target[MKRT_RECORD_WAITS];
  uint32_t signal_counter[MKRT_RECORD_SIGNALS];
  uint32_t index[MKRT_TILE_DIMENSIONS];
  uint32_t number;  // in the record
  uint32_t step;    // of the launch
  uint32_t epoch;   // of the entry
  uint32_t last;    // 1: no tile, the walk ends here
  // What the instruction set works out of the tile, in the fetch warp as well.
  alignas(16) unsigned char prepared[prepared_bytes];
};
static_assert(sizeof(TileSlot) % 16 == 0 && alignof(TileSlot) == 16);

// Shared memory of a block: this, then two activation buffers, then the ring of pages.
struct Shared {
  TileSlot slot[tile_slots];
  alignas(16) unsigned char partial[2][partial_bytes];
  float sum_of_squares[2][consumer_warps][maximum_batch];
  // Of the same units: what is added to the products.
  alignas(16) float residual[2][unit_row_blocks][maximum_batch][8];
  alignas(16) float bias[2][unit_row_blocks][8];
  // The launch's parameters: where they arrive, in constant memory, the compiler reaches them through the L1 cache once
  // a pointer to them is passed on, and every acquire empties that cache (PERFORMANCE.md).
  mkrt_launch launch;
  uint64_t record_full[tile_slots];
  uint64_t slot_full[tile_slots];
  uint64_t slot_begun[tile_slots];  // the block is far enough with the tile to take another one
  uint64_t slot_free[tile_slots];
  uint64_t page_full[maximum_pages];
  uint64_t page_free[maximum_pages];
  uint64_t input_full[2];
  uint64_t input_free[2];
  uint64_t partial_full[2];
  uint64_t partial_free[2];
  uint64_t move_ready;  // the consumers tell the weight warp that a tile's sources may be read
  uint32_t moves;       // for which the weight warp has waited so
  int32_t position[2];  // what the activation warp read for the consumers, with each activation buffer
  uint64_t wait_begin;  // when the activation warp began to wait, or 0
  uint32_t abort;
  uint32_t signalling;  // 1: the store warp has the last results of a record, and signals next
  uint32_t epoch;
  uint32_t block;        // number among the rank's blocks
  uint32_t block_count;  // of the rank
  uint32_t launches;     // that the rank has finished
  uint32_t first_tile[MKRT_LAUNCH_RECORDS + 1];
  int64_t rank_delta[MKRT_MAX_RANKS];  // of the launch
};
static_assert(MKRT_MAX_RANKS <= block_threads, "a thread for each rank, when a block starts");
constexpr uint32_t fixed_shared_bytes = (sizeof(Shared) + 127) / 128 * 128;

// Everything in shared memory is reached from here, by constant addresses: a pointer that is passed to a function is a
// generic one, slower to use, and an object that is passed by reference lives in local memory.
extern __shared__ __align__(128) unsigned char block_memory[];
__device__ inline Shared& shared() { return *reinterpret_cast<Shared*>(block_memory); }
__device__ inline const mkrt_launch& launch() { return shared().launch; }
__device__ inline TileSlot& slot(uint32_t place) { return shared().slot[place]; }
__device__ inline unsigned char* activation_buffer(uint32_t number) {
  return block_memory + fixed_shared_bytes + number * launch().activation_bytes;
}
__device__ inline unsigned char* page(uint32_t place) {
  return block_memory + fixed_shared_bytes + 2 * launch().activation_bytes + place * page_bytes;
}
__device__ inline mkrt_control* control() { return reinterpret_cast<mkrt_control*>(launch().control); }
// Added to an own-rank address, gives the same place at `rank`.
__device__ inline int64_t rank_delta(uint32_t rank) { return shared().rank_delta[rank]; }
__device__ inline mkrt_control* control_at(uint32_t rank) {
  return reinterpret_cast<mkrt_control*>(launch().control + rank_delta(rank));
}

// ---- waits that cannot hang ---------------------------------------------------------------------------------------

// Waits as long as it takes, for a phase of a block's barrier; false when the block is leaving. All lanes of a warp
// call it and agree. Inlined, like everything that a tile usually passes: a call costs a fetch of instructions from far
// away, about 0.2 us, and so did every wait that ended in a function of its own (1001 -> 953 us, PERFORMANCE.md). Only
// what is rare is out of line.
__device__ inline bool keep_waiting(uint64_t* barrier, uint32_t parity) {
  while (!__all_sync(ptx::full_mask, ptx::barrier_test(barrier, parity))) {
    if (__any_sync(ptx::full_mask, ptx::load_relaxed_block(&shared().abort) != 0)) return false;
  }
  return true;
}
// The same, where the phase is usually complete already.
__device__ inline bool wait_warp(uint64_t* barrier, uint32_t parity) {
  return __all_sync(ptx::full_mask, ptx::barrier_test(barrier, parity)) || keep_waiting(barrier, parity);
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

// Makes this block leave, and all others of all ranks as soon as they look. Of several reports, that which comes first
// in `order` is what the others wait for, and stays.
__device__ __noinline__ void leave_all(const mkrt_report& mine, uint64_t order) {
  mkrt_control* state = control();
  // A lock: few come here, once, and those that hold it never wait for anything. The compare and swap orders nothing;
  // the fences around the report do.
  while (ptx::compare_swap_relaxed_gpu(&state->report_lock, 0, 1) != 0) {
  }
  __threadfence();
  volatile mkrt_report& report = state->report;
  volatile uint64_t& report_place = state->report_place;
  if (report.status == 0 || (report.status == mine.status && order < report_place)) {
    uint32_t sm;
    asm("mov.u32 %0, %%smid;" : "=r"(sm));
    report.status = mine.status;
    report.rank = launch().rank;
    report.sm = sm;
    report.record = mine.record;
    report.tile = mine.tile;
    report.step = mine.step;
    report.counter = mine.counter;
    report.value_seen = mine.value_seen;
    report.value_wanted = mine.value_wanted;
    report.fault = mine.fault;
    report.waited_ns = mine.waited_ns;
    report.timeline_value = launch().timeline_value;
    report_place = order;
  }
  __threadfence();
  ptx::compare_swap_relaxed_gpu(&state->report_lock, 1, 0);
  for (uint32_t rank = 0; rank < launch().rank_count; ++rank) {
    ptx::compare_swap_relaxed_system(&control_at(rank)->abort, 0, mine.status);
  }
  ptx::store_relaxed_block(&shared().abort, 1);
}

// The same for the tile in slot `place`: what it waited for, or the fault that it found.
__device__ __noinline__ void give_up(uint32_t place, uint32_t status, uint32_t counter, uint32_t seen, uint32_t wanted,
                                     uint32_t fault, uint64_t waited_ns) {
  const TileSlot& tile = slot(place);
  mkrt_report report{};
  report.status = status;
  report.record = tile.record.index;
  report.tile = tile.number;
  report.step = tile.step;
  report.counter = counter;
  report.value_seen = seen;
  report.value_wanted = wanted;
  report.fault = fault;
  report.waited_ns = waited_ns;
  leave_all(report, static_cast<uint64_t>(tile.step) << 32 | (tile.record.first_tile + tile.number));
}

// ---- several ranks: a launch begins and ends on all of them together ----------------------------------------------

// Waits until every rank has added to `count`, a word of the own control, for this launch. False when the block is
// leaving. One thread.
__device__ __noinline__ bool wait_for_ranks(const uint32_t* count, uint32_t which) {
  const uint32_t before = shared().launches * launch().rank_count;
  const uint64_t begin = ptx::time_ns();
  for (;;) {
    // Acquire: pairs with the release of every rank's add, so that what came before it there is visible here.
    const uint32_t come = ptx::load_acquire_system(count) - before;
    if (static_cast<int32_t>(come - launch().rank_count) >= 0) return true;
    const uint64_t waited = ptx::time_ns() - begin;
    if (ptx::load_relaxed_gpu(&control()->abort) != 0) {
      ptx::store_relaxed_block(&shared().abort, 1);
      return false;
    }
    if (waited <= launch().wait_limit_ns) continue;
    mkrt_report report{};
    report.status = MKRT_ERROR_DEADLINE;
    report.record = which;
    report.value_seen = come;
    report.value_wanted = launch().rank_count;
    report.waited_ns = waited;
    leave_all(report, UINT64_MAX);  // a tile that gave up says more
    return false;
  }
}

// Before a block's first tile, by a whole warp. Weights are on their way meanwhile.
__device__ inline bool wait_for_ranks_to_begin() {
  if (launch().rank_count == 1) return true;
  const bool begun = ptx::lane_number() != 0 || wait_for_ranks(&control()->ranks_begun, MKRT_REPORT_BEGIN);
  return __all_sync(ptx::full_mask, begun);
}

// By the first block of a rank. Release: what the rank's stream did before the launch comes before its tiles on every
// rank.
__device__ __noinline__ void begin_ranks() {
  for (uint32_t rank = 0; rank < launch().rank_count; ++rank) {
    ptx::add_release_system(&control_at(rank)->ranks_begun, 1);
  }
}

// By the last block of a rank, when all others have left. Release: the rank's tiles come before whatever follows the
// launch on any rank. Returns why somebody left before its tiles were done, or 0.
__device__ __noinline__ uint32_t end_ranks() {
  const uint32_t abort = ptx::load_relaxed_gpu(&control()->abort);
  for (uint32_t rank = 0; rank < launch().rank_count; ++rank) {
    // Not everybody may have been told, such as by the host of another process. Before the add, so that none takes this
    // rank for one that is done.
    if (abort != 0) ptx::compare_swap_relaxed_system(&control_at(rank)->abort, 0, abort);
    ptx::add_release_system(&control_at(rank)->ranks_ended, 1);
  }
  wait_for_ranks(&control()->ranks_ended, MKRT_REPORT_END);
  ++control()->launches;
  return ptx::load_relaxed_gpu(&control()->abort);
}

// ---- tracing ------------------------------------------------------------------------------------------------------

__device__ inline mkrt_trace_tile& traced_tile(uint32_t sequence) {
  return reinterpret_cast<mkrt_trace_tile*>(
      launch().trace)[static_cast<uint64_t>(shared().block) * launch().trace_tiles + sequence];
}
__device__ __noinline__ void write_trace(uint32_t sequence, uint32_t event) {
  if (sequence < launch().trace_tiles && ptx::lane_number() == 0) traced_tile(sequence).time[event] = ptx::time_ns();
}
__device__ inline void write_trace_time(uint32_t sequence, uint32_t event, uint64_t time) {
  if (sequence < launch().trace_tiles && ptx::lane_number() == 0) traced_tile(sequence).time[event] = time;
}
__device__ __noinline__ void write_trace_place(uint32_t sequence, uint32_t record, uint32_t step, uint32_t tile) {
  if (sequence >= launch().trace_tiles || ptx::lane_number() != 0) return;
  mkrt_trace_tile& traced = traced_tile(sequence);
  traced.record = record;
  traced.step = step;
  traced.tile = tile;
}
// Adds the time from `begin` to now to a tile's stalls.
__device__ __noinline__ void write_stall(uint32_t sequence, uint64_t begin) {
  if (sequence >= launch().trace_tiles || ptx::lane_number() != 0) return;
  uint64_t(&time)[MKRT_TRACE_EVENTS] = traced_tile(sequence).time;
  const uint64_t before = time[MKRT_TRACE_STALL_END] - time[MKRT_TRACE_STALL_BEGIN];
  time[MKRT_TRACE_STALL_END] = ptx::time_ns();
  time[MKRT_TRACE_STALL_BEGIN] = begin - before;
}
// Writes the time of an event of the block's `sequence`-th tile, in kernels that are built to trace. Others do not even
// ask whether to: that took 4 % of a token (PERFORMANCE.md).
template <bool traced>
__device__ inline void trace(uint32_t sequence, uint32_t event) {
  if constexpr (traced) write_trace(sequence, event);
}

// ---- a tile's operands, waits and signals -------------------------------------------------------------------------

__device__ inline bool operand_present(const TileSlot& tile, uint32_t number) { return tile.address[number] != 0; }
template <class Element>
__device__ Element* operand(const TileSlot& tile, uint32_t number) {
  auto* const first = reinterpret_cast<Element*>(tile.address[number]);
  // Otherwise every access would first find out which memory is meant.
  __builtin_assume(__isGlobal(first));
  return first;
}
// Elements of a row of the tile's slice, cut at the operand's limit.
template <class Element>
__device__ uint32_t operand_size(const TileSlot& tile, uint32_t number) {
  return tile.size[number] / sizeof(Element);
}
template <class Element>
__device__ uint64_t row_stride(const TileSlot& tile, uint32_t number) {
  return tile.record.operand[number].row_stride / sizeof(Element);
}

// The ranks that a selector means are `first` and the `count` - 1 after it.
struct Ranks {
  uint32_t first, count;
};
__device__ inline Ranks selected_ranks(const TileSlot& tile, mkrt_rank_selector selector) {
  if (selector.mode == MKRT_RANK_ALL) return {0, launch().rank_count};
  uint32_t rank = selector.mode == MKRT_RANK_SELF ? launch().rank : selector.offset;
  if (selector.mode == MKRT_RANK_RELATIVE) {
    rank += launch().rank + (selector.dimension < MKRT_TILE_DIMENSIONS ? tile.index[selector.dimension] : 0);
    rank %= launch().rank_count;
  }
  return {rank, 1};
}

// Stores four bytes at every rank that operand `number` of the tile in slot `place` means.
__device__ __noinline__ void store_at_ranks(uint32_t place, uint32_t number, uint64_t address, uint32_t value) {
  const Ranks ranks = selected_ranks(slot(place), slot(place).record.operand[number].rank);
  for (uint32_t i = 0; i < ranks.count; ++i) {
    *reinterpret_cast<uint32_t*>(address + rank_delta(ranks.first + i)) = value;
  }
}
// The own rank is the usual case.
__device__ inline void store(uint32_t place, uint32_t number, float* address, float value) {
  if (slot(place).record.operand[number].rank.mode == MKRT_RANK_SELF) {
    *address = value;
  } else {
    store_at_ranks(place, number, reinterpret_cast<uint64_t>(address), __float_as_uint(value));
  }
}
__device__ inline void store(uint32_t place, uint32_t number, int32_t* address, int32_t value) {
  store(place, number, reinterpret_cast<float*>(address), __int_as_float(value));
}

__device__ inline uint32_t* counter_address(uint32_t number) {
  return reinterpret_cast<uint32_t*>(launch().counters + static_cast<uint64_t>(number) * MKRT_COUNTER_STRIDE);
}

// ---- waiting for counters (activation warp) ------------------------------------------------------------------------

// Polls between two looks at the clock and the abort word: about 50 us, so that looking costs nothing and a cancel is
// seen well within a millisecond.
constexpr uint32_t polls_between_looks = 64;

// Looks at the clock and the abort word for the tile in slot `place`, which waits. False when the block is leaving.
__device__ __noinline__ bool may_keep_waiting(uint32_t place, uint32_t counter, uint32_t value, uint32_t target) {
  const uint64_t now = ptx::time_ns();
  const uint64_t begin = shared().wait_begin == 0 ? now : shared().wait_begin;
  __syncwarp();
  if (ptx::lane_number() == 0) shared().wait_begin = begin;
  __syncwarp();
  const uint32_t abort = __shfl_sync(ptx::full_mask, ptx::load_relaxed_gpu(&control()->abort), 0);
  if (abort == 0 && !__any_sync(ptx::full_mask, now - begin > launch().wait_limit_ns)) return true;
  // Where another tile's deadline passed, this one may be what it waits for, and says what it waits for itself.
  const uint32_t behind = __ballot_sync(ptx::full_mask, static_cast<int32_t>(value - target) < 0);
  if (abort == 0 || abort == MKRT_ERROR_DEADLINE) {
    if (ptx::lane_number() == __ffs(behind) - 1) {
      give_up(place, MKRT_ERROR_DEADLINE, counter, value, target, 0, now - begin);
    }
  } else {
    ptx::store_relaxed_block(&shared().abort, 1);
  }
  __syncwarp();
  return false;
}

// Waits for the counters of the tile in slot `place`; lanes share those of one wait. False when the block is leaving.
__device__ inline bool wait_all_counters(uint32_t place) {
  if constexpr (left_out(part_dependencies)) return true;
  const TileSlot& tile = slot(place);
  for (uint32_t w = 0; w < tile.record.wait_count; ++w) {
    const uint32_t target = tile.wait_target[w];
    const uint32_t first = tile.wait_counter[w];
    const uint32_t count = tile.record.wait[w].count;
    const bool across_ranks = tile.record.wait[w].across_ranks != 0;
    if (ptx::lane_number() == 0) shared().wait_begin = 0;
    __syncwarp();
    for (uint32_t base = 0; base < count; base += 32) {
      const uint32_t mine = base + ptx::lane_number();
      const uint32_t counter = first + (mine < count ? mine : base);
      const uint32_t* address = counter_address(counter);
      for (uint32_t polls = 1;; ++polls) {
        // Acquire: pairs with the release of every signal that the value counts, so that what those tiles wrote is
        // visible to whoever is told next through the block's barriers. System scope where peers signal.
        const uint32_t value = across_ranks ? ptx::load_acquire_system(address) : ptx::load_acquire_gpu(address);
        if (__all_sync(ptx::full_mask, static_cast<int32_t>(value - target) >= 0)) break;
        if (polls % polls_between_looks == 0 && !may_keep_waiting(place, counter, value, target)) return false;
      }
    }
  }
  // Lanes acquired different counters; from here on each has what all acquired.
  __syncwarp();
  return true;
}

// ---- signalling (store warp) --------------------------------------------------------------------------------------

// Adds up a store warp's signals to one counter and sends them together: the release costs as much for many tiles as
// for one (0.696 -> 0.664 ms for the chain of PERFORMANCE.md). Lane s has the record's signal s.
struct PendingSignal {
  uint32_t counter = 0;
  uint32_t count = 0;
};

// Adds `count` to a counter at the ranks that signal `number` of the tile in slot `place` means.
__device__ __noinline__ void send_to_ranks(uint32_t place, uint32_t number, uint32_t counter, uint32_t count) {
  const Ranks ranks = selected_ranks(slot(place), slot(place).record.signal[number].rank);
  // Release as in signal_tile; system scope reaches peers. One fence for all: a release for each would wait until the
  // add before it has come to a peer and back.
  ptx::fence_release_system();
  for (uint32_t i = 0; i < ranks.count; ++i) {
    const uint64_t address = reinterpret_cast<uint64_t>(counter_address(counter)) + rank_delta(ranks.first + i);
    ptx::add_relaxed_system(reinterpret_cast<uint32_t*>(address), count);
  }
}

// What a lane signals of a tile; worked out before the tile's results are there.
struct SignalPlan {
  uint32_t counter;
  bool sends;     // lanes beyond the record's signals do nothing
  bool own_rank;  // no other rank is meant, nor signals there
  bool relative;  // each tile may mean another rank
};
__device__ inline SignalPlan plan_signal(const TileSlot& tile) {
  const uint32_t lane = ptx::lane_number();
  SignalPlan plan{};
  plan.sends = lane < tile.record.signal_count;
  if (!plan.sends) return plan;
  const uint8_t mode = tile.record.signal[lane].rank.mode;
  plan.counter = tile.signal_counter[lane];
  // Where peers signal too, the own rank's additions are of system scope as well: additions to one word must agree.
  plan.own_rank = mode == MKRT_RANK_SELF && tile.record.signal[lane].across_ranks == 0;
  plan.relative = mode == MKRT_RANK_RELATIVE;
  return plan;
}

// Signals of the tile in slot `place`, together with those that the tiles before it left pending. Tiles of one record
// and step never wait for each other, so a count may be held back while this block is sure to do another tile of the
// same record and step.
__device__ inline void signal_tile(uint32_t place, const SignalPlan& plan, PendingSignal& pending, bool hold) {
  __syncwarp();
  if (plan.sends) {
    // Release: everything that this tile wrote, and read, comes before the count. The block's barriers made it known
    // to this thread.
    const auto send = [&]() {
      if (plan.own_rank) {
        ptx::add_release_gpu(counter_address(pending.counter), pending.count);
      } else {
        send_to_ranks(place, ptx::lane_number(), pending.counter, pending.count);
      }
      pending.count = 0;
    };
    if (pending.count != 0 && pending.counter != plan.counter) send();
    pending.counter = plan.counter;
    ++pending.count;
    if (!hold || plan.relative) send();
  }
  __syncwarp();
}

// Weight warp: nothing more is asked of memory while the store warp has results to signal. A signal waits behind what
// the block has asked for, and what that brings can hardly be used before other blocks have seen the signal
// (0.896 -> 0.862 ms, PERFORMANCE.md). The store warp waits for nobody meanwhile. False when the block is leaving.
__device__ inline bool let_signal_pass() {
  while (__any_sync(ptx::full_mask, ptx::load_relaxed_block(&shared().signalling) != 0)) {
    if (__any_sync(ptx::full_mask, ptx::load_relaxed_block(&shared().abort) != 0)) return false;
  }
  return true;
}

// ---- fetch warp -----------------------------------------------------------------------------------------------------

// Starts to bring a record into a slot.
__device__ inline void bring_record(TileSlot& slot, const mkrt_record* record, uint64_t* barrier) {
  const uint32_t lane = ptx::lane_number();
#if MKRT_BULK_COPY
  if (lane == 0) {
    ptx::barrier_expect(barrier, sizeof(mkrt_record));
    ptx::bulk_copy(&slot.record, record, sizeof(mkrt_record), barrier);
  }
#else
  for (uint32_t at = lane * 16; at < sizeof(mkrt_record); at += 32 * 16) {
    ptx::async_copy_16(reinterpret_cast<unsigned char*>(&slot.record) + at,
                       reinterpret_cast<const unsigned char*>(record) + at);
  }
  ptx::async_copy_arrive(barrier);
#endif
}

// Works out what the tile means of its record: lane k operand k, lanes from 16 on waits, lanes from 24 on signals.
__device__ inline void decode(uint32_t place) {
  TileSlot& slot = machine::slot(place);
  const uint32_t lane = ptx::lane_number();
  const mkrt_record& record = slot.record;
  uint32_t index[MKRT_TILE_DIMENSIONS];
  uint32_t rest = slot.number;
#pragma unroll
  for (int d = MKRT_TILE_DIMENSIONS - 1; d > 0; --d) {
    const uint32_t extent = record.grid[d];
    index[d] = 0;
    if (extent == 1) continue;
    index[d] = rest % extent;
    rest /= extent;
  }
  index[0] = rest;
  const auto counter = [&](const auto& of) {
    uint32_t number = of.first;
#pragma unroll
    for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) {
      if (of.stride[d] != 0) number += index[d] / of.divide[d] * of.stride[d];
    }
    return number;
  };
  if (lane < MKRT_RECORD_OPERANDS) {
    const mkrt_operand& operand = record.operand[lane];
    uint64_t start = 0;
#pragma unroll
    for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) start += index[d] * operand.stride[d];
    const uint64_t left = operand.limit - start;
    const uint64_t size = left < operand.size ? left : operand.size;
    const bool present = lane < record.operand_count && operand.address != 0;
    slot.address[lane] = present ? operand.address + start : 0;
    slot.size[lane] = size < UINT32_MAX ? static_cast<uint32_t>(size) : UINT32_MAX;
  } else if (lane >= 16 && lane < 16 + record.wait_count) {
    const mkrt_wait& wait = record.wait[lane - 16];
    slot.wait_counter[lane - 16] = counter(wait);
    slot.wait_target[lane - 16] = (slot.epoch + static_cast<uint32_t>(wait.step_offset)) * wait.step_total + wait.value;
  } else if (lane >= 24 && lane < 24 + record.signal_count) {
    slot.signal_counter[lane - 24] = counter(record.signal[lane - 24]);
  }
  if (lane < MKRT_TILE_DIMENSIONS) {
#pragma unroll
    for (uint32_t d = 0; d < MKRT_TILE_DIMENSIONS; ++d) {
      if (lane == d) slot.index[d] = index[d];
    }
  }
  __syncwarp();
}
static_assert(MKRT_RECORD_OPERANDS <= 16 && MKRT_RECORD_WAITS <= 8 && MKRT_RECORD_SIGNALS <= 8);

// Dynamic mode: where a record has no more tiles than there are blocks, a block that has one leaves the others to
// blocks that have none, until all are taken or its own is done. A second tile would make the record last twice as long
// (0.929 -> 0.843 ms, PERFORMANCE.md). `before` is where the block's last tile lies, a tile of record `cursor`. False
// when the block is leaving.
__device__ inline bool leave_to_others(const Ring<tile_slots>& before, uint64_t step_base, uint32_t cursor) {
  const uint32_t* first_tile = shared().first_tile;
  if (first_tile[cursor + 1] - first_tile[cursor] > shared().block_count) return true;
  const uint64_t end = step_base + first_tile[cursor + 1];
  while (!__any_sync(ptx::full_mask, ptx::load_relaxed_gpu(&control()->queue) >= end)) {
    if (__all_sync(ptx::full_mask, ptx::barrier_test(&shared().slot_free[before.place], before.phase))) break;
    if (__any_sync(ptx::full_mask, ptx::load_relaxed_block(&shared().abort) != 0)) return false;
  }
  return true;
}

// Takes tile numbers and brings their records into slots ahead of the other roles. In static mode numbers follow from
// the block's own. In dynamic mode a block takes the next one when it is nearly done with streaming the one before: a
// block that took more ahead would keep tiles from blocks that are free sooner, and the slowest block is what the next
// record waits for (PERFORMANCE.md).
//
// `prepare(slot number)` lets the instruction set fill a decoded slot's `prepared`: what every role would otherwise
// work out between two tiles, one instruction after the other.
template <bool traced, class Prepare>
__device__ void fetch_role(Prepare prepare) {
  const bool dynamic = launch().queue_mode == MKRT_QUEUE_DYNAMIC;
  const uint32_t tiles_per_step = shared().first_tile[launch().record_count];
  const uint32_t lane = ptx::lane_number();
  uint64_t number = shared().block;
  uint64_t step_base = 0;
  uint32_t step = 0;
  uint32_t cursor = 0;
  Ring<tile_slots> ring;
  Ring<tile_slots> before;  // the tile before
  for (uint32_t sequence = 0;; ++sequence) {
    if (dynamic) {
      if (sequence != 0) {
        if (!wait_warp(&shared().slot_begun[before.place], before.phase)) return;
        if (!leave_to_others(before, step_base, cursor)) return;
        before.advance();
      }
      if (lane == 0) number = ptx::fetch_add_relaxed_gpu(&control()->queue, 1);
      number = __shfl_sync(ptx::full_mask, number, 0);
    }
    // A canceled or failed launch stops here even where no tile waits for long.
    const uint32_t aborted = ptx::load_relaxed_gpu(&control()->abort);
    while (number - step_base >= tiles_per_step && step < launch().step_count) {
      step_base += tiles_per_step;
      ++step;
      cursor = 0;
    }
    if (!wait_warp(&shared().slot_free[ring.place], ring.phase ^ 1)) return;
    if (__any_sync(ptx::full_mask, aborted != 0)) {
      ptx::store_relaxed_block(&shared().abort, 1);
      return;
    }
    TileSlot& slot = machine::slot(ring.place);
    if (step >= launch().step_count) {
      if (lane == 0) slot.last = 1;
      if (ptx::arrives()) ptx::barrier_arrive(&shared().slot_full[ring.place]);
      return;
    }
    const uint32_t tile = static_cast<uint32_t>(number - step_base);
    while (tile >= shared().first_tile[cursor + 1]) ++cursor;
    const uint32_t in_record = tile - shared().first_tile[cursor];
    if (lane == 0) {
      slot.last = 0;
      slot.step = step;
      slot.epoch = shared().epoch + step;
      slot.number = in_record;
    }
    if constexpr (traced) write_trace_place(sequence, cursor, step, in_record);
    trace<traced>(sequence, MKRT_TRACE_FETCHED);
    bring_record(slot, reinterpret_cast<const mkrt_record*>(launch().records) + cursor,
                 &shared().record_full[ring.place]);
    // A record always arrives.
    while (!__all_sync(ptx::full_mask, ptx::barrier_test(&shared().record_full[ring.place], ring.phase))) {
    }
    decode(ring.place);
    prepare(ring.place);
    __syncwarp();
    if (ptx::arrives()) ptx::barrier_arrive(&shared().slot_full[ring.place]);
    ring.advance();
    number += shared().block_count;
  }
}

// Lets the fetch warp of a dynamic launch take the tile after the one in slot `place`. Once for each tile; in static
// mode nobody waits for it.
__device__ inline void tile_begun(uint32_t place) {
  const bool waited_for = launch().queue_mode == MKRT_QUEUE_DYNAMIC;
  ptx::barrier_arrive_if(&shared().slot_begun[place], waited_for && ptx::lane_number() == 0);
}

// The walk of every other role over the same tiles.
struct Walk {
  uint32_t sequence = 0;  // of the tile, in this block; the only number that is kept

  __device__ uint32_t place() const { return sequence % tile_slots; }
  __device__ uint32_t phase() const { return sequence / tile_slots & 1; }
  // Waits for the next tile, which lies in slot place(); false at the end or when the block is leaving.
  __device__ bool next() { return wait_warp(&shared().slot_full[place()], phase()) && slot(place()).last == 0; }
  // Done with the tile: the slot may be filled again once every role said so.
  __device__ void release() {
    __syncwarp();
    if (ptx::arrives()) ptx::barrier_arrive(&shared().slot_free[place()]);
    ++sequence;
  }
  // The slot of the tile after this one where it has come already, otherwise nullptr.
  __device__ const TileSlot* following() const {
    const Walk after{sequence + 1};
    const bool here = __all_sync(ptx::full_mask, ptx::barrier_test(&shared().slot_full[after.place()], after.phase()));
    return here ? &slot(after.place()) : nullptr;
  }
};

// ---- start and end of a block --------------------------------------------------------------------------------------

// What a block is of a launch.
struct Share {
  const mkrt_launch* rank;  // among the launch's local ranks; null where there is one
  uint32_t block, block_count;
};
__device__ inline Share own_share(const mkrt_launch& launch) {
  Share share{nullptr, blockIdx.x, gridDim.x};
  if (launch.local_rank_count == 1) return share;
  // The grid is the sum of all ranks' blocks, so this finds one.
  for (share.rank = reinterpret_cast<const mkrt_launch*>(launch.local_ranks);; ++share.rank) {
    share.block_count = min(share.rank->blocks, launch.block_limit);
    if (share.block < share.block_count) return share;
    share.block -= share.block_count;
  }
}

__device__ inline void start_block(const mkrt_launch& launch) {
  Shared& block = shared();
  const Share share = own_share(launch);
  if (threadIdx.x < sizeof(mkrt_launch) / 4) {
    constexpr uint32_t rank_words = offsetof(mkrt_launch, timeline_value) / 4;
    uint32_t word = reinterpret_cast<const uint32_t*>(&launch)[threadIdx.x];
    if (share.rank != nullptr && threadIdx.x < rank_words) {
      word = reinterpret_cast<const uint32_t*>(share.rank)[threadIdx.x];
    }
    reinterpret_cast<uint32_t*>(&block.launch)[threadIdx.x] = word;
  }
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < tile_slots; ++i) {
      ptx::barrier_init(&block.record_full[i], ptx::copy_arrivals);
      ptx::barrier_init(&block.slot_full[i], ptx::warp_arrivals);
      ptx::barrier_init(&block.slot_begun[i], 1);
      ptx::barrier_init(&block.slot_free[i], (consumer_warps + 3) * ptx::warp_arrivals);
    }
    for (uint32_t i = 0; i < launch.page_count; ++i) {
      ptx::barrier_init(&block.page_full[i], ptx::copy_arrivals);
      ptx::barrier_init(&block.page_free[i], consumer_warps * ptx::warp_arrivals);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      ptx::barrier_init(&block.input_full[i], max(ptx::copy_arrivals, ptx::warp_arrivals));
      ptx::barrier_init(&block.input_free[i], consumer_warps * ptx::warp_arrivals);
      ptx::barrier_init(&block.partial_full[i], consumer_warps * ptx::warp_arrivals);
      ptx::barrier_init(&block.partial_free[i], ptx::warp_arrivals);
    }
    ptx::barrier_init(&block.move_ready, ptx::warp_arrivals);
    ptx::barrier_init_fence();
    block.abort = 0;
    block.signalling = 0;
    block.moves = 0;
    block.block = share.block;
    block.block_count = share.block_count;
    const uint64_t epoch = share.rank != nullptr ? share.rank->epoch : launch.epoch;
    block.epoch = *reinterpret_cast<const uint32_t*>(epoch);
    const uint64_t control = share.rank != nullptr ? share.rank->control : launch.control;
    block.launches = reinterpret_cast<const mkrt_control*>(control)->launches;
  }
  const uint64_t tiles = share.rank != nullptr ? share.rank->first_tiles : launch.first_tiles;
  const auto* first_tiles = reinterpret_cast<const uint32_t*>(tiles);
  for (uint32_t i = threadIdx.x; i <= launch.record_count; i += block_threads) block.first_tile[i] = first_tiles[i];
  // Here because every acquire makes the way to them a long one, and every store at a peer takes it.
  const uint64_t deltas = share.rank != nullptr ? share.rank->rank_delta : launch.rank_delta;
  if (threadIdx.x < launch.rank_count) {
    block.rank_delta[threadIdx.x] = reinterpret_cast<const int64_t*>(deltas)[threadIdx.x];
  }
  __syncthreads();
  if (launch.rank_count != 1 && share.block == 0 && threadIdx.x == 0) begin_ranks();
}

// Release at system scope: a host that sees the status sees the rest.
__device__ __noinline__ void tell_host(mkrt_report report) {
  auto* out = reinterpret_cast<mkrt_report*>(launch().report);
  const uint32_t status = report.status;
  report.status = 0;
  *out = report;
  ptx::store_release_system(&out->status, status);
}

// A rank that left on account of others, or of the host: where these are in another process, its own host would take
// the launch for one that was done. Launches that follow leave as well, and must not write over what is there.
__device__ __noinline__ void tell_host_of_leaving(uint32_t abort) {
  if (reinterpret_cast<volatile mkrt_report*>(launch().report)->status != 0) return;
  mkrt_report report{};
  report.status = abort;
  report.rank = launch().rank;
  report.record = MKRT_REPORT_LEFT;
  report.timeline_value = launch().timeline_value;
  tell_host(report);
}

// The last block of a rank to leave makes the control words ready for the next launch and tells the host.
__device__ inline void finish_block() {
  __syncthreads();
  if (threadIdx.x != 0) return;
  // Acquire and release: the last block comes after all others' work, and its timeline store tells the host of it.
  if (ptx::fetch_add_acq_rel_gpu(&control()->blocks_done, 1) != shared().block_count - 1) return;
  control()->queue = 0;
  control()->blocks_done = 0;
  *reinterpret_cast<uint32_t*>(launch().epoch) += launch().step_count;
  const uint32_t abort = launch().rank_count != 1 ? end_ranks() : 0;
  if (control()->report.status != 0) {
    if (control()->report.timeline_value == launch().timeline_value) tell_host(control()->report);
  } else if (abort != 0) {
    tell_host_of_leaving(abort);
  }
  __threadfence_system();
  ptx::store_release_system(reinterpret_cast<uint64_t*>(launch().timeline), launch().timeline_value);
}

}  // namespace mkrt::machine
