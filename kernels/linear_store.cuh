// What the store warp does with the sums of a product's tile: scales them by the norm, adds bias and residual or
// applies SwiGLU or looks for the best, and stores them.
//
// Every record waits for the last of these stores, so all that does not need the sums is worked out before they come
// (StorePlan), and a lane has one result of a sequence, without divisions (PERFORMANCE.md).
#pragma once

#include "linear.cuh"

namespace mkrt::llm {

// The larger of two candidates: NaN never wins, the smaller index where values are equal.
__device__ inline void take_better(float& value, int32_t& index, float other, int32_t other_index) {
  if (other > value || (other == value && other_index < index)) {
    value = other;
    index = other_index;
  }
}

// The best of a tile so far, lane b's for sequence b.
struct Best {
  float value = -INFINITY;
  int32_t index = INT32_MAX;
};

// What a lane stores of a unit: result `row` of the sequences `sequence`, `sequence` + `at_once`, ...
struct StorePlan {
  float* out;             // the tile's first result
  uint32_t operand;       // its number
  uint32_t stride;        // floats from one sequence to the next
  uint32_t size;          // results of the tile, cut at the operand's limit
  uint32_t unit_results;  // of a whole unit
  uint32_t row;
  uint32_t sequence;
  uint32_t at_once;
  bool own_rank;  // stored here and nowhere else
};

__device__ inline StorePlan plan_store(const TileSlot& tile, const LinearShape& shape) {
  StorePlan plan;
  const uint32_t opcode = tile.record.opcode;
  plan.operand = opcode == isa::opcode_linear          ? isa::linear::out
                 : opcode == isa::opcode_linear_swiglu ? isa::linear_swiglu::out
                                                       : isa::linear_best::out;
  plan.out = machine::operand<float>(tile, plan.operand);
  plan.stride = static_cast<uint32_t>(machine::row_stride<float>(tile, plan.operand));
  plan.size = machine::operand_size<float>(tile, plan.operand);
  plan.own_rank = tile.record.operand[plan.operand].rank.mode == MKRT_RANK_SELF;
  plan.unit_results = min(unit_row_blocks, shape.row_blocks) * block_rows;
  if (opcode == isa::opcode_linear_swiglu) plan.unit_results /= 2;
  // A power of two of lanes for a sequence's results, so that the warp's lanes are divided by a shift.
  const uint32_t shift = 32 - __clz(plan.unit_results - 1);
  const uint32_t lane = ptx::lane_number();
  plan.row = lane & ((1u << shift) - 1);
  plan.sequence = lane >> shift;
  plan.at_once = 32u >> shift;
  return plan;
}
static_assert(unit_row_blocks * block_rows <= 32, "a lane for each row of a unit");

// The sums that a unit's consumers left.
template <uint32_t sequences>
struct UnitSums {
  uint32_t number;  // of the partial buffer

  __device__ float row(uint32_t row, uint32_t sequence) const {
    const auto* first = reinterpret_cast<const float*>(shared().partial[number]) +
                        partial_place(0, row / block_rows, sequence, sequences) + row % block_rows;
    float part[machine::consumer_warps];
#pragma unroll
    for (uint32_t w = 0; w < machine::consumer_warps; ++w) part[w] = first[partial_place(w, 0, 0, sequences)];
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  }
  // 1 / sqrt(mean of squares + epsilon); 1 without a norm.
  __device__ float scale(const LinearShape& shape, uint32_t sequence) const {
    if (shape.norm == 0) return 1.0f;
    float part[machine::consumer_warps];
#pragma unroll
    for (uint32_t w = 0; w < machine::consumer_warps; ++w) part[w] = shared().sum_of_squares[number][w][sequence];
    const float squares = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    return rsqrtf(squares * shape.inverse_columns + shape.epsilon);
  }
};
static_assert(machine::consumer_warps == 8, "sums are written out for eight");

__device__ inline void store_result(uint32_t place, const StorePlan& plan, float* to, float value) {
  if (plan.own_rank) {
    *to = value;
  } else {
    machine::store_at_ranks(place, plan.operand, reinterpret_cast<uint64_t>(to), __float_as_uint(value));
  }
}

// Calls finish(row of the unit, sequence) for each of the lane's results and stores what it returns.
template <class Finish>
__device__ inline void store_results(uint32_t place, const StorePlan& plan, const LinearShape& shape, uint32_t first,
                                     Finish finish) {
#pragma unroll 1
  for (uint32_t sequence = plan.sequence; sequence < shape.batch; sequence += plan.at_once) {
    if (plan.row >= plan.unit_results || first + plan.row >= plan.size) continue;
    store_result(place, plan, plan.out + sequence * plan.stride + first + plan.row, finish(plan.row, sequence));
  }
}

template <uint32_t sequences>
__device__ inline void store_linear(uint32_t place, const StorePlan& plan, const LinearShape& shape,
                                    UnitSums<sequences> sums, uint32_t first) {
  store_results(place, plan, shape, first, [&](uint32_t row, uint32_t sequence) {
    const uint32_t block = row / block_rows;
    float value = sums.row(row, sequence) * sums.scale(shape, sequence);
    if ((shape.adds & adds_bias) != 0) value += shared().bias[sums.number][block][row % block_rows];
    if ((shape.adds & adds_residual) != 0) value += shared().residual[sums.number][block][sequence][row % block_rows];
    return value;
  });
}

template <uint32_t sequences>
__device__ inline void store_swiglu(uint32_t place, const StorePlan& plan, const LinearShape& shape,
                                    UnitSums<sequences> sums, uint32_t first) {
  store_results(place, plan, shape, first, [&](uint32_t row, uint32_t sequence) {
    // Row blocks of gate and up take turns.
    const uint32_t gate_row = row / block_rows * 2 * block_rows + row % block_rows;
    const float scale = sums.scale(shape, sequence);
    const float gate = sums.row(gate_row, sequence) * scale;
    const float up = sums.row(gate_row + block_rows, sequence) * scale;
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
  });
}

// Index of the tile's first row among those of all ranks.
__device__ inline int32_t first_index(const TileSlot& tile) {
  const auto before = static_cast<uint32_t>(
      (tile.address[isa::linear_best::out] - tile.record.operand[isa::linear_best::out].address) / 4);
  return static_cast<int32_t>(tile.record.parameter[isa::linear_best::first_index] +
                              tile.record.parameter[isa::linear_best::rank_index] * launch().rank + before);
}

template <uint32_t sequences>
__device__ inline void store_best(uint32_t place, const StorePlan& plan, const LinearShape& shape,
                                  UnitSums<sequences> sums, uint32_t first, Best& best) {
  const uint32_t lane = ptx::lane_number();
  const int32_t index_base = first_index(machine::slot(place)) + static_cast<int32_t>(first);
#pragma unroll 1
  for (uint32_t sequence = 0; sequence < shape.batch; ++sequence) {
    Best mine;
    if (lane < plan.unit_results && first + lane < plan.size) {
      const float value = sums.row(lane, sequence) * sums.scale(shape, sequence);
      store_result(place, plan, plan.out + sequence * plan.stride + first + lane, value);
      take_better(mine.value, mine.index, value, index_base + static_cast<int32_t>(lane));
    }
#pragma unroll 1
    for (uint32_t offset = 16; offset != 0; offset /= 2) {
      const float value = __shfl_xor_sync(ptx::full_mask, mine.value, offset);
      const int32_t index = __shfl_xor_sync(ptx::full_mask, mine.index, offset);
      take_better(mine.value, mine.index, value, index);
    }
    if (lane == sequence) take_better(best.value, best.index, mine.value, mine.index);
  }
}

// The best of a whole tile.
__device__ inline void store_tile_best(uint32_t place, const LinearShape& shape, Best best) {
  const TileSlot& tile = machine::slot(place);
  const uint32_t lane = ptx::lane_number();
  if (lane >= shape.batch) return;
  // All of a tile's values may be NaN or minus infinity: its first row stands for it then.
  if (best.index == INT32_MAX) best.index = first_index(tile);
  const uint64_t value_stride = machine::row_stride<float>(tile, isa::linear_best::best_value);
  const uint64_t index_stride = machine::row_stride<int32_t>(tile, isa::linear_best::best_index);
  machine::store(place, isa::linear_best::best_value,
                 machine::operand<float>(tile, isa::linear_best::best_value) + lane * value_stride, best.value);
  machine::store(place, isa::linear_best::best_index,
                 machine::operand<int32_t>(tile, isa::linear_best::best_index) + lane * index_stride, best.index);
}

// Stores unit `unit` of a tile, whose sums lie in partial buffer `number`.
template <uint32_t sequences>
__device__ inline void store_unit(uint32_t place, const StorePlan& plan, const LinearShape& shape, uint32_t number,
                                  uint32_t unit, Best& best) {
  const UnitSums<sequences> sums{number};
  const uint32_t first = unit * plan.unit_results;
  if (machine::slot(place).record.opcode == isa::opcode_linear) {
    store_linear(place, plan, shape, sums, first);
  } else if (machine::slot(place).record.opcode == isa::opcode_linear_swiglu) {
    store_swiglu(place, plan, shape, sums, first);
  } else {
    store_best(place, plan, shape, sums, first, best);
    if (unit + 1 == shape.row_units) store_tile_best(place, shape, best);
  }
}

}  // namespace mkrt::llm
