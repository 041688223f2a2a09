// The instructions without weights: embed, rotation, attention, attention_combine, choose and sum_partials. The eight
// consumer warps work on a tile together, read its inputs from global memory and write its results there; the store
// warp signals.
#pragma once

#include <cuda_fp16.h>

#include "linear.cuh"

namespace mkrt::llm {

constexpr uint32_t consumer_threads = machine::consumer_warps * 32;

__device__ inline uint32_t consumer_warp() { return threadIdx.x / 32; }

// All consumer warps have come here, and see each other's shared memory. False when the block is leaving.
__device__ inline bool synchronize_consumers() {
  uint32_t& count = shared().synchronizations[consumer_warp()];
  const uint32_t parity = count & 1;
  __syncwarp();
  if (ptx::lane_number() == 0) {
    ++count;
    ptx::barrier_arrive(&shared().consumer_barrier);
  } else if (MKRT_CHECK_ARRIVALS) {
    ptx::barrier_arrive(&shared().consumer_barrier);
  }
  return machine::wait_warp(&shared().consumer_barrier, parity);
}

__device__ inline uint32_t consumer_thread() { return threadIdx.x; }
static_assert(machine::fetch_warp == machine::consumer_warps, "consumers are the first warps of a block");

// What an instruction's work on a tile came to.
enum Outcome : uint32_t {
  done = 0,
  // From 1 on: the number of a fault of the opcode.
  leaving = 0xffffffffu,  // the block is leaving
};

template <class Element>
__device__ const Element* input(const TileSlot& tile, uint32_t number) {
  return machine::operand<const Element>(tile, number);
}

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

// Pairs of a head that a lane works on: heads have up to 256 elements.
constexpr uint32_t lane_pairs = 256 / 2 / 32;

// One warp: to = rotary(norm(from)) * factor. Every load is on its way before the first is used.
__device__ inline void prepare_head(float* to, const float* from, const float* norm, const float* angles,
                                    uint32_t head_size, float epsilon, float factor) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t half = head_size / 2;
  float low[lane_pairs];
  float high[lane_pairs];
  float norm_low[lane_pairs];
  float norm_high[lane_pairs];
  float2 angle[lane_pairs];
#pragma unroll
  for (uint32_t p = 0; p < lane_pairs; ++p) {
    const uint32_t i = lane + 32 * p;
    const bool there = i < half;
    low[p] = there ? from[i] : 0.0f;
    high[p] = there ? from[i + half] : 0.0f;
    norm_low[p] = there && norm != nullptr ? norm[i] : 1.0f;
    norm_high[p] = there && norm != nullptr ? norm[i + half] : 1.0f;
    angle[p] = there ? *reinterpret_cast<const float2*>(angles + 2 * i) : make_float2(0.0f, 0.0f);
  }
  float scale = 1.0f;
  if (norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (uint32_t p = 0; p < lane_pairs; ++p) squares += low[p] * low[p] + high[p] * high[p];
    for (uint32_t offset = 16; offset != 0; offset /= 2) squares += __shfl_xor_sync(ptx::full_mask, squares, offset);
    scale = rsqrtf(squares / static_cast<float>(head_size) + epsilon);
  }
#pragma unroll
  for (uint32_t p = 0; p < lane_pairs; ++p) {
    const uint32_t i = lane + 32 * p;
    if (i >= half) break;
    const float a = low[p] * scale * norm_low[p];
    const float b = high[p] * scale * norm_high[p];
    to[i] = (a * angle[p].x - b * angle[p].y) * factor;
    to[i + half] = (b * angle[p].x + a * angle[p].y) * factor;
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

// A lane's elements of a row, as the cache holds them.
struct Halves {
  __half2 pair[lane_elements / 2];

  __device__ float2 get(uint32_t i) const { return __half22float2(pair[i]); }
};
static_assert(sizeof(Halves) == sizeof(uint4));

__device__ inline Halves load_halves(const __half* row, uint32_t first, uint32_t head_size, bool aligned) {
  Halves out;
  if (aligned) {
    reinterpret_cast<uint4&>(out) = *reinterpret_cast<const uint4*>(row + first);
    return out;
  }
#pragma unroll
  for (uint32_t i = 0; i < lane_elements / 2; ++i) {
    const uint32_t at = first + 2 * i;
    // Head sizes are even: a pair is there or not.
    out.pair[i] = at < head_size ? __halves2half2(row[at], row[at + 1]) : __half2half2(__ushort_as_half(0));
  }
  return out;
}

// Softmax sums of one query head over some positions, this lane's elements of them.
struct HeadSums {
  float maximum = -INFINITY;
  float total = 0;
  float value[lane_elements] = {};

  __device__ void rescale(float new_maximum) {
    const float factor = maximum == -INFINITY ? 0.0f : __expf(maximum - new_maximum);
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
  bool aligned;                   // rows start on 16 bytes
  uint32_t row_lanes;             // lanes that share a row, a power of two
  float* query;                   // shared memory: group heads, prepared and scaled
  __half* newest_key;             // shared memory
  __half* newest_value;
  __half* key_cache;
  __half* value_cache;
};

// One row of the cache, or the newest one from shared memory: a lane's elements.
struct CacheRow {
  Halves key;
  Halves value;
};

// The walk of a warp over the rows of a tile: row_lanes lanes share a row.
struct RowWalk {
  uint32_t row;    // this lane's
  uint32_t step;   // rows from one round to the next
  uint32_t first;  // this lane's first element
  bool used;       // whether the lane has elements

  __device__ RowWalk(const AttentionTile& a, uint32_t warp) {
    const uint32_t lane = ptx::lane_number();
    const uint32_t rows_at_once = 32 / a.row_lanes;
    row = a.begin + warp * rows_at_once + lane / a.row_lanes;
    step = machine::consumer_warps * rows_at_once;
    first = lane % a.row_lanes * lane_elements;
    used = first < a.head_size;
  }
};

// Rows below the newest, which lie in the cache since earlier steps.
__device__ inline CacheRow load_cached(const AttentionTile& a, const RowWalk& walk, uint32_t row) {
  CacheRow out;
  reinterpret_cast<uint4&>(out.key) = make_uint4(0, 0, 0, 0);
  reinterpret_cast<uint4&>(out.value) = make_uint4(0, 0, 0, 0);
  if (walk.used && row < a.end && row != a.position) {
    const uint64_t at = static_cast<uint64_t>(row) * a.head_size;
    out.key = load_halves(a.key_cache + at, walk.first, a.head_size, a.aligned);
    out.value = load_halves(a.value_cache + at, walk.first, a.head_size, a.aligned);
  }
  return out;
}

// Sums of heads [first_head, first_head + heads_per_pass) over this warp's share of the rows. `row` was loaded before;
// each round loads the next one's while it computes.
__device__ inline void attend(const AttentionTile& a, uint32_t first_head, RowWalk walk, CacheRow next,
                              HeadSums (&sums)[heads_per_pass]) {
  float query[heads_per_pass][lane_elements];
#pragma unroll
  for (uint32_t h = 0; h < heads_per_pass; ++h) {
#pragma unroll
    for (uint32_t i = 0; i < lane_elements; ++i) {
      const bool there = first_head + h < a.group && walk.first + i < a.head_size;
      query[h][i] = there ? a.query[(first_head + h) * a.head_size + walk.first + i] : 0.0f;
    }
  }
  for (; __any_sync(ptx::full_mask, walk.row < a.end); walk.row += walk.step) {
    CacheRow row = next;
    next = load_cached(a, walk, walk.row + walk.step);
    const bool valid = walk.row < a.end;
    if (walk.row == a.position && walk.used) {
      row.key = load_halves(a.newest_key, walk.first, a.head_size, a.aligned);
      row.value = load_halves(a.newest_value, walk.first, a.head_size, a.aligned);
    }
#pragma unroll
    for (uint32_t h = 0; h < heads_per_pass; ++h) {
      float score = 0;
#pragma unroll
      for (uint32_t i = 0; i < lane_elements / 2; ++i) {
        const float2 key = row.key.get(i);
        score += query[h][2 * i] * key.x + query[h][2 * i + 1] * key.y;
      }
      for (uint32_t offset = a.row_lanes / 2; offset != 0; offset /= 2) {
        score += __shfl_xor_sync(ptx::full_mask, score, offset);
      }
      if (!valid) continue;
      if (score > sums[h].maximum) sums[h].rescale(score);
      const float weight = __expf(score - sums[h].maximum);
      sums[h].total += weight;
#pragma unroll
      for (uint32_t i = 0; i < lane_elements / 2; ++i) {
        const float2 value = row.value.get(i);
        sums[h].value[2 * i] += weight * value.x;
        sums[h].value[2 * i + 1] += weight * value.y;
      }
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
__device__ inline void store_head(uint32_t place, const AttentionTile& a, const float* parts, uint32_t head) {
  const TileSlot& tile = machine::slot(place);
  const uint32_t lane = ptx::lane_number();
  const uint32_t part = head_part(a.head_size);
  float maximum = -INFINITY;
  for (uint32_t w = 0; w < machine::consumer_warps; ++w) maximum = fmaxf(maximum, parts[w * part + a.head_size]);
  float total = 0;
  float factor[machine::consumer_warps];
#pragma unroll
  for (uint32_t w = 0; w < machine::consumer_warps; ++w) {
    const float theirs = parts[w * part + a.head_size];
    factor[w] = theirs == -INFINITY ? 0.0f : __expf(theirs - maximum);
    total += factor[w] * parts[w * part + a.head_size + 1];
  }
  const bool split = machine::operand_present(tile, isa::attention::statistics);
  auto* out = machine::operand<float>(tile, isa::attention::out) + head * a.head_size;
  for (uint32_t i = lane; i < a.head_size; i += 32) {
    float value = 0;
#pragma unroll
    for (uint32_t w = 0; w < machine::consumer_warps; ++w) value += factor[w] * parts[w * part + i];
    machine::store(place, isa::attention::out, out + i, split ? value : __fdividef(value, total));
  }
  if (split && lane == 0) {
    auto* statistics = machine::operand<float>(tile, isa::attention::statistics) + 2 * head;
    machine::store(place, isa::attention::statistics, statistics, maximum);
    machine::store(place, isa::attention::statistics, statistics + 1, total);
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
  // Heads, then the key, then the value, dealt to the warps in turn. Nothing here needs to know the position.
  for (uint32_t job = warp; job < a.group + 2; job += machine::consumer_warps) {
    if (job < a.group) {
      prepare_head(a.query + job * a.head_size, input<float>(tile, isa::attention::q) + job * a.head_size, q_norm,
                   angles, a.head_size, epsilon, scale);
    } else if (job == a.group) {
      // The prepared key needs room as f32 first: behind the queries.
      float* key = a.query + a.group * a.head_size;
      prepare_head(key, input<float>(tile, isa::attention::k), k_norm, angles, a.head_size, epsilon, 1.0f);
      __syncwarp();
      for (uint32_t i = lane; i < a.head_size; i += 32) a.newest_key[i] = saturate_to_half(key[i]);
    } else {
      const auto* value = input<float>(tile, isa::attention::v);
      for (uint32_t i = lane; i < a.head_size; i += 32) a.newest_value[i] = saturate_to_half(value[i]);
    }
  }
}

// The tile that holds the newest position adds its row to the caches.
__device__ inline void append_row(const AttentionTile& a) {
  const uint64_t at = static_cast<uint64_t>(a.position) * a.head_size;
  for (uint32_t i = consumer_thread(); i < a.head_size; i += consumer_threads) {
    a.key_cache[at + i] = a.newest_key[i];
    a.value_cache[at + i] = a.newest_value[i];
  }
}

__device__ __forceinline__ uint32_t attention(uint32_t place, uint32_t buffer_number, uint32_t partial_number) {
  const TileSlot& tile = machine::slot(place);
  const uint32_t warp = consumer_warp();
  AttentionTile a;
  // On its way while the queries are prepared.
  const int32_t position = *input<int32_t>(tile, isa::attention::position);
  a.group = tile.record.parameter[isa::attention::group];
  a.head_size = tile.record.parameter[isa::attention::head_size];
  a.splits = tile.record.parameter[isa::attention::splits];
  a.key_cache = machine::operand<__half>(tile, isa::attention::k_cache);
  a.value_cache = machine::operand<__half>(tile, isa::attention::v_cache);
  a.aligned = a.head_size % lane_elements == 0 && reinterpret_cast<uint64_t>(a.key_cache) % 16 == 0 &&
              reinterpret_cast<uint64_t>(a.value_cache) % 16 == 0;
  a.row_lanes = 1;
  while (a.row_lanes * lane_elements < a.head_size) a.row_lanes *= 2;
  // The activation buffer of this tile holds what the warps share: newest rows, queries, and room for the f32 key.
  unsigned char* buffer = machine::activation_buffer(buffer_number);
  a.newest_key = reinterpret_cast<__half*>(buffer);
  const uint32_t row = (a.head_size + lane_elements - 1) / lane_elements * lane_elements;
  a.newest_value = a.newest_key + row;
  a.query = reinterpret_cast<float*>(a.newest_value + row);
  prepare_attention(tile, a, warp);

  if (position < 0 || static_cast<uint32_t>(position) >= tile.record.parameter[isa::attention::context]) {
    return isa::attention::fault_position_outside_cache;
  }
  a.position = static_cast<uint32_t>(position);
  const uint32_t share = (a.position + a.splits) / a.splits;  // ceil((position + 1) / splits)
  a.begin = min(tile.index[2] * share, a.position + 1);
  a.end = min(a.begin + share, a.position + 1);
  const RowWalk walk(a, warp);
  const CacheRow first_row = load_cached(a, walk, walk.row);
  if (!synchronize_consumers()) return leaving;
  if (a.begin <= a.position && a.position < a.end) append_row(a);
  // The partial buffer holds every warp's sums of the heads of a pass, as many heads as fit.
  auto* parts = reinterpret_cast<float*>(shared().partial[partial_number]);
  const uint32_t part = head_part(a.head_size);
  const uint32_t fitting = machine::partial_bytes / (machine::consumer_warps * part * 4);
  const uint32_t heads = min(heads_per_pass, fitting);
  const uint32_t lane = ptx::lane_number();
  for (uint32_t first_head = 0; first_head < a.group; first_head += heads) {
    HeadSums sums[heads_per_pass];
    attend(a, first_head, walk, first_row, sums);
#pragma unroll
    for (uint32_t h = 0; h < heads_per_pass; ++h) {
      if (h >= heads || first_head + h >= a.group) break;
      float* mine = parts + (h * machine::consumer_warps + warp) * part;
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
    if (!synchronize_consumers()) return leaving;
    for (uint32_t h = warp; h < heads && first_head + h < a.group; h += machine::consumer_warps) {
      store_head(place, a, parts + h * machine::consumer_warps * part, first_head + h);
    }
    // The next pass writes the parts again.
    if (first_head + heads < a.group && !synchronize_consumers()) return leaving;
  }
  return done;
}
static_assert(machine::partial_bytes >= machine::consumer_warps * (256 + 2) * 4, "the largest head fits");

// Splits whose parts are on their way at once.
constexpr uint32_t splits_at_once = 16;

// A warp takes 32 elements of a head, one a lane; lane s also looks at the statistics of a split.
__device__ __forceinline__ uint32_t attention_combine(uint32_t place) {
  const TileSlot& tile = machine::slot(place);
  const uint32_t lane = ptx::lane_number();
  const uint32_t group = tile.record.parameter[isa::attention_combine::group];
  const uint32_t head_size = tile.record.parameter[isa::attention_combine::head_size];
  const uint32_t splits = tile.record.parameter[isa::attention_combine::splits];
  const auto* partial = input<float>(tile, isa::attention_combine::partial);
  const auto* statistics = input<float2>(tile, isa::attention_combine::statistics);
  auto* out = machine::operand<float>(tile, isa::attention_combine::out);
  const uint32_t pieces = (head_size + 31) / 32;
  for (uint32_t job = consumer_warp(); job < group * pieces; job += machine::consumer_warps) {
    const uint32_t head = job / pieces;
    const uint32_t element = job % pieces * 32 + lane;
    float maximum = -INFINITY;
    float total = 0;
    float value = 0;
    for (uint32_t first = 0; first < splits; first += splits_at_once) {
      const uint32_t mine = first + lane;
      float2 statistic = make_float2(-INFINITY, 0.0f);
      if (lane < splits_at_once && mine < splits) statistic = statistics[mine * group + head];
      float part[splits_at_once];
#pragma unroll
      for (uint32_t s = 0; s < splits_at_once; ++s) {
        part[s] = 0;
        if (first + s < splits && element < head_size) {
          part[s] = partial[((first + s) * group + head) * head_size + element];
        }
      }
      float larger = fmaxf(maximum, statistic.x);
      for (uint32_t offset = 16; offset != 0; offset /= 2) {
        larger = fmaxf(larger, __shfl_xor_sync(ptx::full_mask, larger, offset));
      }
      // At least split 0 has a position, so `larger` is finite from the first round on.
      const float before = __expf(maximum - larger);
      const float factor = __expf(statistic.x - larger);
      float sum = factor * statistic.y;
      for (uint32_t offset = 16; offset != 0; offset /= 2) sum += __shfl_xor_sync(ptx::full_mask, sum, offset);
      maximum = larger;
      total = total * before + sum;
      value *= before;
#pragma unroll
      for (uint32_t s = 0; s < splits_at_once; ++s) value += __shfl_sync(ptx::full_mask, factor, s) * part[s];
    }
    if (element < head_size) {
      machine::store(place, isa::attention_combine::out, out + head * head_size + element, __fdividef(value, total));
    }
  }
  return done;
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

// Parts of an element that are on their way at once.
constexpr uint32_t parts_at_once = 8;

__device__ __forceinline__ uint32_t sum_partials(uint32_t place) {
  const TileSlot& tile = machine::slot(place);
  const uint32_t parts = tile.record.parameter[isa::sum_partials::parts];
  const uint32_t batch = tile.record.parameter[isa::sum_partials::batch];
  const uint32_t size = machine::operand_size<float>(tile, isa::sum_partials::out);
  const auto* partial = input<float>(tile, isa::sum_partials::partial);
  const auto* residual = input<float>(tile, isa::sum_partials::residual);
  auto* out = machine::operand<float>(tile, isa::sum_partials::out);
  const uint64_t part_stride = machine::row_stride<float>(tile, isa::sum_partials::partial);
  const uint64_t residual_stride = machine::row_stride<float>(tile, isa::sum_partials::residual);
  const uint64_t out_stride = machine::row_stride<float>(tile, isa::sum_partials::out);
  for (uint32_t i = consumer_thread(); i < batch * size; i += consumer_threads) {
    const uint32_t sequence = i / size;
    const uint32_t column = i % size;
    float sum = residual != nullptr ? residual[sequence * residual_stride + column] : 0.0f;
    for (uint32_t first = 0; first < parts; first += parts_at_once) {
      float value[parts_at_once];
#pragma unroll
      for (uint32_t p = 0; p < parts_at_once; ++p) {
        const bool there = first + p < parts;
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
