// Matrix-vector products: linear, linear_swiglu and linear_best of mkrt.llm.
//
// A tile is `tile_rows` rows of packed weights. It is worked on in units of at most `unit_row_blocks` row blocks of 8
// rows and at most `columns_per_unit` columns, as many as fit an activation buffer; the usual tile is one unit. Pages
// come in the order of units, in a unit in order of chunks of a page's columns, in a chunk in order of row blocks. All
// roles derive this order from the record alone. Packed weights do not depend on it: a page is part of a row block.
#pragma once

#include <cuda_bf16.h>

#include "machine.cuh"
#include "mkrt_isa/llm.hpp"

namespace mkrt::llm {

namespace isa = mkrt::isa::llm;
using machine::launch;
using machine::Ring;
using machine::shared;
using machine::TileSlot;
using machine::unit_row_blocks;

constexpr uint32_t block_rows = 8;
constexpr uint32_t block_columns = 32;
constexpr uint32_t block_bytes = block_rows * block_columns * 2;
constexpr uint32_t page_columns = machine::page_bytes / (block_rows * 2);
constexpr uint32_t page_blocks = page_columns / block_columns;
// Where a unit has to be narrower than the matrix, it is a multiple of this: two blocks for each consumer warp, or one
// where two of the largest batch would not fit.
constexpr uint32_t unit_step = machine::small_machine ? 256 : 512;
// Bytes that each row of an activation buffer is longer than its columns, so that the rows that one load touches lie
// in different banks.
constexpr uint32_t row_padding = 64;

__device__ inline bool is_linear(uint32_t opcode) {
  return opcode == isa::opcode_linear || opcode == isa::opcode_linear_swiglu || opcode == isa::opcode_linear_best;
}

// The three opcodes have their shared operands and parameters under the same names, at different places.
struct LinearPlaces {
  uint32_t x, norm, weight;
};
__device__ inline LinearPlaces linear_places(uint32_t opcode) {
  if (opcode == isa::opcode_linear) return {isa::linear::x, isa::linear::norm, isa::linear::weight};
  if (opcode == isa::opcode_linear_swiglu) {
    return {isa::linear_swiglu::x, isa::linear_swiglu::norm, isa::linear_swiglu::weight};
  }
  return {isa::linear_best::x, isa::linear_best::norm, isa::linear_best::weight};
}
static_assert(isa::linear::columns == isa::linear_swiglu::columns && isa::linear::columns == isa::linear_best::columns);
static_assert(isa::linear::batch == isa::linear_swiglu::batch && isa::linear::batch == isa::linear_best::batch);
static_assert(isa::linear::tile_rows == isa::linear_swiglu::tile_rows &&
              isa::linear::tile_rows == isa::linear_best::tile_rows);
static_assert(isa::linear::epsilon == isa::linear_swiglu::epsilon && isa::linear::epsilon == isa::linear_best::epsilon);

// What is added to products.
enum Adds : uint32_t { adds_bias = 1, adds_residual = 2 };

// The shape of a tile and of its units, which the fetch warp prepares.
struct alignas(16) LinearShape {
  uint32_t columns;
  uint32_t column_blocks;  // of 32, the last one padded
  uint32_t batch;
  uint32_t row_blocks;        // of 8
  uint32_t columns_per_unit;  // a multiple of unit_step, or all
  uint32_t row_bytes;         // of a row in an activation buffer
  uint32_t column_units;
  uint32_t row_units;
  uint32_t pages;  // of the whole tile
  uint32_t norm;   // 1: with a norm
  float epsilon;
  float inverse_columns;
  uint32_t adds;         // adds_bias, adds_residual
  uint32_t same_inputs;  // 1: starts with the activations that the tile before it left in the buffer
  uint32_t both;         // 1: they take both activation buffers together
  LinearPlaces places;
};
static_assert(sizeof(LinearShape) <= machine::prepared_bytes);

__device__ inline const LinearShape& linear_shape(const TileSlot& tile) {
  return *reinterpret_cast<const LinearShape*>(tile.prepared);
}

// Whose activations the buffer holds: tiles of one record and step that wait for the same counters and read the same
// inputs bring them once.
struct InputOwner {
  uint32_t record = 0xffffffffu;
  uint32_t step = 0;
  uint64_t x = 0;
  uint64_t norm = 0;
  uint32_t wait = 0;  // lane w: first counter of wait w

  __device__ bool same(const InputOwner& other) const {
    return __all_sync(ptx::full_mask, record == other.record && step == other.step && x == other.x &&
                                          norm == other.norm && wait == other.wait);
  }
};

// Works out a tile's shape (fetch warp). `owner` is that of the tile before.
__device__ inline void prepare_linear(uint32_t place, InputOwner& owner) {
  TileSlot& tile = machine::slot(place);
  if (!is_linear(tile.record.opcode)) {
    owner = InputOwner{};
    return;
  }
  LinearShape shape;
  shape.places = linear_places(tile.record.opcode);
  shape.columns = tile.record.parameter[isa::linear::columns];
  shape.column_blocks = (shape.columns + block_columns - 1) / block_columns;
  shape.batch = tile.record.parameter[isa::linear::batch];
  shape.row_blocks = tile.record.parameter[isa::linear::tile_rows] / block_rows;
  shape.norm = machine::operand_present(tile, shape.places.norm);
  shape.epsilon = __uint_as_float(tile.record.parameter[isa::linear::epsilon]);
  shape.inverse_columns = 1.0f / static_cast<float>(shape.columns);
  shape.adds = 0;
  if (tile.record.opcode == isa::opcode_linear) {
    if (machine::operand_present(tile, isa::linear::bias)) shape.adds |= adds_bias;
    if (machine::operand_present(tile, isa::linear::residual)) shape.adds |= adds_residual;
  }
  // One more row for the norm's weights, which are brought in with the activations.
  const uint32_t rows = shape.batch + shape.norm;
  const uint32_t padded = shape.column_blocks * block_columns;
  shape.row_bytes = padded * 4 + row_padding;
  shape.columns_per_unit = padded;
  shape.column_units = 1;
  // Whole rows in both buffers rather than pieces of them in each: the tiles of a record then bring them once.
  shape.both = rows * shape.row_bytes > launch().activation_bytes;
  if (rows * shape.row_bytes > 2 * launch().activation_bytes) {
    shape.both = 0;
    // The runtime gives every activation buffer room for unit_step columns of the largest batch.
    shape.columns_per_unit = (launch().activation_bytes / rows - row_padding) / (unit_step * 4) * unit_step;
    shape.row_bytes = shape.columns_per_unit * 4 + row_padding;
    shape.column_units = (padded + shape.columns_per_unit - 1) / shape.columns_per_unit;
  }
  shape.row_units = (shape.row_blocks + unit_row_blocks - 1) / unit_row_blocks;
  const uint32_t unit_blocks = shape.columns_per_unit / block_columns;
  const uint32_t rest = shape.column_blocks - (shape.column_units - 1) * unit_blocks;
  shape.pages = shape.row_blocks * ((shape.column_units - 1) * ((unit_blocks + page_blocks - 1) / page_blocks) +
                                    (rest + page_blocks - 1) / page_blocks);
  const uint32_t lane = ptx::lane_number();
  const InputOwner now{tile.record.index, tile.step, tile.address[shape.places.x], tile.address[shape.places.norm],
                       lane < tile.record.wait_count ? tile.wait_counter[lane] : 0};
  shape.same_inputs = now.same(owner) && shape.column_units == 1;
  owner = shape.column_units == 1 ? now : InputOwner{};
  if (ptx::lane_number() == 0) *reinterpret_cast<LinearShape*>(tile.prepared) = shape;
}

// Counts the loads of inputs into the two activation buffers; activation and consumer warps keep one each.
struct InputLoads {
  uint32_t loads = 0;  // so far; load n, counted from 1, uses buffer (n - 1) & 1

  __device__ uint32_t buffer() const { return (loads - 1) & 1; }
  __device__ uint32_t parity() const { return ((loads - 1) >> 1) & 1; }
  __device__ InputLoads before() const { return {loads - 1}; }
};

// Where the current load's activations lie.
__device__ inline unsigned char* activations_place(const LinearShape& shape, const InputLoads& inputs) {
  return machine::activation_buffer(shape.both != 0 ? 0 : inputs.buffer());
}

// Visits a tile's units in the order that all roles keep: body(row_unit, column_unit, fresh), fresh where the unit's
// activations are to be brought in. Stops when the body returns false.
template <class Body>
__device__ bool for_each_unit(const LinearShape& shape, Body body) {
  for (uint32_t row_unit = 0; row_unit < shape.row_units; ++row_unit) {
    for (uint32_t column_unit = 0; column_unit < shape.column_units; ++column_unit) {
      const bool fresh = shape.column_units > 1 || (row_unit == 0 && shape.same_inputs == 0);
      if (!body(row_unit, column_unit, fresh)) return false;
    }
  }
  return true;
}

// Visits a unit's pages: body(row block inside the unit, first column block, column blocks).
template <class Body>
__device__ bool for_each_page(const LinearShape& shape, uint32_t row_unit, uint32_t column_unit, Body body) {
  const uint32_t first = column_unit * (shape.columns_per_unit / block_columns);
  const uint32_t end = min(shape.column_blocks, first + shape.columns_per_unit / block_columns);
  const uint32_t row_blocks = min(unit_row_blocks, shape.row_blocks - row_unit * unit_row_blocks);
  for (uint32_t column_block = first; column_block < end; column_block += page_blocks) {
    for (uint32_t row_block = 0; row_block < row_blocks; ++row_block) {
      if (!body(row_block, column_block, min(page_blocks, end - column_block))) return false;
    }
  }
  return true;
}

// ---- weight warp ----------------------------------------------------------------------------------------------------

// A place in the ring of pages. Its size is kept here, in a register: the way from one page to the next is short.
struct PageRing {
  uint32_t count = launch().page_count;
  uint32_t place = 0;
  uint32_t phase = 0;

  __device__ void advance() {
    if (++place == count) {
      place = 0;
      phase ^= 1;
    }
  }
  // The same `pages` times.
  __device__ void skip(uint32_t pages) {
    place += pages % count;
    phase ^= pages / count & 1;
    if (place < count) return;
    place -= count;
    phase ^= 1;
  }
};

// What the weight warp knows of the ring, copied for calls: what is passed by reference lives in memory.
struct RingState {
  PageRing next, arriving;
  uint32_t on_the_way;
};

// Pages of a tile that are still to be sent for when the fetch warp may take the next one: eight pages last as long as
// it takes to get the next tile's number and record. With six a token took 3 % longer, with twelve as long
// (PERFORMANCE.md).
constexpr uint32_t pages_when_next = 8;

// Of traced launches: waits until `ready` or until the `count` pages from `arriving` on have all come. The time of the
// latter, 0 where `ready` was first. Nothing here suspends the warp: it would send for the next page too late.
template <class Ready>
__device__ inline uint64_t idle_since(PageRing arriving, uint32_t count, Ready ready) {
  for (; count != 0; --count, arriving.advance()) {
    do {
      if (ready()) return 0;
      // A page that was sent for always comes.
    } while (!__all_sync(ptx::full_mask, ptx::barrier_ready(&shared().page_full[arriving.place], arriving.phase)));
  }
  return ready() ? 0 : ptx::time_ns();
}

// Streams a tile's weights into the ring. `ring` is where the next page goes, `arriving` the oldest page on its way;
// `most` may be on their way at a time. `traced`: the `sequence`-th tile's stalls are written.
template <bool traced>
__device__ inline bool stream_weights(uint32_t place, PageRing& ring, PageRing& arriving, uint32_t& on_the_way,
                                      uint32_t most, uint64_t policy, uint32_t sequence) {
  const TileSlot& tile = machine::slot(place);
  const LinearShape shape = linear_shape(tile);
  uint32_t left = shape.pages;
  const uint32_t next_at = min(left, pages_when_next);
  const auto* weights = machine::operand<const unsigned char>(tile, shape.places.weight);
  return for_each_unit(shape, [&](uint32_t row_unit, uint32_t column_unit, bool) {
    return for_each_page(shape, row_unit, column_unit, [&](uint32_t row_block, uint32_t column_block, uint32_t count) {
      if (left-- == next_at) machine::tile_begun(place);
      // Few pages on their way at a time: deep queues in the memory system delay signals and inputs
      // (0.730 -> 0.696 ms, PERFORMANCE.md).
      if (on_the_way == most) {
        if (!machine::wait_warp(&shared().page_full[arriving.place], arriving.phase)) return false;
        arriving.advance();
        --on_the_way;
      }
      uint64_t stall = 0;
      if constexpr (traced) {
        stall = idle_since(arriving, on_the_way, [&] {
          return __all_sync(ptx::full_mask, ptx::barrier_ready(&shared().page_free[ring.place], ring.phase ^ 1) &&
                                                ptx::load_relaxed_block(&shared().signalling) == 0);
        });
      }
      if (!machine::wait_warp(&shared().page_free[ring.place], ring.phase ^ 1)) return false;
      if (!machine::let_signal_pass()) return false;
      if (traced && stall != 0) machine::write_stall(sequence, stall);
      const unsigned char* source =
          weights +
          (static_cast<uint64_t>(row_unit * unit_row_blocks + row_block) * shape.column_blocks + column_block) *
              block_bytes;
      unsigned char* page = machine::page(ring.place);
      const uint32_t bytes = count * block_bytes;
#if MKRT_BULK_COPY
      if (ptx::lane_number() == 0) {
        ptx::barrier_expect(&shared().page_full[ring.place], bytes);
        ptx::bulk_copy(page, source, bytes, &shared().page_full[ring.place], policy);
      }
      __syncwarp();
#else
      for (uint32_t at = ptx::lane_number() * 16; at < bytes; at += 32 * 16) ptx::async_copy_16(page + at, source + at);
      ptx::async_copy_arrive(&shared().page_full[ring.place]);
#endif
      ring.advance();
      ++on_the_way;
      return true;
    });
  });
}

// ---- activation warp ------------------------------------------------------------------------------------------------

// Copies `count` floats to shared memory: by the copy engine, which counts them on `barrier`, or by this warp.
__device__ inline void bring_row(float* to, const float* from, uint32_t count, uint64_t* barrier, bool bulk) {
#if MKRT_BULK_COPY
  if (bulk) {
    if (ptx::lane_number() == 0) ptx::bulk_copy(to, from, count * 4, barrier);
    return;
  }
#endif
  for (uint32_t i = ptx::lane_number(); i < count; i += 32) to[i] = from[i];
}

// How a unit's activations are brought in.
struct InputPlan {
  const float* x;
  const float* norm;  // or nullptr
  uint64_t stride;
  uint32_t count;
  bool bulk;  // by the copy engine, which wants 16-byte pieces; ragged sizes and odd strides go through registers
};

__device__ inline InputPlan plan_inputs(const TileSlot& tile, const LinearShape& shape, uint32_t column_unit) {
  InputPlan plan;
  const uint32_t first = column_unit * shape.columns_per_unit;
  plan.count = min(shape.columns - first, shape.columns_per_unit);
  plan.x = machine::operand<const float>(tile, shape.places.x) + first;
  plan.stride = machine::row_stride<float>(tile, shape.places.x);
  plan.norm = shape.norm != 0 ? machine::operand<const float>(tile, shape.places.norm) + first : nullptr;
  plan.bulk = MKRT_BULK_COPY != 0 && plan.count % 4 == 0 && reinterpret_cast<uint64_t>(plan.x) % 16 == 0 &&
              (shape.batch == 1 || plan.stride % 4 == 0) && reinterpret_cast<uint64_t>(plan.norm) % 16 == 0;
  return plan;
}

// The part that depends on nothing: announces the bytes and starts with the norm's weights.
__device__ inline void begin_inputs(const LinearShape& shape, const InputPlan& plan, const InputLoads& inputs) {
  unsigned char* to = activations_place(shape, inputs);
  uint64_t* barrier = &shared().input_full[inputs.buffer()];
#if MKRT_BULK_COPY
  if (plan.bulk && ptx::lane_number() == 0) {
    // What consumers did to the buffer is ordered before the copy engine's accesses.
    ptx::fence_copy_engine_shared();
    ptx::barrier_expect(barrier, (shape.batch + shape.norm) * plan.count * 4);
  } else if (MKRT_CHECK_ARRIVALS && plan.bulk) {
    ptx::barrier_arrive(barrier);
  }
  __syncwarp();
#endif
  if (plan.norm == nullptr) return;
  bring_row(reinterpret_cast<float*>(to + shape.batch * shape.row_bytes), plan.norm, plan.count, barrier, plan.bulk);
}

// The part that the tile's counters were waited for.
__device__ inline void finish_inputs(const LinearShape& shape, const InputPlan& plan, const InputLoads& inputs) {
  unsigned char* to = activations_place(shape, inputs);
  uint64_t* barrier = &shared().input_full[inputs.buffer()];
  // What the acquire made visible to ordinary loads is made visible to the copy engine.
  if (plan.bulk) ptx::fence_copy_engine_global();
  for (uint32_t b = 0; b < shape.batch; ++b) {
    bring_row(reinterpret_cast<float*>(to + b * shape.row_bytes), plan.x + b * plan.stride, plan.count, barrier,
              plan.bulk);
  }
  if (plan.bulk) return;
  __syncwarp();
  if (MKRT_BULK_COPY == 0 || ptx::arrives()) ptx::barrier_arrive(barrier);
}

// ---- consumer warps -------------------------------------------------------------------------------------------------

// Column blocks of a page that each consumer warp works on: warp w on w, w + 8, ...
constexpr uint32_t warp_blocks = page_blocks / machine::consumer_warps;
static_assert(page_blocks % machine::consumer_warps == 0);

// Two neighbouring columns as the tensor cores want them: their rounded values, then what rounding left.
__device__ inline uint2 split_pair(float x, float y) {
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(x, y);
  const float2 back = __bfloat1622float2(rounded);
  const __nv_bfloat162 rest = __floats2bfloat162_rn(x - back.x, y - back.y);
  return make_uint2(reinterpret_cast<const uint32_t&>(rounded), reinterpret_cast<const uint32_t&>(rest));
}

// Turns the column blocks that this warp will multiply from f32 into pairs of bf16, in place: 16 bytes are then one
// operand of a product. The pair keeps 16 bits of the mantissa, so that activations lose nothing that f32 sums would
// show. Returns this lane's share of each sequence's sum of squares: lane b's of b.
__device__ inline float split_activations(const LinearShape& shape, unsigned char* buffer, uint32_t column_unit,
                                          uint32_t warp) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t first_column = column_unit * shape.columns_per_unit;
  const uint32_t count = min(shape.columns - first_column, shape.columns_per_unit);
  const uint32_t end = (count + block_columns - 1) / block_columns * block_columns;
  const bool ragged = end != count;
  // Eight lanes take a block, four columns a lane.
  const uint32_t first = (warp + lane / 8 * machine::consumer_warps) * block_columns + lane % 8 * 4;
  constexpr uint32_t step = 4 * machine::consumer_warps * block_columns;
  const unsigned char* norm = buffer + shape.batch * shape.row_bytes;
  float mine = 0;
#pragma unroll 1
  for (uint32_t b = 0; b < shape.batch; ++b) {
    unsigned char* row = buffer + b * shape.row_bytes;
    float sum = 0;
#pragma unroll 2
    for (uint32_t column = first; column < end; column += step) {
      float4 x = *reinterpret_cast<const float4*>(row + column * 4);
      if (ragged) {
        if (column >= count) x.x = 0;
        if (column + 1 >= count) x.y = 0;
        if (column + 2 >= count) x.z = 0;
        if (column + 3 >= count) x.w = 0;
      }
      if (shape.norm != 0) {
        sum += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
        const float4 factor = *reinterpret_cast<const float4*>(norm + column * 4);
        // What lies behind the norm's last weight may be no number.
        x.x = ragged && column >= count ? 0 : x.x * factor.x;
        x.y = ragged && column + 1 >= count ? 0 : x.y * factor.y;
        x.z = ragged && column + 2 >= count ? 0 : x.z * factor.z;
        x.w = ragged && column + 3 >= count ? 0 : x.w * factor.w;
      }
      const uint2 low = split_pair(x.x, x.y);
      const uint2 high = split_pair(x.z, x.w);
      *reinterpret_cast<uint4*>(row + column * 4) = make_uint4(low.x, low.y, high.x, high.y);
    }
    if (shape.norm != 0) {
      for (uint32_t offset = 16; offset != 0; offset /= 2) sum += __shfl_xor_sync(ptx::full_mask, sum, offset);
      if (lane == b) mine = sum;
    }
  }
  __syncwarp();
  return mine;
}

// The activations of one column block as the tensor cores want them: for a lane, eight neighbouring columns of one
// sequence. Rows 0 to 7 of a product are the rounded values of eight sequences, rows 8 to 15 what rounding left.
struct Activations {
  uint4 even;  // columns 0 to 3 of the lane's eight
  uint4 odd;   // columns 4 to 7
};
__device__ inline Activations load_activations(const unsigned char* x) {
  return {*reinterpret_cast<const uint4*>(x), *reinterpret_cast<const uint4*>(x + 16)};
}

// Sums of a row block for eight sequences. The two products of a column block go to sums of their own, so that they do
// not wait for each other.
struct BlockSums {
  float even[4] = {0, 0, 0, 0};
  float odd[4] = {0, 0, 0, 0};

  __device__ void add(const uint4& w, const Activations& a) {
    ptx::multiply_bf16(even, a.even.x, a.even.y, a.even.z, a.even.w, w.x, w.y);
    ptx::multiply_bf16(odd, a.odd.x, a.odd.y, a.odd.z, a.odd.w, w.z, w.w);
  }
  // Row `row` of two, for the lane's sequence.
  __device__ float get(uint32_t row) const { return (even[row] + odd[row]) + (even[row + 2] + odd[row + 2]); }
};

// Place of (consumer warp, row block, sequence, row) in a partial buffer, in floats.
__device__ inline uint32_t partial_place(uint32_t warp, uint32_t row_block, uint32_t sequence, uint32_t sequences) {
  return ((warp * unit_row_blocks + row_block) * sequences + sequence) * block_rows;
}
static_assert(machine::consumer_warps * unit_row_blocks * machine::maximum_batch * block_rows * 4 <=
              machine::partial_bytes);

// Starts to copy 4 rows of an f32 operand from `row` on, for which `size` elements are there; zeros beyond.
__device__ inline void bring_quarter(float* to, const float* from, uint32_t row, uint32_t size) {
  const uint32_t there = row < size ? min(size - row, 4u) : 0;
  // Where nothing is there the address is not followed, but stays inside the operand.
  const float* source = from + (there != 0 ? row : 0);
  if (reinterpret_cast<uint64_t>(source) % 16 == 0) {
    ptx::async_copy_16(to, source, there * 4);
  } else {
#pragma unroll 1
    for (uint32_t i = 0; i < 4; ++i) ptx::async_copy_4(to + i, source + (i < there ? i : 0), i < there ? 4 : 0);
  }
}

// Starts to bring what the store warp adds to the products of this warp's row block: bias and residual, straight into
// shared memory. Loads into registers made the consumers wait where those were spilled, 0.7 us a tile (PERFORMANCE.md).
// A lane takes half a row block of a sequence.
__device__ inline void bring_addends(const TileSlot& tile, const LinearShape& shape, uint32_t number, uint32_t row_unit,
                                     uint32_t warp) {
  const uint32_t sequence = ptx::lane_number() / 2;
  const uint32_t quarter = ptx::lane_number() % 2 * 4;
  const uint32_t row = (row_unit * unit_row_blocks + warp) * block_rows + quarter;
  if ((shape.adds & adds_residual) != 0 && sequence < shape.batch) {
    const auto* residual = machine::operand<const float>(tile, isa::linear::residual) +
                           sequence * machine::row_stride<float>(tile, isa::linear::residual);
    bring_quarter(&shared().residual[number][warp][sequence][quarter], residual, row,
                  machine::operand_size<float>(tile, isa::linear::residual));
  }
  if ((shape.adds & adds_bias) != 0 && sequence == 0) {
    bring_quarter(&shared().bias[number][warp][quarter], machine::operand<const float>(tile, isa::linear::bias), row,
                  machine::operand_size<float>(tile, isa::linear::bias));
  }
}
static_assert(machine::maximum_batch * 2 <= 32, "a lane for each half of a sequence's row block");

struct ConsumerState {
  uint32_t warp;
  uint32_t sequence = 0;  // of the tile, in this block
  PageRing pages;
  // Of this lane's 16 bytes of the warp's first block in the ring's first page; a pointer would be a generic one,
  // slower to read through (PERFORMANCE.md).
  uint32_t page_memory = 0;
  InputLoads inputs;
  uint32_t partials = 0;  // units handed to the store warp so far
  float squares = 0;      // lane b: this warp's share of sequence b's sum of squares
};

// Waits for the next inputs and takes over their buffer; gives the one before back.
__device__ inline bool take_inputs(ConsumerState& state) {
  // The buffer was written here and is filled by the copy engine next: the activation warp puts a fence between.
  __syncwarp();
  if (state.inputs.loads != 0 && ptx::arrives()) {
    ptx::barrier_arrive(&shared().input_free[state.inputs.buffer()]);
  }
  ++state.inputs.loads;
  return machine::wait_warp(&shared().input_full[state.inputs.buffer()], state.inputs.parity());
}

// Waits until a partial buffer may be written.
__device__ inline bool begin_partial(const ConsumerState& state) {
  const uint32_t buffer = state.partials & 1;
  return machine::wait_warp(&shared().partial_free[buffer], ((state.partials >> 1) & 1) ^ 1);
}
// Hands it to the store warp.
__device__ inline void end_partial(ConsumerState& state) {
  __syncwarp();
  if (ptx::arrives()) ptx::barrier_arrive(&shared().partial_full[state.partials & 1]);
  ++state.partials;
}

// Two pages at a time: their waits and loads overlap, and four products a column block are on their way at once.
constexpr uint32_t pages_at_once = 2;
static_assert(unit_row_blocks % pages_at_once == 0);

// Multiplies one chunk of a unit's columns, the `count` blocks of a page: this warp's blocks of the pages of all row
// blocks. `halves`: of sixteen sequences. The activations of one half stay in registers from page to page; those of two
// would take too many. `full`: the chunk has as many blocks as a page, so that every warp has its own; this is the loop
// that every weight goes through, and asks nothing that it does not need (PERFORMANCE.md).
template <uint32_t halves, bool full>
__device__ __forceinline__ bool consume_chunk(const LinearShape& shape, ConsumerState& state,
                                              const unsigned char* activations, uint32_t count, uint32_t row_blocks,
                                              BlockSums (&sums)[halves][unit_row_blocks]) {
  const uint32_t lane = ptx::lane_number();
  // The warp's blocks. Beyond the chunk's last block there is nothing to multiply: block 0 stands in, with activations
  // of zero.
  const auto there = [&](uint32_t i) { return full || i * machine::consumer_warps + state.warp < count; };
  const auto at = [&](uint32_t i) { return there(i) ? i * machine::consumer_warps + state.warp : 0; };
  // Rows of a product do not mix: lanes without a sequence may compute anything, and take the last one's.
  const unsigned char* x[halves];
#pragma unroll
  for (uint32_t h = 0; h < halves; ++h) {
    x[h] = activations + min(lane / 4 + 8 * h, shape.batch - 1) * shape.row_bytes + lane % 4 * 32;
  }
  const auto activations_of = [&](uint32_t h, uint32_t i) {
    // Another warp may still be at work on the block that stands in.
    if (!there(i)) return Activations{};
    return load_activations(x[h] + at(i) * 128);
  };
  Activations kept[halves == 1 ? warp_blocks : 1];
  if constexpr (halves == 1) {
#pragma unroll
    for (uint32_t i = 0; i < warp_blocks; ++i) kept[i] = activations_of(0, i);
  }
#pragma unroll
  for (uint32_t r = 0; r < unit_row_blocks; r += pages_at_once) {
    if (r >= row_blocks) break;
    const bool both = r + 1 < row_blocks;
    const PageRing first = state.pages;
    state.pages.advance();
    // Without a second page the first one is read twice, for sums that nobody looks at.
    const PageRing second = both ? state.pages : first;
    if (both) state.pages.advance();
    const bool here = ptx::barrier_test(&shared().page_full[first.place], first.phase);
    const bool second_here = ptx::barrier_test(&shared().page_full[second.place], second.phase);
    if (!__all_sync(ptx::full_mask, here && second_here)) {
      if (!machine::keep_waiting(&shared().page_full[first.place], first.phase)) return false;
      if (!machine::keep_waiting(&shared().page_full[second.place], second.phase)) return false;
    }
    uint4 w[pages_at_once][warp_blocks];
    const uint32_t page = state.page_memory + first.place * machine::page_bytes;
    const uint32_t second_page = state.page_memory + second.place * machine::page_bytes;
#pragma unroll
    for (uint32_t i = 0; i < warp_blocks; ++i) {
      if constexpr (!machine::left_out(machine::part_products)) {
        const uint32_t place = (at(i) - state.warp) * block_bytes;
        w[0][i] = ptx::load_shared_16(page + place);
        w[1][i] = ptx::load_shared_16(second_page + place);
      }
    }
    // The weights are in registers: the pages may be filled again while they are multiplied.
    __syncwarp();
    ptx::barrier_arrive_if(&shared().page_free[first.place], ptx::arrives());
    ptx::barrier_arrive_if(&shared().page_free[second.place], ptx::arrives() && both);
#pragma unroll
    for (uint32_t h = 0; h < halves; ++h) {
#pragma unroll
      for (uint32_t i = 0; i < warp_blocks; ++i) {
        Activations a;
        if constexpr (halves == 1) {
          a = kept[i];
        } else {
          a = activations_of(h, i);
        }
#pragma unroll
        for (uint32_t p = 0; p < pages_at_once; ++p) {
          if constexpr (!machine::left_out(machine::part_products)) sums[h][r + p].add(w[p][i], a);
        }
      }
    }
  }
  return true;
}

// Leaves a unit's sums in a partial buffer for the store warp.
template <uint32_t halves>
__device__ void leave_sums(const LinearShape& shape, const ConsumerState& state,
                           const BlockSums (&sums)[halves][unit_row_blocks], uint32_t row_blocks) {
  const uint32_t number = state.partials & 1;
  auto* partial = reinterpret_cast<float*>(shared().partial[number]);
  const uint32_t lane = ptx::lane_number();
  const uint32_t sequence = lane / 4;
  const uint32_t row = lane % 4 * 2;
#pragma unroll
  for (uint32_t h = 0; h < halves; ++h) {
#pragma unroll
    for (uint32_t r = 0; r < unit_row_blocks; ++r) {
      if (r >= row_blocks || sequence + 8 * h >= shape.batch) break;
      *reinterpret_cast<float2*>(partial + partial_place(state.warp, r, sequence + 8 * h, 8 * halves) + row) =
          make_float2(sums[h][r].get(0), sums[h][r].get(1));
    }
  }
  if (lane < machine::maximum_batch) shared().sum_of_squares[number][state.warp][lane] = state.squares;
  ptx::async_copies_wait();
}

template <uint32_t halves, bool traced>
__device__ bool consume_linear(const TileSlot& tile, const LinearShape& shape, ConsumerState& state) {
  BlockSums sums[halves][unit_row_blocks];
  return for_each_unit(shape, [&](uint32_t row_unit, uint32_t column_unit, bool fresh) {
    const uint32_t row_blocks = min(unit_row_blocks, shape.row_blocks - row_unit * unit_row_blocks);
    // Whatever can be done before the inputs have come is: nobody waits for it then.
    if (column_unit == 0) {
      if (!begin_partial(state)) return false;
#pragma unroll
      for (auto& half : sums) {
#pragma unroll
        for (BlockSums& row : half) row = BlockSums{};
      }
    }
    if (fresh) {
      if (!take_inputs(state)) return false;
      if (state.warp == 0 && row_unit + column_unit == 0) machine::trace<traced>(state.sequence, MKRT_TRACE_INPUTS);
    }
    unsigned char* buffer = activations_place(shape, state.inputs);
    if (fresh) {
      const float squares = split_activations(shape, buffer, column_unit, state.warp);
      state.squares = column_unit == 0 ? squares : state.squares + squares;
      if (state.warp == 0) machine::trace<traced>(state.sequence, MKRT_TRACE_PREPARED);
    }
    if (column_unit == 0 && shape.adds != 0 && state.warp < row_blocks) {
      bring_addends(tile, shape, state.partials & 1, row_unit, state.warp);
    }
    const uint32_t unit_blocks = min(shape.column_blocks - column_unit * (shape.columns_per_unit / block_columns),
                                     shape.columns_per_unit / block_columns);
    for (uint32_t at = 0; at < unit_blocks; at += page_blocks) {
      const uint32_t count = min(page_blocks, unit_blocks - at);
      const unsigned char* activations = buffer + at * 128;
      const bool going = count == page_blocks
                             ? consume_chunk<halves, true>(shape, state, activations, count, row_blocks, sums)
                             : consume_chunk<halves, false>(shape, state, activations, count, row_blocks, sums);
      if (!going) return false;
    }
    if (column_unit + 1 != shape.column_units) return true;
    if (state.warp == 0) machine::trace<traced>(state.sequence, MKRT_TRACE_CONSUMED);
    leave_sums<halves>(shape, state, sums, row_blocks);
    end_partial(state);
    return true;
  });
}

}  // namespace mkrt::llm
