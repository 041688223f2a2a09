// The megakernel of mkrt.llm: what each role does with each opcode.
#include "linear.cuh"
#include "small.cuh"

namespace mkrt::llm {

__device__ void weight_role(const Block& block) {
  machine::Walk walk;
  PageRing ring;
  PageRing arriving;
  uint32_t on_the_way = 0;
  const uint64_t policy = ptx::evict_first_policy();
  while (const TileSlot* tile = walk.next(block)) {
    if (is_linear(tile->record.opcode) && !stream_weights(block, *tile, ring, arriving, on_the_way, policy)) break;
    walk.release(block);
  }
  // Nothing may arrive in the shared memory of a block that has left.
  for (; on_the_way != 0; --on_the_way) {
    while (!ptx::barrier_test(&block.shared->page_full[arriving.place], arriving.phase)) {
    }
    arriving.advance(*block.launch);
  }
}

__device__ void activation_role(const Block& block) {
  Shared& shared = *block.shared;
  machine::Walk walk;
  InputTracker inputs;
  // The next load's buffer is free once the consumers have moved on to the load before it.
  const auto begin_load = [&]() {
    ++inputs.loads;
    if (machine::wait_warp(block, &shared.input_free[inputs.buffer()], inputs.parity() ^ 1)) return true;
    --inputs.loads;
    return false;
  };
  // Nothing may arrive in the shared memory of a block that has left.
  const auto drain = [&]() {
    for (uint32_t i = 0; i < 2 && inputs.loads != 0; ++i, --inputs.loads) {
      while (!ptx::barrier_test(&shared.input_full[inputs.buffer()], inputs.parity())) {
      }
    }
  };
  while (const TileSlot* tile = walk.next(block)) {
    if (!machine::wait_all_counters(block, *tile)) break;
    if (is_linear(tile->record.opcode)) {
      const LinearShape shape = linear_shape(*block.launch, *tile);
      const bool same = inputs.same_inputs(*tile, shape.places.x, shape.column_units == 1);
      const bool going = for_each_unit(shape, same, [&](uint32_t, uint32_t column_unit, bool fresh) {
        if (!fresh) return true;
        if (!begin_load()) return false;
        bring_activations(block, *tile, shape, column_unit, inputs.buffer());
        return true;
      });
      if (!going) break;
    } else {
      // Inputs are read by the consumers themselves; they only have to know that the counters were reached.
      inputs.same_inputs(*tile, 0, false);
      if (!begin_load()) break;
      if (MKRT_BULK_COPY == 0 || ptx::lane_number() == 0) ptx::barrier_arrive(&shared.input_full[inputs.buffer()]);
    }
    walk.release(block);
  }
  drain();
}

// A tile of an instruction without weights. False when the block is leaving.
__device__ bool consume_small(const Block& block, const TileSlot& tile, ConsumerState& state) {
  state.inputs.same_inputs(tile, 0, false);
  if (!take_inputs(block, state) || !begin_partial(block, state)) return false;
  uint32_t fault = 0;
  bool going = true;
  switch (tile.record.opcode) {
    case isa::opcode_embed: fault = embed(block, tile); break;
    case isa::opcode_rotation: fault = rotation(block, tile); break;
    case isa::opcode_attention: going = attention(block, tile, state, fault); break;
    case isa::opcode_attention_combine: attention_combine(block, tile); break;
    case isa::opcode_choose: going = choose(block, tile, state, fault); break;
    default: break;
  }
  if (!going) return false;
  if (fault != 0) {
    report_fault(block, tile, fault);
    return false;
  }
  end_partial(block, state);
  return true;
}

__device__ void consumer_role(const Block& block, uint32_t warp) {
  machine::Walk walk;
  ConsumerState state;
  state.warp = warp;
  while (const TileSlot* tile = walk.next(block)) {
    bool going;
    if (is_linear(tile->record.opcode)) {
      const LinearShape shape = linear_shape(*block.launch, *tile);
      going = shape.batch > 8 ? consume_linear<true>(block, *tile, shape, state)
                              : consume_linear<false>(block, *tile, shape, state);
    } else {
      going = consume_small(block, *tile, state);
    }
    if (!going) return;
    walk.release(block);
  }
}

// Stores one tile's units. `partials` counts the units of all tiles. False when the block is leaving.
__device__ bool store_tile(const Block& block, const TileSlot& tile, uint32_t& partials, bool mine) {
  Shared& shared = *block.shared;
  const bool linear = is_linear(tile.record.opcode);
  LinearShape shape{};
  if (linear) shape = linear_shape(*block.launch, tile);
  const uint32_t units = linear ? shape.row_units : 1;
  if (!mine) {
    partials += units;
    return true;
  }
  Best best;
  for (uint32_t unit = 0; unit < units; ++unit, ++partials) {
    const uint32_t number = partials & 1;
    if (!machine::wait_warp(block, &shared.partial_full[number], (partials >> 1) & 1)) return false;
    if (linear) {
      const UnitProduct product{reinterpret_cast<const float*>(shared.partial[number]), shared.addend[number],
                                shape.batch > 8 ? 16u : 8u, norm_scale(shared, number, tile, shape)};
      const uint32_t first_row = unit * unit_row_blocks * block_rows;
      const uint32_t rows = min(unit_row_blocks, shape.row_blocks - unit * unit_row_blocks) * block_rows;
      if (tile.record.opcode == isa::opcode_linear) {
        store_linear(block, tile, shape, product, first_row, rows);
      } else if (tile.record.opcode == isa::opcode_linear_swiglu) {
        store_swiglu(block, tile, shape, product, first_row, rows);
      } else {
        store_best(block, tile, shape, product, first_row, rows, best);
      }
    }
    __syncwarp();
    if (ptx::lane_number() == 0) ptx::barrier_arrive(&shared.partial_free[number]);
  }
  return true;
}

// Signals of a tile, together with those that the tiles before it left pending. Each signal of the record has its own
// pending count; tiles of one record and step never wait for each other, so a count may be held back while this block
// is sure to do another tile of the same record and step.
__device__ void signal_tile(const Block& block, const TileSlot& tile,
                            machine::PendingSignals (&pending)[MKRT_RECORD_SIGNALS], bool hold) {
  __syncwarp();
#pragma unroll
  for (uint32_t s = 0; s < MKRT_RECORD_SIGNALS; ++s) {
    if (s >= tile.record.signal_count || ptx::lane_number() != 0) break;
    const mkrt_signal& signal = tile.record.signal[s];
    const uint32_t number = machine::counter_number(tile, signal);
    if (pending[s].count != 0 && pending[s].counter != number) {
      machine::send_signal(*block.launch, tile, signal, pending[s].counter, pending[s].count);
      pending[s].count = 0;
    }
    pending[s].counter = number;
    ++pending[s].count;
    if (!hold || signal.rank.mode == MKRT_RANK_RELATIVE) {
      machine::send_signal(*block.launch, tile, signal, number, pending[s].count);
      pending[s].count = 0;
    }
  }
  __syncwarp();
}

// Whether the tile that this store warp does next is already here and belongs to the same record and step.
__device__ bool next_is_alike(const Block& block, const machine::Walk& walk, const TileSlot& tile) {
  Ring<machine::tile_slots> ring = walk.ring;
  for (uint32_t i = 0; i < machine::store_warps; ++i) {
    ring.advance();
    if (!__all_sync(ptx::full_mask, ptx::barrier_test(&block.shared->slot_full[ring.place], ring.phase))) return false;
    const TileSlot& next = block.shared->slot[ring.place];
    if (next.last != 0 || next.record.index != tile.record.index || next.step != tile.step) return false;
  }
  return true;
}

__device__ void store_role(const Block& block, uint32_t warp) {
  machine::Walk walk;
  machine::PendingSignals pending[MKRT_RECORD_SIGNALS];
  uint32_t partials = 0;
  uint32_t turn = 0;
  while (const TileSlot* tile = walk.next(block)) {
    const bool mine = turn == warp;
    turn = turn + 1 == machine::store_warps ? 0 : turn + 1;
    if (!store_tile(block, *tile, partials, mine)) return;
    if (mine) signal_tile(block, *tile, pending, next_is_alike(block, walk, *tile));
    walk.release(block);
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
  info.maximum_pages = machine::maximum_pages;
  info.row_padding = row_padding;
  info.minimum_row_bytes = unit_step * 4;
  info.staged_operands[isa::opcode_linear] = 1u << isa::linear::x | 1u << isa::linear::norm;
  info.staged_operands[isa::opcode_linear_swiglu] = 1u << isa::linear_swiglu::x | 1u << isa::linear_swiglu::norm;
  info.staged_operands[isa::opcode_linear_best] = 1u << isa::linear_best::x | 1u << isa::linear_best::norm;
  // Queries and the f32 key as they are; the newest key and value take the value's place as halves.
  info.staged_operands[isa::opcode_attention] =
      1u << isa::attention::q | 1u << isa::attention::k | 1u << isa::attention::v;
  info.whole[isa::opcode_attention] = 1;
  return info;
}
static_assert(isa::opcode_count <= MKRT_IMAGE_OPCODES);

}  // namespace mkrt::llm

extern "C" {

__device__ __constant__ mkrt_image_info mkrt_image = mkrt::llm::image_info();

__global__ void __launch_bounds__(mkrt::machine::block_threads, 1)
    mkrt_run(const __grid_constant__ mkrt_launch launch) {
  using namespace mkrt;
  extern __shared__ __align__(128) unsigned char memory[];
  machine::Block block;
  block.launch = &launch;
  block.shared = reinterpret_cast<machine::Shared*>(memory);
  block.activations = memory + machine::fixed_shared_bytes;
  block.pages = block.activations + 2 * static_cast<size_t>(launch.activation_bytes);
  machine::start_block(block);
  const uint32_t warp = threadIdx.x / 32;
  if (warp < machine::consumer_warps) {
    llm::consumer_role(block, warp);
  } else if (warp == machine::fetch_warp) {
    machine::fetch_role(block);
  } else if (warp == machine::weight_warp) {
    llm::weight_role(block);
  } else if (warp == machine::activation_warp) {
    llm::activation_role(block);
  } else {
    llm::store_role(block, warp - machine::first_store_warp);
  }
  machine::finish_block(block);
}

}  // extern "C"
