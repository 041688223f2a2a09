// Matrix-vector products: linear, linear_swiglu and linear_best of mkrt.llm.
//
// A tile is `tile_rows` rows of packed weights. It is worked on in units of at most 4 row blocks (32 rows) and at most
// `columns_per_unit` columns, as many as fit an activation buffer; the usual tile is one unit. Pages come in the order
// of units, in a unit in order of 1024-column chunks, in a chunk in order of row blocks. All roles derive this order
// from the record alone.
#pragma once

#include <cuda_bf16.h>

#include "machine.cuh"
#include "mkrt_isa/llm.hpp"

namespace mkrt::llm {

namespace isa = mkrt::isa::llm;
using machine::Block;
using machine::Ring;
using machine::Shared;
using machine::TileSlot;

constexpr uint32_t block_rows = 8;
constexpr uint32_t block_columns = 32;
constexpr uint32_t block_bytes = block_rows * block_columns * 2;
constexpr uint32_t page_columns = machine::page_bytes / (block_rows * 2);
constexpr uint32_t unit_row_blocks = 4;
// Where a unit has to be narrower than the matrix, it is a multiple of this: two blocks for each consumer warp.
constexpr uint32_t unit_step = 512;
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

// The shape of a tile and of its units.
struct LinearShape {
  uint32_t columns;
  uint32_t column_blocks;  // of 32, the last one padded
  uint32_t batch;
  uint32_t row_blocks;        // of 8
  uint32_t columns_per_unit;  // a multiple of unit_step, or all
  uint32_t row_bytes;         // of a row in an activation buffer
  uint32_t column_units;
  uint32_t row_units;
  bool norm;
  LinearPlaces places;
};

__device__ inline LinearShape linear_shape(const mkrt_launch& launch, const TileSlot& tile) {
  LinearShape shape;
  shape.places = linear_places(tile.record.opcode);
  shape.columns = tile.record.parameter[isa::linear::columns];
  shape.column_blocks = (shape.columns + block_columns - 1) / block_columns;
  shape.batch = tile.record.parameter[isa::linear::batch];
  shape.row_blocks = tile.record.parameter[isa::linear::tile_rows] / block_rows;
  shape.norm = machine::operand_present(tile, shape.places.norm);
  // One more row for the norm's weights, which are brought in with the activations.
  const uint32_t rows = shape.batch + (shape.norm ? 1 : 0);
  const uint32_t padded = shape.column_blocks * block_columns;
  shape.row_bytes = padded * 4 + row_padding;
  if (rows * shape.row_bytes <= launch.activation_bytes) {
    shape.columns_per_unit = padded;
  } else {
    // The runtime gives every activation buffer room for unit_step columns of the largest batch.
    const uint32_t fitting = (launch.activation_bytes / rows - row_padding) / (unit_step * 4);
    shape.columns_per_unit = fitting * unit_step;
    shape.row_bytes = shape.columns_per_unit * 4 + row_padding;
  }
  shape.column_units = (padded + shape.columns_per_unit - 1) / shape.columns_per_unit;
  shape.row_units = (shape.row_blocks + unit_row_blocks - 1) / unit_row_blocks;
  return shape;
}

// Whether a tile starts with the activations that the tile before it left in the buffer. Every role follows it by
// itself, so that nothing needs to be said between them.
struct InputTracker {
  uint32_t record = 0xffffffffu;
  uint64_t step = 0;
  uint64_t address = 0;
  uint32_t loads = 0;  // so far; load n, counted from 1, uses buffer (n - 1) & 1

  // Called once for each tile.
  __device__ bool same_inputs(const TileSlot& tile, uint32_t x, bool reusable) {
    const uint64_t now = reinterpret_cast<uint64_t>(machine::operand<float>(tile, x));
    const bool same = reusable && record == tile.record.index && step == tile.step && address == now;
    record = reusable ? tile.record.index : 0xffffffffu;
    step = tile.step;
    address = now;
    return same;
  }
  __device__ uint32_t buffer() const { return (loads - 1) & 1; }
  __device__ uint32_t parity() const { return ((loads - 1) >> 1) & 1; }
};

// Visits a tile's units in the order that all roles keep: body(row_unit, column_unit, fresh), fresh where the unit's
// activations are to be brought in. Stops when the body returns false.
template <class Body>
__device__ bool for_each_unit(const LinearShape& shape, bool same_inputs, Body body) {
  for (uint32_t row_unit = 0; row_unit < shape.row_units; ++row_unit) {
    for (uint32_t column_unit = 0; column_unit < shape.column_units; ++column_unit) {
      const bool fresh = shape.column_units > 1 || (row_unit == 0 && !same_inputs);
      if (!body(row_unit, column_unit, fresh)) return false;
    }
  }
  return true;
}

// Visits a unit's pages: body(row block inside the unit, first column block, column blocks).
template <class Body>
__device__ bool for_each_page(const LinearShape& shape, uint32_t row_unit, uint32_t column_unit, Body body) {
  constexpr uint32_t page_blocks = page_columns / block_columns;
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

struct PageRing {
  uint32_t place = 0;
  uint32_t phase = 0;
  __device__ void advance(const mkrt_launch& launch) {
    if (++place == launch.page_count) {
      place = 0;
      phase ^= 1;
    }
  }
};

// Streams a tile's weights into the ring. `ring` is where the next page goes, `arriving` the oldest page on its way.
__device__ inline bool stream_weights(const Block& block, const TileSlot& tile, PageRing& ring, PageRing& arriving,
                                      uint32_t& on_the_way, uint64_t policy) {
  const mkrt_launch& launch = *block.launch;
  Shared& shared = *block.shared;
  const LinearShape shape = linear_shape(launch, tile);
  const auto* weights = machine::operand<const unsigned char>(tile, shape.places.weight);
  return for_each_unit(shape, false, [&](uint32_t row_unit, uint32_t column_unit, bool) {
    return for_each_page(shape, row_unit, column_unit, [&](uint32_t row_block, uint32_t column_block, uint32_t count) {
      // Few pages on their way at a time: deep queues in the memory system delay signals and inputs
      // (0.730 -> 0.696 ms, PERFORMANCE.md).
      if (on_the_way == launch.outstanding_pages) {
        if (!machine::wait_warp(block, &shared.page_full[arriving.place], arriving.phase)) return false;
        arriving.advance(launch);
        --on_the_way;
      }
      if (!machine::wait_warp(block, &shared.page_free[ring.place], ring.phase ^ 1)) return false;
      const unsigned char* source =
          weights +
          (static_cast<uint64_t>(row_unit * unit_row_blocks + row_block) * shape.column_blocks + column_block) *
              block_bytes;
      unsigned char* page = block.pages + static_cast<size_t>(ring.place) * machine::page_bytes;
      const uint32_t bytes = count * block_bytes;
#if MKRT_BULK_COPY
      if (ptx::lane_number() == 0) {
        ptx::barrier_expect(&shared.page_full[ring.place], bytes);
        ptx::bulk_copy(page, source, bytes, &shared.page_full[ring.place], policy);
      }
      __syncwarp();
#else
      for (uint32_t at = ptx::lane_number() * 16; at < bytes; at += 32 * 16) ptx::async_copy_16(page + at, source + at);
      ptx::async_copy_arrive(&shared.page_full[ring.place]);
#endif
      ring.advance(launch);
      ++on_the_way;
      return true;
    });
  });
}

// ---- activation warp ------------------------------------------------------------------------------------------------

// Copies `count` floats to shared memory and counts them on `barrier`, with the copy engine where their alignment
// allows it. Returns the bytes that the copy engine will deliver.
__device__ inline uint32_t bring_row(float* to, const float* from, uint32_t count, uint64_t* barrier, bool bulk) {
#if MKRT_BULK_COPY
  if (bulk) {
    if (ptx::lane_number() == 0) ptx::bulk_copy(to, from, count * 4, barrier);
    return count * 4;
  }
#endif
  for (uint32_t i = ptx::lane_number(); i < count; i += 32) to[i] = from[i];
  return 0;
}

// Brings in a unit's activations and, with a norm, its weights, after the tile's counters were waited for.
__device__ inline void bring_activations(const Block& block, const TileSlot& tile, const LinearShape& shape,
                                         uint32_t column_unit, uint32_t buffer) {
  const uint32_t first = column_unit * shape.columns_per_unit;
  const uint32_t count = min(shape.columns - first, shape.columns_per_unit);
  const auto* x = machine::operand<const float>(tile, shape.places.x) + first;
  const uint64_t stride = machine::row_stride<float>(tile, shape.places.x);
  unsigned char* to = block.activation_buffer(buffer);
  uint64_t* barrier = &block.shared->input_full[buffer];
  const auto* norm = shape.norm ? machine::operand<const float>(tile, shape.places.norm) + first : nullptr;
#if MKRT_BULK_COPY
  // The copy engine wants 16-byte pieces; ragged sizes and odd strides go through registers.
  const bool bulk = count % 4 == 0 && reinterpret_cast<uint64_t>(x) % 16 == 0 &&
                    (shape.batch == 1 || stride % 4 == 0) && reinterpret_cast<uint64_t>(norm) % 16 == 0;
  if (bulk) {
    const uint32_t rows = shape.batch + (shape.norm ? 1 : 0);
    if (ptx::lane_number() == 0) {
      // What the acquire made visible to ordinary loads, and what consumers did to the buffer, is ordered before the
      // copy engine's accesses.
      ptx::fence_copy_engine();
      ptx::barrier_expect(barrier, rows * count * 4);
    }
    __syncwarp();
  }
#else
  constexpr bool bulk = false;
#endif
  for (uint32_t b = 0; b < shape.batch; ++b) {
    bring_row(reinterpret_cast<float*>(to + b * shape.row_bytes), x + b * stride, count, barrier, bulk);
  }
  if (shape.norm) {
    bring_row(reinterpret_cast<float*>(to + shape.batch * shape.row_bytes), norm, count, barrier, bulk);
  }
  if (!bulk) {
    __syncwarp();
    if (MKRT_BULK_COPY == 0 || ptx::lane_number() == 0) ptx::barrier_arrive(barrier);
  }
}

// ---- consumer warps -------------------------------------------------------------------------------------------------

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline float round_to_bf16(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

// Column blocks of a page that each consumer warp works on: warp w on w, w + 8, w + 16, w + 24.
constexpr uint32_t warp_blocks = page_columns / block_columns / machine::consumer_warps;
static_assert(warp_blocks == 4);

// Turns the column blocks that this warp will multiply from f32 into a bf16 pair each, in place: 64 bytes of rounded
// values, then 64 bytes of what rounding left. The pair keeps 16 bits of the mantissa, so that activations lose
// nothing that f32 sums would show. Returns this lane's share of each sequence's sum of squares: lane b's of b.
__device__ inline float split_activations(const LinearShape& shape, unsigned char* buffer, uint32_t column_unit,
                                          uint32_t warp) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t first_column = column_unit * shape.columns_per_unit;
  const uint32_t count = min(shape.columns - first_column, shape.columns_per_unit);
  const uint32_t blocks = (count + block_columns - 1) / block_columns;
  const auto* norm = reinterpret_cast<const float*>(buffer + shape.batch * shape.row_bytes);
  float mine = 0;
  for (uint32_t b = 0; b < shape.batch; ++b) {
    unsigned char* row = buffer + b * shape.row_bytes;
    float sum = 0;
    for (uint32_t page = 0; page * (page_columns / block_columns) < blocks; ++page) {
#pragma unroll
      for (uint32_t i = 0; i < warp_blocks; ++i) {
        const uint32_t c = page * (page_columns / block_columns) + i * machine::consumer_warps + warp;
        if (c >= blocks) break;
        const uint32_t column = c * block_columns + lane;
        float value = column < count ? reinterpret_cast<const float*>(row)[column] : 0.0f;
        sum += value * value;
        if (shape.norm) value *= column < count ? norm[column] : 0.0f;
        const float rounded = round_to_bf16(value);
        __syncwarp();
        auto* pair = reinterpret_cast<__nv_bfloat16*>(row + c * 128);
        pair[lane] = __float2bfloat16_rn(value);
        pair[32 + lane] = __float2bfloat16_rn(value - rounded);
      }
    }
    if (shape.norm) {
      for (uint32_t offset = 16; offset != 0; offset /= 2) sum += __shfl_xor_sync(ptx::full_mask, sum, offset);
      if (lane == b) mine = sum;
    }
  }
  __syncwarp();
  return mine;
}

// Adds this warp's share of one page to a row block's sums. `wide`: more than 8 sequences, whose rounded values and
// rests take two products each; otherwise rows 8 to 15 of the product are the rests, and cost nothing.
template <bool wide>
__device__ void multiply_page(const LinearShape& shape, const unsigned char* page, const unsigned char* buffer,
                              uint32_t first_block, uint32_t count, uint32_t warp, float (&sums)[4]) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t sequence = lane / 4;
  const bool low = sequence < shape.batch;
  const bool high = wide && sequence + 8 < shape.batch;
  const unsigned char* row = buffer + sequence * shape.row_bytes + lane % 4 * 16;
#pragma unroll
  for (uint32_t i = 0; i < warp_blocks; ++i) {
    const uint32_t at = i * machine::consumer_warps + warp;
    if (at >= count) break;
    const uint4 w = *reinterpret_cast<const uint4*>(page + at * block_bytes + lane * 16);
    const unsigned char* x = row + (first_block + at) * 128;
    uint4 rounded{0, 0, 0, 0};
    uint4 rest{0, 0, 0, 0};
    if (low) {
      rounded = *reinterpret_cast<const uint4*>(x);
      rest = *reinterpret_cast<const uint4*>(x + 64);
    }
    if constexpr (wide) {
      uint4 rounded_high{0, 0, 0, 0};
      uint4 rest_high{0, 0, 0, 0};
      if (high) {
        rounded_high = *reinterpret_cast<const uint4*>(x + 8 * shape.row_bytes);
        rest_high = *reinterpret_cast<const uint4*>(x + 8 * shape.row_bytes + 64);
      }
      ptx::multiply_bf16(sums, rounded.x, rounded_high.x, rounded.y, rounded_high.y, w.x, w.y);
      ptx::multiply_bf16(sums, rest.x, rest_high.x, rest.y, rest_high.y, w.x, w.y);
      ptx::multiply_bf16(sums, rounded.z, rounded_high.z, rounded.w, rounded_high.w, w.z, w.w);
      ptx::multiply_bf16(sums, rest.z, rest_high.z, rest.w, rest_high.w, w.z, w.w);
    } else {
      ptx::multiply_bf16(sums, rounded.x, rest.x, rounded.y, rest.y, w.x, w.y);
      ptx::multiply_bf16(sums, rounded.z, rest.z, rounded.w, rest.w, w.z, w.w);
    }
  }
}

// Place of (consumer warp, row block, sequence, row) in a partial buffer, in floats.
__device__ inline uint32_t partial_place(uint32_t warp, uint32_t row_block, uint32_t sequence, uint32_t sequences) {
  return ((warp * unit_row_blocks + row_block) * sequences + sequence) * block_rows;
}
static_assert(machine::consumer_warps * unit_row_blocks * machine::maximum_batch * block_rows * 4 <=
              machine::partial_bytes);

// What the store warp adds to the product: bias and residual of one row block, loaded while the product is computed.
struct Addend {
  float value[2][2] = {{0, 0}, {0, 0}};  // [sequence g or g + 8][row 2q or 2q + 1]
};
__device__ inline Addend load_addend(const TileSlot& tile, const LinearShape& shape, uint32_t row_block) {
  Addend addend;
  if (tile.record.opcode != isa::opcode_linear) return addend;
  const uint32_t lane = ptx::lane_number();
  const bool biased = machine::operand_present(tile, isa::linear::bias);
  const bool residual = machine::operand_present(tile, isa::linear::residual);
  const uint32_t rows = machine::operand_size<float>(tile, isa::linear::out);
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t sequence = lane / 4 + 8 * h;
      const uint32_t row = row_block * block_rows + lane % 4 * 2 + r;
      if (sequence >= shape.batch || row >= rows) continue;
      if (biased) addend.value[h][r] += machine::operand<const float>(tile, isa::linear::bias)[row];
      if (residual) {
        addend.value[h][r] += machine::operand<const float>(
            tile, isa::linear::residual)[sequence * machine::row_stride<float>(tile, isa::linear::residual) + row];
      }
    }
  }
  return addend;
}

struct ConsumerState {
  uint32_t warp;
  PageRing pages;
  InputTracker inputs;
  uint32_t partials = 0;  // units handed to the store warps so far
  float squares = 0;      // lane b: this warp's share of sequence b's sum of squares
  uint32_t synchronizations = 0;
};

// Waits for the next inputs and takes over their buffer; gives the one before back.
__device__ inline bool take_inputs(const Block& block, ConsumerState& state) {
  Shared& shared = *block.shared;
  // The buffer was written here and is filled by the copy engine next.
  ptx::fence_copy_engine();
  __syncwarp();
  if (state.inputs.loads != 0 && ptx::lane_number() == 0) {
    ptx::barrier_arrive(&shared.input_free[state.inputs.buffer()]);
  }
  ++state.inputs.loads;
  return machine::wait_warp(block, &shared.input_full[state.inputs.buffer()], state.inputs.parity());
}

// Waits until a partial buffer may be written.
__device__ inline bool begin_partial(const Block& block, const ConsumerState& state) {
  const uint32_t buffer = state.partials & 1;
  return machine::wait_warp(block, &block.shared->partial_free[buffer], ((state.partials >> 1) & 1) ^ 1);
}
// Hands it to the store warps.
__device__ inline void end_partial(const Block& block, ConsumerState& state) {
  __syncwarp();
  if (ptx::lane_number() == 0) ptx::barrier_arrive(&block.shared->partial_full[state.partials & 1]);
  ++state.partials;
}

template <bool wide>
__device__ bool consume_linear(const Block& block, const TileSlot& tile, const LinearShape& shape,
                               ConsumerState& state) {
  const mkrt_launch& launch = *block.launch;
  Shared& shared = *block.shared;
  const uint32_t lane = ptx::lane_number();
  float sums[unit_row_blocks][4];
  Addend addend;
  const bool same = state.inputs.same_inputs(tile, shape.places.x, shape.column_units == 1);
  return for_each_unit(shape, same, [&](uint32_t row_unit, uint32_t column_unit, bool fresh) {
    if (fresh) {
      if (!take_inputs(block, state)) return false;
      const float squares =
          split_activations(shape, block.activation_buffer(state.inputs.buffer()), column_unit, state.warp);
      state.squares = column_unit == 0 ? squares : state.squares + squares;
    }
    const uint32_t row_blocks = min(unit_row_blocks, shape.row_blocks - row_unit * unit_row_blocks);
    if (column_unit == 0) {
#pragma unroll
      for (auto& row : sums) row[0] = row[1] = row[2] = row[3] = 0;
      if (state.warp < row_blocks) addend = load_addend(tile, shape, row_unit * unit_row_blocks + state.warp);
    }
    const unsigned char* buffer = block.activation_buffer(state.inputs.buffer());
    const uint32_t unit_first = column_unit * (shape.columns_per_unit / block_columns);
    const bool going =
        for_each_page(shape, row_unit, column_unit, [&](uint32_t row_block, uint32_t column_block, uint32_t count) {
          if (!machine::wait_warp(block, &shared.page_full[state.pages.place], state.pages.phase)) return false;
          const unsigned char* page = block.pages + static_cast<size_t>(state.pages.place) * machine::page_bytes;
      // The array stays in registers only with constant indices.
#pragma unroll
          for (uint32_t r = 0; r < unit_row_blocks; ++r) {
            if (r == row_block) {
              multiply_page<wide>(shape, page, buffer, column_block - unit_first, count, state.warp, sums[r]);
            }
          }
          __syncwarp();
          if (lane == 0) ptx::barrier_arrive(&shared.page_free[state.pages.place]);
          state.pages.advance(launch);
          return true;
        });
    if (!going) return false;
    if (column_unit + 1 != shape.column_units) return true;

    if (!begin_partial(block, state)) return false;
    const uint32_t number = state.partials & 1;
    auto* partial = reinterpret_cast<float*>(shared.partial[number]);
    const uint32_t sequence = lane / 4;
    const uint32_t row = lane % 4 * 2;
#pragma unroll
    for (uint32_t r = 0; r < unit_row_blocks; ++r) {
      if (r >= row_blocks) break;
      if constexpr (wide) {
        float* to = partial + partial_place(state.warp, r, sequence, 16) + row;
        *reinterpret_cast<float2*>(to) = make_float2(sums[r][0], sums[r][1]);
        *reinterpret_cast<float2*>(to + 8 * block_rows) = make_float2(sums[r][2], sums[r][3]);
      } else if (sequence < shape.batch) {
        *reinterpret_cast<float2*>(partial + partial_place(state.warp, r, sequence, 8) + row) =
            make_float2(sums[r][0] + sums[r][2], sums[r][1] + sums[r][3]);
      }
    }
    if (state.warp < row_blocks) {
      float(*to)[block_rows] = shared.addend[number][state.warp];
      *reinterpret_cast<float2*>(&to[sequence][row]) = make_float2(addend.value[0][0], addend.value[0][1]);
      *reinterpret_cast<float2*>(&to[sequence + 8][row]) = make_float2(addend.value[1][0], addend.value[1][1]);
    }
    if (lane < machine::maximum_batch) shared.sum_of_squares[number][state.warp][lane] = state.squares;
    end_partial(block, state);
    return true;
  });
}

// ---- store warps ----------------------------------------------------------------------------------------------------

// Element (sequence, row) of a unit's product, scaled by the norm.
struct UnitProduct {
  const float* partial;
  const float (*addend)[machine::maximum_batch][block_rows];
  uint32_t sequences;  // of the partial buffer: 8 or 16
  float scale;         // lane b: sequence b's

  __device__ float sum(uint32_t row, uint32_t sequence) const {
    float total = 0;
#pragma unroll
    for (uint32_t w = 0; w < machine::consumer_warps; ++w) {
      total += partial[partial_place(w, row / block_rows, sequence, sequences) + row % block_rows];
    }
    return total;
  }
};

// 1 / sqrt(mean of squares + epsilon), lane b for sequence b; 1 without a norm.
__device__ inline float norm_scale(const Shared& shared, uint32_t number, const TileSlot& tile,
                                   const LinearShape& shape) {
  const uint32_t lane = ptx::lane_number();
  if (!shape.norm || lane >= machine::maximum_batch) return 1.0f;
  float squares = 0;
#pragma unroll
  for (uint32_t w = 0; w < machine::consumer_warps; ++w) squares += shared.sum_of_squares[number][w][lane];
  const float epsilon = __uint_as_float(tile.record.parameter[isa::linear::epsilon]);
  return 1.0f / sqrtf(squares / static_cast<float>(shape.columns) + epsilon);
}

template <class Value>
__device__ void store_to_ranks(const mkrt_launch& launch, const TileSlot& tile, uint32_t place, Value* address,
                               Value value) {
  machine::for_each_rank(launch, tile, tile.record.operand[place].rank, [&](int64_t delta) {
    *reinterpret_cast<Value*>(reinterpret_cast<uint64_t>(address) + delta) = value;
  });
}

// Rows of a unit for every sequence: lanes take neighbouring rows, so that a warp writes whole sectors.
__device__ inline void store_linear(const Block& block, const TileSlot& tile, const LinearShape& shape,
                                    const UnitProduct& product, uint32_t first_row, uint32_t unit_rows) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t rows = machine::operand_size<float>(tile, isa::linear::out);
  auto* out = machine::operand<float>(tile, isa::linear::out);
  const uint64_t stride = machine::row_stride<float>(tile, isa::linear::out);
  for (uint32_t base = 0; base < shape.batch * unit_rows; base += 32) {
    const uint32_t i = base + lane;
    const uint32_t sequence = i / unit_rows;
    const uint32_t row = i % unit_rows;
    const float scale = __shfl_sync(ptx::full_mask, product.scale, sequence & 15);
    if (sequence >= shape.batch || first_row + row >= rows) continue;
    const float value =
        product.sum(row, sequence) * scale + product.addend[row / block_rows][sequence][row % block_rows];
    store_to_ranks(*block.launch, tile, isa::linear::out, out + sequence * stride + first_row + row, value);
  }
}

__device__ inline void store_swiglu(const Block& block, const TileSlot& tile, const LinearShape& shape,
                                    const UnitProduct& product, uint32_t first_row, uint32_t unit_rows) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t outputs = unit_rows / 2;
  const uint32_t size = machine::operand_size<float>(tile, isa::linear_swiglu::out);
  auto* out = machine::operand<float>(tile, isa::linear_swiglu::out);
  const uint64_t stride = machine::row_stride<float>(tile, isa::linear_swiglu::out);
  for (uint32_t base = 0; base < shape.batch * outputs; base += 32) {
    const uint32_t i = base + lane;
    const uint32_t sequence = i / outputs;
    const uint32_t output = i % outputs;
    const float scale = __shfl_sync(ptx::full_mask, product.scale, sequence & 15);
    if (sequence >= shape.batch || first_row / 2 + output >= size) continue;
    const uint32_t gate_row = output / block_rows * 2 * block_rows + output % block_rows;
    const float gate = product.sum(gate_row, sequence) * scale;
    const float up = product.sum(gate_row + block_rows, sequence) * scale;
    store_to_ranks(*block.launch, tile, isa::linear_swiglu::out, out + sequence * stride + first_row / 2 + output,
                   gate / (1.0f + expf(-gate)) * up);
  }
}

// The larger of two candidates: NaN never wins, the smaller index where values are equal.
__device__ inline void take_better(float& value, int32_t& index, float other, int32_t other_index) {
  if (other > value || (other == value && other_index < index)) {
    value = other;
    index = other_index;
  }
}

// Logits of a unit, and the best of the tile so far in lane b's `best` for sequence b.
struct Best {
  float value = -INFINITY;
  int32_t index = INT32_MAX;
};
__device__ inline void store_best(const Block& block, const TileSlot& tile, const LinearShape& shape,
                                  const UnitProduct& product, uint32_t first_row, uint32_t unit_rows, Best& best) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t rows = machine::operand_size<float>(tile, isa::linear_best::out);
  auto* out = machine::operand<float>(tile, isa::linear_best::out);
  const uint64_t stride = machine::row_stride<float>(tile, isa::linear_best::out);
  const uint64_t tile_first = machine::operand_start(tile, isa::linear_best::out) / 4;
  const int32_t index_base =
      static_cast<int32_t>(tile.record.parameter[isa::linear_best::first_index] + tile_first + first_row);
  for (uint32_t sequence = 0; sequence < shape.batch; ++sequence) {
    const float scale = __shfl_sync(ptx::full_mask, product.scale, sequence);
    Best mine;
    if (lane < unit_rows && first_row + lane < rows) {
      const float value = product.sum(lane, sequence) * scale;
      store_to_ranks(*block.launch, tile, isa::linear_best::out, out + sequence * stride + first_row + lane, value);
      take_better(mine.value, mine.index, value, index_base + static_cast<int32_t>(lane));
    }
    for (uint32_t offset = 16; offset != 0; offset /= 2) {
      const float value = __shfl_xor_sync(ptx::full_mask, mine.value, offset);
      const int32_t index = __shfl_xor_sync(ptx::full_mask, mine.index, offset);
      take_better(mine.value, mine.index, value, index);
    }
    if (lane == sequence) take_better(best.value, best.index, mine.value, mine.index);
  }
  if (first_row + unit_rows < shape.row_blocks * block_rows || lane >= shape.batch) return;
  // All of a tile's values may be NaN or minus infinity: its first row stands for it then.
  if (best.index == INT32_MAX) {
    best.index = static_cast<int32_t>(tile.record.parameter[isa::linear_best::first_index] + tile_first);
  }
  const uint64_t value_stride = machine::row_stride<float>(tile, isa::linear_best::best_value);
  const uint64_t index_stride = machine::row_stride<int32_t>(tile, isa::linear_best::best_index);
  store_to_ranks(*block.launch, tile, isa::linear_best::best_value,
                 machine::operand<float>(tile, isa::linear_best::best_value) + lane * value_stride, best.value);
  store_to_ranks(*block.launch, tile, isa::linear_best::best_index,
                 machine::operand<int32_t>(tile, isa::linear_best::best_index) + lane * index_stride, best.index);
}
static_assert(unit_row_blocks * block_rows == 32, "store_best gives each lane one row of a unit");

}  // namespace mkrt::llm
