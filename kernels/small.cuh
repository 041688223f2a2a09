// The instructions without weights: embed, rotation, attention, attention_combine and choose. The eight consumer warps
// work on a tile together, read its inputs from global memory and write its results there; the store warp signals.
#pragma once

#include <cuda_fp16.h>

#include "linear.cuh"

namespace mkrt::llm {

constexpr uint32_t consumer_threads = machine::consumer_warps * 32;

// All consumer warps have come here, and see each other's shared memory. False when the block is leaving.
__device__ inline bool synchronize_consumers(const Block& block, ConsumerState& state) {
  __syncwarp();
  if (ptx::lane_number() == 0) ptx::barrier_arrive(&block.shared->consumer_barrier);
  return machine::wait_warp(block, &block.shared->consumer_barrier, state.synchronizations++ & 1);
}

__device__ inline uint32_t consumer_thread() { return threadIdx.x; }
static_assert(machine::fetch_warp == machine::consumer_warps, "consumers are the first warps of a block");

// The run-time data is outside what the instruction can work on; `number` counts the ISA's faults from 1.
__device__ inline void report_fault(const Block& block, const TileSlot& tile, uint32_t number) {
  if (consumer_thread() != 0) return;
  mkrt_report report{};
  report.status = MKRT_ERROR_FAULT;
  report.record = tile.record.index;
  report.tile = machine::tile_in_record(tile);
  report.step = tile.step;
  report.fault = number;
  machine::give_up(block, report);
}

template <class Element>
__device__ const Element* input(const TileSlot& tile, uint32_t number) {
  return machine::operand<const Element>(tile, number);
}

// Each returns the number of a fault, or 0.
__device__ inline uint32_t embed(const Block& block, const TileSlot& tile) {
  const int32_t position = *input<int32_t>(tile, isa::embed::position);
  if (position < 0 || static_cast<uint32_t>(position) >= machine::operand_size<int32_t>(tile, isa::embed::tokens)) {
    return 1;
  }
  const int32_t token = input<int32_t>(tile, isa::embed::tokens)[position];
  if (token < 0 || static_cast<uint32_t>(token) >= tile.record.parameter[isa::embed::vocabulary]) return 2;
  const uint32_t columns = tile.record.parameter[isa::embed::columns];
  const uint64_t column_blocks = (columns + block_columns - 1) / block_columns;
  const auto* row = input<__nv_bfloat16>(tile, isa::embed::table) +
                    token / block_rows * column_blocks * (block_bytes / 2) + token % block_rows * block_columns;
  auto* out = machine::operand<float>(tile, isa::embed::out);
  const uint32_t size = machine::operand_size<float>(tile, isa::embed::out);
  for (uint32_t k = consumer_thread(); k < size; k += consumer_threads) {
    const float value = __bfloat162float(row[k / block_columns * (block_bytes / 2) + k % block_columns]);
    store_to_ranks(*block.launch, tile, isa::embed::out, out + k, value);
  }
  return 0;
}

__device__ inline uint32_t rotation(const Block& block, const TileSlot& tile) {
  const auto position = static_cast<float>(*input<int32_t>(tile, isa::rotation::position));
  const auto* frequencies = input<float>(tile, isa::rotation::frequencies);
  auto* out = machine::operand<float>(tile, isa::rotation::out);
  const uint32_t pairs = machine::operand_size<float>(tile, isa::rotation::out) / 2;
  for (uint32_t i = consumer_thread(); i < pairs; i += consumer_threads) {
    // The angle is rounded to f32, as in the reference implementations that models were trained with.
    float sine;
    float cosine;
    sincosf(position * frequencies[i], &sine, &cosine);
    store_to_ranks(*block.launch, tile, isa::rotation::out, out + 2 * i, cosine);
    store_to_ranks(*block.launch, tile, isa::rotation::out, out + 2 * i + 1, sine);
  }
  return 0;
}

// One warp: dst = rotary(norm(src)) * factor.
__device__ inline void prepare_head(float* to, const float* from, const float* norm, const float* angles,
                                    uint32_t head_size, float epsilon, float factor) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t half = head_size / 2;
  float scale = 1.0f;
  if (norm != nullptr) {
    float squares = 0;
    for (uint32_t i = lane; i < head_size; i += 32) squares += from[i] * from[i];
    for (uint32_t offset = 16; offset != 0; offset /= 2) squares += __shfl_xor_sync(ptx::full_mask, squares, offset);
    scale = 1.0f / sqrtf(squares / static_cast<float>(head_size) + epsilon);
  }
  for (uint32_t i = lane; i < half; i += 32) {
    const float low = from[i] * scale * (norm != nullptr ? norm[i] : 1.0f);
    const float high = from[i + half] * scale * (norm != nullptr ? norm[i + half] : 1.0f);
    const float cosine = angles[2 * i];
    const float sine = angles[2 * i + 1];
    to[i] = (low * cosine - high * sine) * factor;
    to[i + half] = (high * cosine + low * sine) * factor;
  }
}

constexpr float largest_half = 65504.0f;
__device__ inline __half saturate_to_half(float value) {
  return __float2half_rn(fminf(fmaxf(value, -largest_half), largest_half));
}

// Query heads that one pass over the cache serves: their sums stay in registers.
constexpr uint32_t heads_per_pass = 4;
// Neighbouring elements of a row that a lane works on.
constexpr uint32_t lane_elements = 8;

__device__ inline void load_halves(const __half* row, uint32_t first, uint32_t head_size, bool aligned,
                                   float (&values)[lane_elements]) {
  if (aligned) {
    const uint4 raw = *reinterpret_cast<const uint4*>(row + first);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      values[2 * i] = pair.x;
      values[2 * i + 1] = pair.y;
    }
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < lane_elements; ++i) {
    values[i] = first + i < head_size ? __half2float(row[first + i]) : 0.0f;
  }
}

// Softmax sums of one query head over some positions, this lane's elements of them.
struct HeadSums {
  float maximum = -INFINITY;
  float total = 0;
  float value[lane_elements] = {};

  __device__ void rescale(float new_maximum) {
    const float factor = maximum == -INFINITY ? 0.0f : expf(maximum - new_maximum);
    total *= factor;
#pragma unroll
    for (float& v : value) v *= factor;
    maximum = new_maximum;
  }
};

// What an attention tile works on.
struct AttentionTile {
  uint32_t group, head_size, splits;
  uint32_t position, begin, end;  // positions [begin, end), `position` the newest
  bool owner;                     // `position` is one of them
  bool aligned;                   // rows start on 16 bytes
  uint32_t row_lanes;             // lanes that share a row, a power of two
  float* query;                   // shared memory: group heads, prepared and scaled
  __half* newest_key;             // shared memory
  __half* newest_value;
  __half* key_cache;
  __half* value_cache;
};

// Sums of heads [first_head, first_head + heads_per_pass) over this warp's share of the rows.
__device__ inline void attend(const AttentionTile& a, uint32_t first_head, uint32_t warp,
                              HeadSums (&sums)[heads_per_pass]) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t rows_at_once = 32 / a.row_lanes;
  const uint32_t first = lane % a.row_lanes * lane_elements;
  const bool used = first < a.head_size;
  float query[heads_per_pass][lane_elements];
#pragma unroll
  for (uint32_t h = 0; h < heads_per_pass; ++h) {
#pragma unroll
    for (uint32_t i = 0; i < lane_elements; ++i) {
      const bool there = first_head + h < a.group && first + i < a.head_size;
      query[h][i] = there ? a.query[(first_head + h) * a.head_size + first + i] : 0.0f;
    }
  }
  const uint32_t step = machine::consumer_warps * rows_at_once;
  for (uint32_t base = a.begin + warp * rows_at_once; base < a.end; base += step) {
    const uint32_t row = base + lane / a.row_lanes;
    const bool valid = row < a.end;
    const bool newest = row == a.position;
    float key[lane_elements] = {};
    float value[lane_elements] = {};
    if (valid && used) {
      const uint64_t at = static_cast<uint64_t>(row) * a.head_size;
      load_halves(newest ? a.newest_key : a.key_cache + at, first, a.head_size, a.aligned, key);
      load_halves(newest ? a.newest_value : a.value_cache + at, first, a.head_size, a.aligned, value);
    }
#pragma unroll
    for (uint32_t h = 0; h < heads_per_pass; ++h) {
      float score = 0;
#pragma unroll
      for (uint32_t i = 0; i < lane_elements; ++i) score += query[h][i] * key[i];
      for (uint32_t offset = a.row_lanes / 2; offset != 0; offset /= 2) {
        score += __shfl_xor_sync(ptx::full_mask, score, offset);
      }
      if (!valid) continue;
      if (score > sums[h].maximum) sums[h].rescale(score);
      const float weight = expf(score - sums[h].maximum);
      sums[h].total += weight;
#pragma unroll
      for (uint32_t i = 0; i < lane_elements; ++i) sums[h].value[i] += weight * value[i];
    }
  }
  // Join the rows that this warp worked on at once.
#pragma unroll
  for (uint32_t h = 0; h < heads_per_pass; ++h) {
    float maximum = sums[h].maximum;
    for (uint32_t offset = 16; offset >= a.row_lanes; offset /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(ptx::full_mask, maximum, offset));
    }
    if (maximum != -INFINITY) sums[h].rescale(maximum);
    for (uint32_t offset = 16; offset >= a.row_lanes; offset /= 2) {
      sums[h].total += __shfl_xor_sync(ptx::full_mask, sums[h].total, offset);
#pragma unroll
      for (float& v : sums[h].value) v += __shfl_xor_sync(ptx::full_mask, v, offset);
    }
  }
}

// Floats that a warp leaves for one head: values, maximum, total.
__device__ inline uint32_t head_part(uint32_t head_size) { return head_size + 2; }

// Joins the warps' sums of one head and writes them.
__device__ inline void store_head(const Block& block, const TileSlot& tile, const AttentionTile& a, const float* parts,
                                  uint32_t head) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t part = head_part(a.head_size);
  float maximum = -INFINITY;
  for (uint32_t w = 0; w < machine::consumer_warps; ++w) maximum = fmaxf(maximum, parts[w * part + a.head_size]);
  float total = 0;
  float factor[machine::consumer_warps];
#pragma unroll
  for (uint32_t w = 0; w < machine::consumer_warps; ++w) {
    const float theirs = parts[w * part + a.head_size];
    factor[w] = theirs == -INFINITY ? 0.0f : expf(theirs - maximum);
    total += factor[w] * parts[w * part + a.head_size + 1];
  }
  const bool split = machine::operand_present(tile, isa::attention::statistics);
  auto* out = machine::operand<float>(tile, isa::attention::out) + head * a.head_size;
  for (uint32_t i = lane; i < a.head_size; i += 32) {
    float value = 0;
#pragma unroll
    for (uint32_t w = 0; w < machine::consumer_warps; ++w) value += factor[w] * parts[w * part + i];
    store_to_ranks(*block.launch, tile, isa::attention::out, out + i, split ? value : value / total);
  }
  if (split && lane == 0) {
    auto* statistics = machine::operand<float>(tile, isa::attention::statistics) + 2 * head;
    store_to_ranks(*block.launch, tile, isa::attention::statistics, statistics, maximum);
    store_to_ranks(*block.launch, tile, isa::attention::statistics, statistics + 1, total);
  }
}

// Prepares queries and the newest key and value in shared memory; the owner writes the cache's new row.
__device__ inline void prepare_attention(const TileSlot& tile, const AttentionTile& a, uint32_t warp) {
  const uint32_t lane = ptx::lane_number();
  const auto* angles = input<float>(tile, isa::attention::rotation);
  const float epsilon = __uint_as_float(tile.record.parameter[isa::attention::epsilon]);
  const float scale = __uint_as_float(tile.record.parameter[isa::attention::scale]);
  const auto* q_norm =
      machine::operand_present(tile, isa::attention::q_norm) ? input<float>(tile, isa::attention::q_norm) : nullptr;
  const auto* k_norm =
      machine::operand_present(tile, isa::attention::k_norm) ? input<float>(tile, isa::attention::k_norm) : nullptr;
  // Heads, then the key, then the value, dealt to the warps in turn.
  for (uint32_t job = warp; job < a.group + 2; job += machine::consumer_warps) {
    if (job < a.group) {
      prepare_head(a.query + job * a.head_size, input<float>(tile, isa::attention::q) + job * a.head_size, q_norm,
                   angles, a.head_size, epsilon, scale);
      continue;
    }
    if (!a.owner) continue;
    const uint64_t at = static_cast<uint64_t>(a.position) * a.head_size;
    if (job == a.group) {
      // The prepared key needs room as f32 first: behind the queries.
      float* key = a.query + a.group * a.head_size;
      prepare_head(key, input<float>(tile, isa::attention::k), k_norm, angles, a.head_size, epsilon, 1.0f);
      __syncwarp();
      for (uint32_t i = lane; i < a.head_size; i += 32) {
        a.newest_key[i] = saturate_to_half(key[i]);
        a.key_cache[at + i] = a.newest_key[i];
      }
    } else {
      const auto* value = input<float>(tile, isa::attention::v);
      for (uint32_t i = lane; i < a.head_size; i += 32) {
        a.newest_value[i] = saturate_to_half(value[i]);
        a.value_cache[at + i] = a.newest_value[i];
      }
    }
  }
}

// Returns false when the block is leaving; sets the fault.
__device__ inline bool attention(const Block& block, const TileSlot& tile, ConsumerState& state, uint32_t& fault) {
  AttentionTile a;
  a.group = tile.record.parameter[isa::attention::group];
  a.head_size = tile.record.parameter[isa::attention::head_size];
  a.splits = tile.record.parameter[isa::attention::splits];
  const int32_t position = *input<int32_t>(tile, isa::attention::position);
  if (position < 0 || static_cast<uint32_t>(position) >= tile.record.parameter[isa::attention::context]) {
    fault = 1;
    return true;
  }
  a.position = static_cast<uint32_t>(position);
  const uint32_t share = (a.position + a.splits) / a.splits;  // ceil((position + 1) / splits)
  a.begin = min(tile.index[2] * share, a.position + 1);
  a.end = min(a.begin + share, a.position + 1);
  a.owner = a.begin <= a.position && a.position < a.end;
  a.key_cache = machine::operand<__half>(tile, isa::attention::k_cache);
  a.value_cache = machine::operand<__half>(tile, isa::attention::v_cache);
  a.aligned = a.head_size % lane_elements == 0 && reinterpret_cast<uint64_t>(a.key_cache) % 16 == 0 &&
              reinterpret_cast<uint64_t>(a.value_cache) % 16 == 0;
  a.row_lanes = 1;
  while (a.row_lanes * lane_elements < a.head_size) a.row_lanes *= 2;
  // The activation buffer of this tile holds what the warps share: newest rows, queries, and room for the f32 key.
  unsigned char* buffer = block.activation_buffer(state.inputs.buffer());
  a.newest_key = reinterpret_cast<__half*>(buffer);
  const uint32_t row = (a.head_size + lane_elements - 1) / lane_elements * lane_elements;
  a.newest_value = a.newest_key + row;
  a.query = reinterpret_cast<float*>(a.newest_value + row);

  prepare_attention(tile, a, state.warp);
  if (!synchronize_consumers(block, state)) return false;
  // The partial buffer holds every warp's sums of the heads of a pass, as many heads as fit.
  auto* parts = reinterpret_cast<float*>(block.shared->partial[state.partials & 1]);
  const uint32_t part = head_part(a.head_size);
  const uint32_t fitting = machine::partial_bytes / (machine::consumer_warps * part * 4);
  const uint32_t heads = min(heads_per_pass, fitting);
  const uint32_t lane = ptx::lane_number();
  for (uint32_t first_head = 0; first_head < a.group; first_head += heads) {
    HeadSums sums[heads_per_pass];
    attend(a, first_head, state.warp, sums);
#pragma unroll
    for (uint32_t h = 0; h < heads_per_pass; ++h) {
      if (h >= heads || first_head + h >= a.group) break;
      float* mine = parts + (h * machine::consumer_warps + state.warp) * part;
      if (lane < a.row_lanes) {
#pragma unroll
        for (uint32_t i = 0; i < lane_elements; ++i) {
          const uint32_t element = lane * lane_elements + i;
          if (element < a.head_size) mine[element] = sums[h].value[i];
        }
      }
      if (lane == 0) {
        mine[a.head_size] = sums[h].maximum;
        mine[a.head_size + 1] = sums[h].total;
      }
    }
    if (!synchronize_consumers(block, state)) return false;
    for (uint32_t h = state.warp; h < heads && first_head + h < a.group; h += machine::consumer_warps) {
      store_head(block, tile, a, parts + h * machine::consumer_warps * part, first_head + h);
    }
    if (!synchronize_consumers(block, state)) return false;
  }
  return true;
}
static_assert(machine::partial_bytes >= machine::consumer_warps * (256 + 2) * 4, "the largest head fits");

__device__ inline void attention_combine(const Block& block, const TileSlot& tile) {
  const uint32_t group = tile.record.parameter[isa::attention_combine::group];
  const uint32_t head_size = tile.record.parameter[isa::attention_combine::head_size];
  const uint32_t splits = tile.record.parameter[isa::attention_combine::splits];
  const auto* partial = input<float>(tile, isa::attention_combine::partial);
  const auto* statistics = input<float>(tile, isa::attention_combine::statistics);
  auto* out = machine::operand<float>(tile, isa::attention_combine::out);
  for (uint32_t i = consumer_thread(); i < group * head_size; i += consumer_threads) {
    const uint32_t head = i / head_size;
    float maximum = -INFINITY;
    for (uint32_t s = 0; s < splits; ++s) maximum = fmaxf(maximum, statistics[(s * group + head) * 2]);
    float total = 0;
    float value = 0;
    for (uint32_t s = 0; s < splits; ++s) {
      const float theirs = statistics[(s * group + head) * 2];
      const float factor = theirs == -INFINITY ? 0.0f : expf(theirs - maximum);
      total += factor * statistics[(s * group + head) * 2 + 1];
      value += factor * partial[s * group * head_size + i];
    }
    store_to_ranks(*block.launch, tile, isa::attention_combine::out, out + i, value / total);
  }
}

// Returns false when the block is leaving; sets the fault.
__device__ inline bool choose(const Block& block, const TileSlot& tile, ConsumerState& state, uint32_t& fault) {
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
  auto* parts = reinterpret_cast<Best*>(block.shared->partial[state.partials & 1]);
  if (ptx::lane_number() == 0) parts[state.warp] = best;
  if (!synchronize_consumers(block, state)) return false;
  if (state.warp != 0) return true;

  auto* position = machine::operand<int32_t>(tile, isa::choose::position);
  auto* active = machine::operand<int32_t>(tile, isa::choose::active);
  const int32_t length = static_cast<int32_t>(machine::operand_size<int32_t>(tile, isa::choose::tokens));
  const int32_t now = *position;
  const bool idle = *active == 0;
  if (now < 0 || now >= length) {
    fault = 1;
    return true;
  }
  __syncwarp();
  if (ptx::lane_number() != 0 || idle) return true;
  for (uint32_t w = 1; w < machine::consumer_warps; ++w)
    take_better(best.value, best.index, parts[w].value, parts[w].index);
  if (best.index == INT32_MAX) best.index = indices[0];
  const int32_t next = now + 1;
  if (next == length) {
    *active = 0;
    return true;
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
  return true;
}

}  // namespace mkrt::llm
