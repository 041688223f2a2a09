// Data movement between ranks: copy and reduce_... of mkrt.llm, which are peer copies, all-gathers, reduce-scatters and
// all-reduces as their operands say (isa/README.md).
//
// A tile is one SM's share. Where there is a copy engine the tile goes through the ring of pages: the weight warp
// brings the same piece of every source into a page, consumer warps take pages in turn, add the pieces up and let the
// copy engine send the sum from the page to every destination. A page is free again once it was read, so as many are on
// their way as the ring has. What 16-byte copies cannot do (other alignments, the bytes behind the last 16, all of it
// on older chips or where the record asks for it) goes through the consumers' registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention.cuh"

namespace mkrt::llm {

__device__ inline bool is_move(uint32_t opcode) {
  return opcode == isa::opcode_copy || opcode == isa::opcode_reduce_f32 || opcode == isa::opcode_reduce_f16 ||
         opcode == isa::opcode_reduce_bf16;
}
// The four have one form.
namespace move_form = isa::copy;
constexpr bool has_form(uint32_t in, uint32_t out, uint32_t registers) {
  return in == move_form::in && out == move_form::out && registers == move_form::registers;
}
static_assert(has_form(isa::reduce_f32::in, isa::reduce_f32::out, isa::reduce_f32::registers));
static_assert(has_form(isa::reduce_f16::in, isa::reduce_f16::out, isa::reduce_f16::registers));
static_assert(has_form(isa::reduce_bf16::in, isa::reduce_bf16::out, isa::reduce_bf16::registers));

// What a tile moves, worked out by the fetch warp.
struct alignas(16) MoveShape {
  uint64_t in, out;     // own-rank addresses
  uint64_t bytes;       // at each rank
  uint64_t ring_bytes;  // the first so many of them go through the ring
  machine::Ranks from, to;
  uint32_t piece_bytes;  // of a source in a page
  uint32_t pages;        // that the ring brings
  uint32_t overlap;      // 1: some rank's output would overwrite input that is still to be read
};
static_assert(sizeof(MoveShape) <= machine::prepared_bytes);

__device__ inline const MoveShape& move_shape(uint32_t place) {
  return *reinterpret_cast<const MoveShape*>(machine::slot(place).prepared);
}
// Pages that the ring brings of a tile of any opcode but products.
__device__ inline uint32_t move_pages(uint32_t place) {
  return is_move(machine::slot(place).record.opcode) ? move_shape(place).pages : 0;
}

__device__ __noinline__ void prepare_move(uint32_t place) {
  TileSlot& tile = machine::slot(place);
  // A slot's sizes have 32 bits; a slice of this may be larger.
  const auto bytes_of = [&](uint32_t number) {
    const mkrt_operand& operand = tile.record.operand[number];
    return min(operand.size, operand.limit - (tile.address[number] - operand.address));
  };
  MoveShape shape;
  shape.in = tile.address[move_form::in];
  shape.out = tile.address[move_form::out];
  shape.bytes = min(bytes_of(move_form::in), bytes_of(move_form::out));
  shape.from = machine::selected_ranks(tile, tile.record.operand[move_form::in].rank);
  shape.to = machine::selected_ranks(tile, tile.record.operand[move_form::out].rank);
  const bool common_rank =
      max(shape.from.first, shape.to.first) < min(shape.from.first + shape.from.count, shape.to.first + shape.to.count);
  shape.overlap =
      common_rank && shape.in != shape.out && shape.in < shape.out + shape.bytes && shape.out < shape.in + shape.bytes;
  const bool through_ring = MKRT_BULK_COPY != 0 && tile.record.parameter[move_form::registers] == 0 &&
                            (shape.in | shape.out) % 16 == 0 && shape.overlap == 0;
  shape.ring_bytes = through_ring ? shape.bytes / 16 * 16 : 0;
  // Whole lines, of which a page has room for one of each rank.
  shape.piece_bytes = machine::page_bytes / shape.from.count / 128 * 128;
  shape.pages = static_cast<uint32_t>((shape.ring_bytes + shape.piece_bytes - 1) / shape.piece_bytes);
  if (ptx::lane_number() == 0) *reinterpret_cast<MoveShape*>(tile.prepared) = shape;
}
static_assert(machine::page_bytes >= MKRT_MAX_RANKS * 128);

// ---- elements -------------------------------------------------------------------------------------------------------

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void round_to(float value, float& out) { out = value; }
__device__ inline void round_to(float value, __half& out) { out = __float2half_rn(value); }
__device__ inline void round_to(float value, __nv_bfloat16& out) { out = __float2bfloat16_rn(value); }

// The sum of several ranks' units of some elements.
template <class Element, class Unit>
struct Sum {
  static constexpr uint32_t count = sizeof(Unit) / sizeof(Element);
  float value[count];
  __device__ void start(const Unit& unit) {
#pragma unroll
    for (uint32_t i = 0; i < count; ++i) value[i] = to_float(reinterpret_cast<const Element*>(&unit)[i]);
  }
  __device__ void add(const Unit& unit) {
#pragma unroll
    for (uint32_t i = 0; i < count; ++i) value[i] += to_float(reinterpret_cast<const Element*>(&unit)[i]);
  }
  __device__ Unit rounded() const {
    Unit unit;
#pragma unroll
    for (uint32_t i = 0; i < count; ++i) round_to(value[i], reinterpret_cast<Element*>(&unit)[i]);
    return unit;
  }
};

// ---- through the ring (sm_90 and newer)
// -------------------------------------------------------------------------------

#if MKRT_BULK_COPY
// Pages between two looks at the abort word: 1 MB, some 20 us at the rate of a link, and far less of looking.
constexpr uint32_t pages_between_looks = 64;

// Weight warp: brings the tile's sources into pages. False when the block is leaving.
__device__ __noinline__ bool bring_pages(uint32_t place, RingState& ring) {
  const MoveShape shape = move_shape(place);
  const uint32_t parity = shared().moves & 1;
  __syncwarp();
  if (ptx::lane_number() == 0) ++shared().moves;
  // The consumers were told by the warp that acquired the counters, and tell this one: what peers wrote is visible
  // here, and to the copy engine behind the fence.
  if (!machine::wait_warp(&shared().move_ready, parity)) return false;
  ptx::fence_copy_engine_global();
  bool begun = false;
  uint32_t pages = 0;
  for (uint64_t at = 0; at < shape.ring_bytes; at += shape.piece_bytes, ++pages) {
    const uint64_t left = shape.ring_bytes - at;
    const auto bytes = static_cast<uint32_t>(min(left, static_cast<uint64_t>(shape.piece_bytes)));
    if (!begun && left <= pages_when_next * shape.piece_bytes) {
      machine::tile_begun(place);
      begun = true;
    }
    if (pages % pages_between_looks == 0 &&
        __any_sync(ptx::full_mask, ptx::load_relaxed_gpu(&machine::control()->abort) != 0)) {
      ptx::store_relaxed_block(&shared().abort, 1);
      return false;
    }
    uint64_t* full = &shared().page_full[ring.next.place];
    if (!machine::wait_warp(&shared().page_free[ring.next.place], ring.next.phase ^ 1)) return false;
    if (ring.on_the_way == ring.next.count) {  // the free page is the oldest of them
      ring.arriving.advance();
      --ring.on_the_way;
    }
    if (ptx::lane_number() == 0) ptx::barrier_expect(full, bytes * shape.from.count);
    __syncwarp();
    for (uint32_t i = ptx::lane_number(); i < shape.from.count; i += 32) {
      const uint64_t source = shape.in + machine::rank_delta(shape.from.first + i) + at;
      ptx::bulk_copy(machine::page(ring.next.place) + i * shape.piece_bytes,
                     reinterpret_cast<const unsigned char*>(source), bytes, full);
    }
    __syncwarp();
    ring.next.advance();
    ++ring.on_the_way;
  }
  // As few as stream_weights leaves.
  while (ring.on_the_way > launch().outstanding_pages) {
    if (!machine::wait_warp(&shared().page_full[ring.arriving.place], ring.arriving.phase)) return false;
    ring.arriving.advance();
    --ring.on_the_way;
  }
  return true;
}

// Adds a page's pieces up in the first one, in the order of ranks. One warp.
template <class Element>
__device__ inline void add_pieces(unsigned char* page, const MoveShape& shape, uint32_t bytes) {
  for (uint32_t at = ptx::lane_number() * 16; at < bytes; at += 32 * 16) {
    Sum<Element, uint4> sum;
    sum.start(*reinterpret_cast<const uint4*>(page + at));
    for (uint32_t i = 1; i < shape.from.count; ++i) {
      sum.add(*reinterpret_cast<const uint4*>(page + i * shape.piece_bytes + at));
    }
    *reinterpret_cast<uint4*>(page + at) = sum.rounded();
  }
}

// Consumer warps: send the tile's pages on. False when the block is leaving.
__device__ __noinline__ bool send_pages(uint32_t place, PageRing ring) {
  const MoveShape shape = move_shape(place);
  const uint32_t opcode = machine::slot(place).record.opcode;
  const uint64_t source = shape.in + machine::rank_delta(shape.from.first);
  uint32_t turn = 0;
  for (uint64_t at = 0; at < shape.ring_bytes; at += shape.piece_bytes) {
    const auto bytes = static_cast<uint32_t>(min(shape.ring_bytes - at, static_cast<uint64_t>(shape.piece_bytes)));
    unsigned char* page = machine::page(ring.place);
    if (!machine::wait_warp(&shared().page_full[ring.place], ring.phase)) return false;
    if (turn == consumer_warp()) {
      if (shape.from.count != 1) {
        if (opcode == isa::opcode_reduce_f32) add_pieces<float>(page, shape, bytes);
        if (opcode == isa::opcode_reduce_f16) add_pieces<__half>(page, shape, bytes);
        if (opcode == isa::opcode_reduce_bf16) add_pieces<__nv_bfloat16>(page, shape, bytes);
        ptx::fence_copy_engine_shared();
        __syncwarp();
      }
      // A lane for each destination, because each waits for its own. A copy onto itself is left out.
      for (uint32_t i = ptx::lane_number(); i < shape.to.count; i += 32) {
        const uint64_t destination = shape.out + machine::rank_delta(shape.to.first + i);
        if (shape.from.count == 1 && destination == source) continue;
        ptx::bulk_store(reinterpret_cast<unsigned char*>(destination + at), page, bytes);
      }
      ptx::bulk_stores_group();
      ptx::bulk_stores_wait_read();
    }
    __syncwarp();
    if (ptx::arrives()) ptx::barrier_arrive(&shared().page_free[ring.place]);
    ring.advance();
    turn = (turn + 1) % machine::consumer_warps;
  }
  // Written before the store warp signals; the fence puts the copy engine's writes before what this warp does next.
  ptx::bulk_stores_wait();
  ptx::fence_copy_engine_global();
  __syncwarp();
  return true;
}
#endif

// ---- through registers
// ------------------------------------------------------------------------------------------------

// Loads of a thread that are on their way at once: of a copy, and of a sum.
constexpr uint32_t copies_at_once = 4;
constexpr uint32_t sources_at_once = 2;

__device__ inline const unsigned char* source_of(const MoveShape& shape, uint32_t number) {
  return reinterpret_cast<const unsigned char*>(shape.in + machine::rank_delta(shape.from.first + number));
}

// Calls body(the slice there) for every destination, each rank beginning with the one after itself, so that not all
// write to one.
template <class Body>
__device__ inline void for_each_destination(const MoveShape& shape, Body body) {
#pragma unroll 1
  for (uint32_t i = 0; i < shape.to.count; ++i) {
    uint32_t rank = shape.to.first;
    if (shape.to.count != 1) rank = (launch().rank + 1 + i) % shape.to.count;
    body(reinterpret_cast<unsigned char*>(shape.out + machine::rank_delta(rank)));
  }
}

// Copies whole units from byte `from` of the tile on; returns the byte after the last.
template <class Unit>
__device__ inline uint64_t copy_units(const MoveShape& shape, uint64_t from) {
  const uint64_t count = (shape.bytes - from) / sizeof(Unit);
  const auto* source = reinterpret_cast<const Unit*>(source_of(shape, 0) + from);
  for (uint64_t first = consumer_thread(); first < count; first += copies_at_once * consumer_threads) {
    Unit unit[copies_at_once];
#pragma unroll
    for (uint32_t u = 0; u < copies_at_once; ++u) {
      const uint64_t at = first + u * consumer_threads;
      unit[u] = source[at < count ? at : first];
    }
    for_each_destination(shape, [&](unsigned char* slice) {
      auto* destination = reinterpret_cast<Unit*>(slice + from);
#pragma unroll
      for (uint32_t u = 0; u < copies_at_once; ++u) {
        const uint64_t at = first + u * consumer_threads;
        if (at < count) destination[at] = unit[u];
      }
    });
  }
  return from + count * sizeof(Unit);
}

// The same for sums of all sources, in the order of ranks.
template <class Element, class Unit>
__device__ inline uint64_t reduce_units(const MoveShape& shape, uint64_t from) {
  const uint64_t count = (shape.bytes - from) / sizeof(Unit);
#pragma unroll 1
  for (uint64_t at = consumer_thread(); at < count; at += consumer_threads) {
    Sum<Element, Unit> sum;
#pragma unroll 1
    for (uint32_t first = 0; first < shape.from.count; first += sources_at_once) {
      Unit unit[sources_at_once];
#pragma unroll
      for (uint32_t u = 0; u < sources_at_once; ++u) {
        unit[u] = Unit{};
        if (first + u < shape.from.count) {
          unit[u] = reinterpret_cast<const Unit*>(source_of(shape, first + u) + from)[at];
        }
      }
#pragma unroll
      for (uint32_t u = 0; u < sources_at_once; ++u) {
        if (first + u < shape.from.count) first + u == 0 ? sum.start(unit[u]) : sum.add(unit[u]);
      }
    }
    const Unit rounded = sum.rounded();
    for_each_destination(shape, [&](unsigned char* slice) { reinterpret_cast<Unit*>(slice + from)[at] = rounded; });
  }
  return from + count * sizeof(Unit);
}

// What the ring left of a tile: whole units of 16 bytes where the slices allow it, then elements.
__device__ __noinline__ void copy_rest(uint32_t place) {
  const MoveShape shape = move_shape(place);
  uint64_t done = shape.ring_bytes;
  if ((shape.in | shape.out) % 16 == 0) done = copy_units<uint4>(shape, done);
  if (done != shape.bytes) copy_units<uint8_t>(shape, done);
}
template <class Element>
__device__ __noinline__ void reduce_rest(uint32_t place) {
  const MoveShape shape = move_shape(place);
  uint64_t done = shape.ring_bytes;
  if ((shape.in | shape.out) % 16 == 0) done = reduce_units<Element, uint4>(shape, done);
  if (done != shape.bytes) reduce_units<Element, Element>(shape, done);
}

// A tile, by all consumer warps.
__device__ inline uint32_t move(uint32_t place, PageRing ring) {
  const MoveShape shape = move_shape(place);
  if (shape.overlap != 0) return move_form::fault_input_and_output_overlap_without_being_same;
  const uint32_t opcode = machine::slot(place).record.opcode;
#if MKRT_BULK_COPY
  if (shape.ring_bytes != 0) {
    if (consumer_warp() == 0 && ptx::arrives()) ptx::barrier_arrive(&shared().move_ready);
    if (!send_pages(place, ring)) return leaving;
  }
#endif
  if (shape.ring_bytes == shape.bytes) return done;
  switch (opcode) {
    case isa::opcode_reduce_f32: reduce_rest<float>(place); break;
    case isa::opcode_reduce_f16: reduce_rest<__half>(place); break;
    case isa::opcode_reduce_bf16: reduce_rest<__nv_bfloat16>(place); break;
    default: copy_rest(place); break;
  }
  return done;
}

}  // namespace mkrt::llm
