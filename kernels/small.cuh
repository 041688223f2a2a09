// The short instructions: embed, rotation, choose and sum_partials. The eight consumer warps work on
// a tile together, read its inputs from global memory and write its results there; the store warp signals.
#pragma once

#include "attention.cuh"
#include "linear_store.cuh"

namespace mkrt::llm {

__device__ __forceinline__ uint32_t embed(uint32_t place) {
  const TileSlot& tile = machine::slot(place);
  const int32_t position = *input<int32_t>(tile, isa::embed::position);
  if (position < 0 || static_cast<uint32_t>(position) >= machine::operand_size<int32_t>(tile, isa::embed::tokens)) {
    return isa::embed::fault_position_outside_token_list;
  }
  const int32_t token = input<int32_t>(tile, isa::embed::tokens)[position];
  if (token < 0 || static_cast<uint32_t>(token) >= tile.record.parameter[isa::embed::vocabulary]) {
    return isa::embed::fault_token_outside_vocabulary;
  }
  const uint32_t columns = tile.record.parameter[isa::embed::columns];
  const uint64_t column_blocks = (columns + block_columns - 1) / block_columns;
  const auto* row = input<__nv_bfloat16>(tile, isa::embed::table) +
                    token / block_rows * column_blocks * (block_bytes / 2) + token % block_rows * block_columns;
  auto* out = machine::operand<float>(tile, isa::embed::out);
  const uint32_t size = machine::operand_size<float>(tile, isa::embed::out);
  for (uint32_t k = consumer_thread(); k < size; k += consumer_threads) {
    const float value = __bfloat162float(row[k / block_columns * (block_bytes / 2) + k % block_columns]);
    machine::store(place, isa::embed::out, out + k, value);
  }
  return 0;
}

__device__ __forceinline__ uint32_t rotation(uint32_t place) {
  const TileSlot& tile = machine::slot(place);
  const auto position = static_cast<float>(*input<int32_t>(tile, isa::rotation::position));
  const auto* frequencies = input<float>(tile, isa::rotation::frequencies);
  auto* out = machine::operand<float>(tile, isa::rotation::out);
  const uint32_t pairs = machine::operand_size<float>(tile, isa::rotation::out) / 2;
  for (uint32_t i = consumer_thread(); i < pairs; i += consumer_threads) {
    // The angle is rounded to f32, as in the reference implementations that models were trained with.
    float sine;
    float cosine;
    sincosf(position * frequencies[i], &sine, &cosine);
    machine::store(place, isa::rotation::out, out + 2 * i, cosine);
    machine::store(place, isa::rotation::out, out + 2 * i + 1, sine);
  }
  return 0;
}

__device__ __forceinline__ uint32_t choose(uint32_t place, uint32_t partial_number) {
  const TileSlot& tile = machine::slot(place);
  const uint32_t warp = consumer_warp();
  const uint32_t candidates = machine::operand_size<float>(tile, isa::choose::best_value);
  const auto* values = input<float>(tile, isa::choose::best_value);
  const auto* indices = input<int32_t>(tile, isa::choose::best_index);
  Best best;
  for (uint32_t i = consumer_thread(); i < candidates; i += consumer_threads) {
    take_better(best.value, best.index, values[i], indices[i]);
  }
  for (uint32_t offset = 16; offset != 0; offset /= 2) {
    const float value = __shfl_xor_sync(ptx::full_mask, best.value, offset);
    const int32_t index = __shfl_xor_sync(ptx::full_mask, best.index, offset);
    take_better(best.value, best.index, value, index);
  }
  auto* parts = reinterpret_cast<Best*>(shared().partial[partial_number]);
  if (ptx::lane_number() == 0) parts[warp] = best;
  if (!synchronize_consumers()) return leaving;
  if (warp != 0) return done;

  auto* position = machine::operand<int32_t>(tile, isa::choose::position);
  auto* active = machine::operand<int32_t>(tile, isa::choose::active);
  const int32_t length = static_cast<int32_t>(machine::operand_size<int32_t>(tile, isa::choose::tokens));
  const int32_t now = *position;
  const bool idle = *active == 0;
  // Every lane has read them before one writes.
  __syncwarp();
  if (idle) return done;
  if (now < 0 || now >= length) return isa::choose::fault_position_outside_token_list;
  if (ptx::lane_number() != 0) return done;
  for (uint32_t w = 1; w < machine::consumer_warps; ++w)
    take_better(best.value, best.index, parts[w].value, parts[w].index);
  if (best.index == INT32_MAX) best.index = indices[0];
  const int32_t next = now + 1;
  if (next == length) {
    *active = 0;
    return done;
  }
  auto* tokens = machine::operand<int32_t>(tile, isa::choose::tokens);
  if (next >= *input<int32_t>(tile, isa::choose::prompt_length)) {
    tokens[next] = best.index;
    const int32_t stops = min(*input<int32_t>(tile, isa::choose::stop_count),
                              static_cast<int32_t>(machine::operand_size<int32_t>(tile, isa::choose::stop_tokens)));
    for (int32_t i = 0; i < stops; ++i) {
      if (input<int32_t>(tile, isa::choose::stop_tokens)[i] == best.index) *active = 0;
    }
  }
  *position = next;
  return done;
}

__device__ __forceinline__ uint32_t sum_partials(uint32_t place) {
  const TileSlot& tile = machine::slot(place);
  const uint32_t parts = tile.record.parameter[isa::sum_partials::parts];
  const uint32_t batch = tile.record.parameter[isa::sum_partials::batch];
  // A limit may cut each of them; what is cut off counts as zeros.
  const uint32_t size = machine::operand_size<float>(tile, isa::sum_partials::out);
  const uint32_t partial_size = machine::operand_size<float>(tile, isa::sum_partials::partial);
  const uint32_t residual_size = machine::operand_size<float>(tile, isa::sum_partials::residual);
  const auto* partial = input<float>(tile, isa::sum_partials::partial);
  const auto* residual = input<float>(tile, isa::sum_partials::residual);
  auto* out = machine::operand<float>(tile, isa::sum_partials::out);
  const uint64_t part_stride = machine::row_stride<float>(tile, isa::sum_partials::partial);
  const uint64_t residual_stride = machine::row_stride<float>(tile, isa::sum_partials::residual);
  const uint64_t out_stride = machine::row_stride<float>(tile, isa::sum_partials::out);
  for (uint32_t i = consumer_thread(); i < batch * size; i += consumer_threads) {
    const uint32_t sequence = i / size;
    const uint32_t column = i % size;
    float sum = residual != nullptr && column < residual_size ? residual[sequence * residual_stride + column] : 0.0f;
    for (uint32_t first = 0; first < parts; first += parts_at_once) {
      float value[parts_at_once];
#pragma unroll
      for (uint32_t p = 0; p < parts_at_once; ++p) {
        const bool there = first + p < parts && column < partial_size;
        value[p] = there ? partial[((first + p) * batch + sequence) * part_stride + column] : 0.0f;
      }
      // In the order of the parts, one rounding each: every rank gets the same bits.
#pragma unroll
      for (uint32_t p = 0; p < parts_at_once; ++p) {
        if (first + p < parts) sum += value[p];
      }
    }
    machine::store(place, isa::sum_partials::out, out + sequence * out_stride + column, sum);
  }
  return done;
}

}  // namespace mkrt::llm
