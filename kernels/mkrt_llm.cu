// The megakernel of mkrt.llm: what each role does with each opcode.
#include "attention.cuh"
#include "linear.cuh"
#include "linear_store.cuh"
#include "move.cuh"
#include "small.cuh"

namespace mkrt::llm {

__device__ inline bool bring_move(uint32_t place, PageRing& ring, PageRing& arriving, uint32_t& on_the_way) {
#if MKRT_BULK_COPY
  RingState state{ring, arriving, on_the_way};
  const bool going = bring_pages(place, state);
  ring = state.next;
  arriving = state.arriving;
  on_the_way = state.on_the_way;
  return going;
#else
  return true;  // nothing goes through the ring
#endif
}

// Of traced launches: whether no weights are on their way while the weight warp waits for its next tile, and since
// when; an event of the tile before, because a next one may never come.
__device__ __noinline__ void trace_drained(machine::Walk walk, PageRing arriving, uint32_t on_the_way) {
  if (walk.sequence == 0) return;
  const uint64_t time = idle_since(arriving, on_the_way, [&] {
    return __all_sync(ptx::full_mask, ptx::barrier_ready(&shared().slot_full[walk.place()], walk.phase()));
  });
  if (time != 0) machine::write_trace_time(walk.sequence - 1, MKRT_TRACE_DRAINED, time);
}

template <bool traced>
__device__ void weight_role() {
  machine::Walk walk;
  PageRing ring;
  PageRing arriving;
  uint32_t on_the_way = 0;
  // In a register: looked up for each page it cost 1 % of a token (PERFORMANCE.md).
  const uint32_t most = launch().outstanding_pages;
  const uint64_t policy = ptx::evict_first_policy();
  for (;; walk.release()) {
    if constexpr (traced) trace_drained(walk, arriving, on_the_way);
    if (!walk.next()) break;
    const TileSlot& tile = machine::slot(walk.place());
    machine::trace<traced>(walk.sequence, MKRT_TRACE_WEIGHTS_BEGIN);
    if (is_linear(tile.record.opcode)) {
      if (!stream_weights<traced>(walk.place(), ring, arriving, on_the_way, most, policy, walk.sequence)) break;
    } else if (move_pages(walk.place()) == 0) {
      // Nothing to stream: the next tile's weights may come while this one waits for its inputs.
      machine::tile_begun(walk.place());
      continue;
    } else if (!bring_move(walk.place(), ring, arriving, on_the_way)) {
      break;
    }
    machine::trace<traced>(walk.sequence, MKRT_TRACE_WEIGHTS_END);
  }
  // Nothing may arrive in the shared memory of a block that has left.
  for (; on_the_way != 0; --on_the_way) {
    while (!ptx::barrier_test(&shared().page_full[arriving.place], arriving.phase)) {
    }
    arriving.advance();
  }
}

// Waits for a tile's counters, once, however many units it has.
template <bool traced>
struct CounterWait {
  uint32_t place;
  uint32_t sequence;
  bool waited = false;

  __device__ bool operator()() {
    if (waited) return true;
    waited = machine::wait_all_counters(place);
    machine::trace<traced>(sequence, MKRT_TRACE_WAIT_END);
    return waited;
  }
};

// The activation warp's loads of inputs.
struct Loads {
  InputLoads inputs;
  bool both = false;  // the last one takes both buffers

  // The next load's buffer is free once the consumers have moved on to the load before it. One that takes both buffers,
  // and the one after it, wait until they have moved on to the load itself. False when the block is leaving.
  __device__ bool begin(bool takes_both) {
    const InputLoads before = inputs;
    const bool overlaps = (both || takes_both) && before.loads != 0;
    ++inputs.loads;
    both = takes_both;
    if (machine::wait_warp(&shared().input_free[inputs.buffer()], inputs.parity() ^ 1) &&
        (!overlaps || machine::wait_warp(&shared().input_free[before.buffer()], before.parity()))) {
      return true;
    }
    inputs = before;
    return false;
  }
};

// Brings in the inputs of a tile. A load that was announced is finished even when the block is leaving, so that its
// barrier completes. False when the block is leaving.
template <class Wait>
__device__ inline bool bring_tile(const TileSlot& tile, Loads& loads, int32_t& position, Wait& wait) {
  InputLoads& inputs = loads.inputs;
  if (tile.record.opcode == isa::opcode_attention && !machine::left_out(machine::part_attention)) {
    return bring_attention(
        tile, inputs, position, [&]() { return loads.begin(false); }, wait);
  }
  if (!is_linear(tile.record.opcode)) {
    // Inputs are read by the consumers themselves; they only have to know that the counters were reached.
    if (!loads.begin(false)) return false;
    const bool reached = wait();
    if (ptx::lane_number() == 0) shared().position[inputs.buffer()] = reached ? 0 : no_position;
    if (MKRT_BULK_COPY == 0 || ptx::arrives()) ptx::barrier_arrive(&shared().input_full[inputs.buffer()]);
    return reached;
  }
  const LinearShape shape = linear_shape(tile);
  return for_each_unit(shape, [&](uint32_t, uint32_t column_unit, bool fresh) {
    if (!fresh) return wait();
    if (!loads.begin(shape.both != 0)) return false;
    const InputPlan plan = plan_inputs(tile, shape, column_unit);
    begin_inputs(shape, plan, inputs);
    const bool reached = wait();
    finish_inputs(shape, plan, inputs);
    return reached;
  });
}

template <bool traced>
__device__ void activation_role() {
  machine::Walk walk;
  Loads loads;
  int32_t position = no_position;  // of the last attention tile
  if (!machine::wait_for_ranks_to_begin()) return;
  for (; walk.next(); walk.release()) {
    machine::trace<traced>(walk.sequence, MKRT_TRACE_WAIT_BEGIN);
    CounterWait<traced> wait{walk.place(), walk.sequence};
    if (!bring_tile(machine::slot(walk.place()), loads, position, wait)) break;
  }
  // Nothing may arrive in the shared memory of a block that has left.
  InputLoads inputs = loads.inputs;
  for (uint32_t i = 0; i < 2 && inputs.loads != 0; ++i, --inputs.loads) {
    while (!ptx::barrier_test(&shared().input_full[inputs.buffer()], inputs.parity())) {
    }
  }
}

// Takes the inputs of a tile that reads them itself: false, too, where the tile's counters were not reached. What
// nobody has produced is not worked on, and finds no faults.
__device__ inline bool take_reached_inputs(ConsumerState& state) {
  return take_inputs(state) && shared().position[state.inputs.buffer()] != no_position;
}

// A tile of an instruction without weights. False when the block is leaving.
template <bool traced>
__device__ bool consume_small(uint32_t place, ConsumerState& state) {
  const TileSlot& tile = machine::slot(place);
  if (!take_reached_inputs(state) || !begin_partial(state)) return false;
  if (state.warp == 0) machine::trace<traced>(state.sequence, MKRT_TRACE_INPUTS);
  uint32_t outcome = done;
  switch (tile.record.opcode) {
    case isa::opcode_embed: outcome = embed(place); break;
    case isa::opcode_rotation: outcome = rotation(place); break;
    case isa::opcode_attention:
      if constexpr (!machine::left_out(machine::part_attention)) outcome = attention(place, state);
      break;
    case isa::opcode_choose: outcome = choose(place, state.partials & 1); break;
    case isa::opcode_sum_partials: outcome = sum_partials(place); break;
    default: break;
  }
  if (outcome != done) {
    if (outcome != leaving && threadIdx.x == 0) machine::give_up(place, MKRT_ERROR_FAULT, 0, 0, 0, outcome, 0);
    return false;
  }
  if (state.warp == 0) machine::trace<traced>(state.sequence, MKRT_TRACE_CONSUMED);
  end_partial(state);
  return true;
}

// More than eight sequences need twice the sums: in a function of its own, so that its registers are no others'
// concern.
template <bool traced>
__device__ __noinline__ bool consume_linear_wide(uint32_t place, ConsumerState& out_state) {
  ConsumerState state = out_state;
  const bool going = consume_linear<2, traced>(machine::slot(place), linear_shape(machine::slot(place)), state);
  out_state = state;
  return going;
}

// A tile that moves data between ranks; out of line for the same reason.
template <bool traced>
__device__ __noinline__ bool consume_move(uint32_t place, ConsumerState& out_state) {
  ConsumerState state = out_state;
  if (!take_reached_inputs(state) || !begin_partial(state)) return false;
  if (state.warp == 0) machine::trace<traced>(state.sequence, MKRT_TRACE_INPUTS);
  const uint32_t outcome = move(place, state.pages);
  if (outcome != done) {
    if (outcome != leaving && threadIdx.x == 0) machine::give_up(place, MKRT_ERROR_FAULT, 0, 0, 0, outcome, 0);
    return false;
  }
  state.pages.skip(move_pages(place));
  if (state.warp == 0) machine::trace<traced>(state.sequence, MKRT_TRACE_CONSUMED);
  end_partial(state);
  out_state = state;
  return true;
}

template <bool traced>
__device__ inline bool consume_tile(uint32_t place, ConsumerState& state) {
  const TileSlot& tile = machine::slot(place);
  const bool moves = is_move(tile.record.opcode);
  if (!moves) {
    if (!is_linear(tile.record.opcode)) return consume_small<traced>(place, state);
    const LinearShape shape = linear_shape(tile);
    if (shape.batch <= 8) return consume_linear<1, traced>(tile, shape, state);
  }
  // What is passed by reference lives in memory; a copy of the state may.
  ConsumerState copy = state;
  const bool going = moves ? consume_move<traced>(place, copy) : consume_linear_wide<traced>(place, copy);
  state = copy;
  return going;
}

template <bool traced>
__device__ void consumer_role(uint32_t warp) {
  machine::Walk walk;
  ConsumerState state;
  state.warp = warp;
  state.page_memory = ptx::shared_address(machine::page(0)) + warp * block_bytes + ptx::lane_number() * 16;
  for (; walk.next(); walk.release()) {
    state.sequence = walk.sequence;
    if (!consume_tile<traced>(walk.place(), state)) break;
  }
  // Nothing may arrive in the shared memory of a block that has left.
  ptx::async_copies_wait();
  leave_consumers();
}

// What comes after a tile in this block.
enum class Next { unknown, alike, other };
// Whether it belongs to the same record and step; unknown while it has not been fetched.
__device__ Next look_ahead(const machine::Walk& walk) {
  const TileSlot* next = walk.following();
  if (next == nullptr) return Next::unknown;
  const TileSlot& tile = machine::slot(walk.place());
  const bool alike = next->last == 0 && next->record.index == tile.record.index && next->step == tile.step;
  return alike ? Next::alike : Next::other;
}

// Stores a product's units. `partials` counts the units of all tiles; `signals`: what the tile stored is signalled
// next. False when the block is leaving.
template <uint32_t sequences, bool traced>
__device__ bool store_units(uint32_t place, uint32_t tile_sequence, uint32_t& partials, bool signals) {
  const LinearShape shape = linear_shape(machine::slot(place));
  const StorePlan plan = plan_store(machine::slot(place), shape);
  Best best;
#pragma unroll 1
  for (uint32_t unit = 0; unit < shape.row_units; ++unit, ++partials) {
    const uint32_t number = partials & 1;
    if (!machine::wait_warp(&shared().partial_full[number], (partials >> 1) & 1)) return false;
    if (signals && unit + 1 == shape.row_units) ptx::store_relaxed_block(&shared().signalling, 1);
    machine::trace<traced>(tile_sequence, MKRT_TRACE_STORE_BEGIN);
    store_unit<sequences>(place, plan, shape, number, unit, best);
    __syncwarp();
    if (ptx::arrives()) ptx::barrier_arrive(&shared().partial_free[number]);
  }
  return true;
}

// Results of other instructions were stored by the consumers.
template <bool traced>
__device__ bool store_nothing_more(uint32_t tile_sequence, uint32_t& partials) {
  const uint32_t number = partials & 1;
  if (!machine::wait_warp(&shared().partial_full[number], (partials >> 1) & 1)) return false;
  machine::trace<traced>(tile_sequence, MKRT_TRACE_STORE_BEGIN);
  if (ptx::arrives()) ptx::barrier_arrive(&shared().partial_free[number]);
  ++partials;
  return true;
}

template <bool traced>
__device__ bool store_tile(uint32_t place, uint32_t tile_sequence, uint32_t& partials, bool signals) {
  const TileSlot& tile = machine::slot(place);
  if (!is_linear(tile.record.opcode)) return store_nothing_more<traced>(tile_sequence, partials);
  if (linear_shape(tile).batch <= 8) return store_units<8, traced>(place, tile_sequence, partials, signals);
  return store_units<16, traced>(place, tile_sequence, partials, signals);
}

template <bool traced>
__device__ void store_role() {
  machine::Walk walk;
  machine::PendingSignal pending;
  uint32_t partials = 0;
  for (; walk.next(); walk.release()) {
    const machine::SignalPlan plan = machine::plan_signal(machine::slot(walk.place()));
    // Looked up early, where nobody waits for it.
    Next next = look_ahead(walk);
    if (!store_tile<traced>(walk.place(), walk.sequence, partials, next != Next::alike)) return;
    machine::trace<traced>(walk.sequence, MKRT_TRACE_STORE_END);
    if (next == Next::unknown) next = look_ahead(walk);
    machine::signal_tile(walk.place(), plan, pending, next == Next::alike);
    ptx::store_relaxed_block(&shared().signalling, 0);
    machine::trace<traced>(walk.sequence, MKRT_TRACE_SIGNALLED);
  }
}

constexpr mkrt_image_info image_info() {
  mkrt_image_info info{};
  info.launch_version = MKRT_LAUNCH_VERSION;
  info.launch_size = sizeof(mkrt_launch);
  info.record_size = sizeof(mkrt_record);
  info.block_size = machine::block_threads;
  info.isa_fingerprint = isa::fingerprint;
  info.fixed_shared_bytes = machine::fixed_shared_bytes;
  info.page_bytes = machine::page_bytes;
  info.minimum_pages = 2;
  info.preferred_pages = machine::preferred_pages;
  info.maximum_pages = machine::maximum_pages;
#ifdef MKRT_SHARED_MEMORY
  info.maximum_shared_bytes = MKRT_SHARED_MEMORY;
#else
  // Whatever the device has: other chips of its family may have more than the one that the machine was made for.
  info.maximum_shared_bytes = UINT32_MAX;
#endif
  info.row_padding = row_padding;
  info.minimum_row_bytes = unit_step * 4;
  info.staged_operands[isa::opcode_linear] = 1u << isa::linear::x | 1u << isa::linear::norm;
  info.staged_operands[isa::opcode_linear_swiglu] = 1u << isa::linear_swiglu::x | 1u << isa::linear_swiglu::norm;
  info.staged_operands[isa::opcode_linear_best] = 1u << isa::linear_best::x | 1u << isa::linear_best::norm;
  info.staged_operands[isa::opcode_attention] = 1u << isa::attention::q | 1u << isa::attention::k |
                                                1u << isa::attention::v | 1u << isa::attention::rotation |
                                                1u << isa::attention::q_norm | 1u << isa::attention::k_norm;
  // A row of the key cache and one of the value cache take as much, in f16, as the newest key in f32. Places of norms
  // are kept where there are none.
  info.more_rows[isa::opcode_attention] = least_chunk_rows + 2;
  info.useful_rows[isa::opcode_attention] = most_chunk_rows + 2;
  info.whole[isa::opcode_attention] = 1;
  // What goes through store_at_ranks, and what tiles that move data read and write.
  info.ranked_operands[isa::opcode_embed] = 1u << isa::embed::out;
  info.ranked_operands[isa::opcode_rotation] = 1u << isa::rotation::out;
  info.ranked_operands[isa::opcode_linear] = 1u << isa::linear::out;
  info.ranked_operands[isa::opcode_linear_swiglu] = 1u << isa::linear_swiglu::out;
  info.ranked_operands[isa::opcode_linear_best] =
      1u << isa::linear_best::out | 1u << isa::linear_best::best_value | 1u << isa::linear_best::best_index;
  info.ranked_operands[isa::opcode_attention] = 1u << isa::attention::out;
  info.ranked_operands[isa::opcode_sum_partials] = 1u << isa::sum_partials::out;
  for (const uint32_t opcode :
       {isa::opcode_copy, isa::opcode_reduce_f32, isa::opcode_reduce_f16, isa::opcode_reduce_bf16}) {
    info.ranked_operands[opcode] = 1u << move_form::in | 1u << move_form::out;
  }
  return info;
}
static_assert(isa::opcode_count <= MKRT_IMAGE_OPCODES);

// What a block does, from its first instruction to its last.
template <bool traced>
__device__ __forceinline__ void run(const mkrt_launch& launch) {
  machine::start_block(launch);
  const uint32_t warp = threadIdx.x / 32;
  if (warp < machine::consumer_warps) {
    consumer_role<traced>(warp);
  } else if (warp == machine::fetch_warp) {
    InputOwner owner;
    machine::fetch_role<traced>([&](uint32_t place) {
      prepare_linear(place, owner);
      if (machine::slot(place).record.opcode == isa::opcode_attention) prepare_attention(place);
      if (is_move(machine::slot(place).record.opcode)) prepare_move(place);
    });
  } else if (warp == machine::weight_warp) {
    weight_role<traced>();
  } else if (warp == machine::activation_warp) {
    activation_role<traced>();
  } else {
    store_role<traced>();
  }
  machine::finish_block();
}

}  // namespace mkrt::llm

extern "C" {

__device__ __constant__ mkrt_image_info mkrt_image = mkrt::llm::image_info();

__global__ void __launch_bounds__(mkrt::machine::block_threads, 1)
    mkrt_run(const __grid_constant__ mkrt_launch launch) {
  mkrt::llm::run</*traced=*/false>(launch);
}

__global__ void __launch_bounds__(mkrt::machine::block_threads, 1)
    mkrt_run_traced(const __grid_constant__ mkrt_launch launch) {
  mkrt::llm::run</*traced=*/true>(launch);
}

}  // extern "C"
