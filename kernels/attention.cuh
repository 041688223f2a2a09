// attention of mkrt.llm: one query position of a group of heads that share keys and values, over a split's share of the
// cache.
//
// The activation warp brings everything into an activation buffer, the cache in chunks of at most 64 rows; the consumer
// warps work from shared memory alone. A chunk takes three passes: scores (a thread a row and head), softmax (a warp a
// head), values (a thread two elements of a head), so that no sums have to be joined between threads. The loops are
// short and not unrolled on purpose: an instruction that runs once a tile costs most when it is fetched
// (PERFORMANCE.md).
//
// Chunks are dealt to the splits in turn. Where a split's first chunk lies then does not depend on the position, and
// short contexts keep few splits busy instead of all of them with a few rows each.
#pragma once

#include <cuda_fp16.h>

#include "linear.cuh"

namespace mkrt::llm {

constexpr uint32_t consumer_threads = machine::consumer_warps * 32;

__device__ inline uint32_t consumer_warp() { return ptx::thread_number() / 32; }
__device__ inline uint32_t consumer_thread() { return ptx::thread_number(); }
static_assert(machine::fetch_warp == machine::consumer_warps, "consumers are the first warps of a block");

// All consumer warps have come here, and see each other's shared memory. False when the block is leaving.
__device__ inline bool synchronize_consumers() {
  uint32_t& count = shared().synchronizations[consumer_warp()];
  const uint32_t parity = count & 1;
  __syncwarp();
  if (ptx::lane_number() == 0) ++count;
  if (ptx::arrives()) ptx::barrier_arrive(&shared().consumer_barrier);
  return machine::wait_warp(&shared().consumer_barrier, parity);
}

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

// Rows of a chunk: as many as fit an activation buffer, a power of two between these. The runtime finds room for the
// least; 64 rows of 64 elements are what 256 threads work on at once.
constexpr uint32_t least_chunk_rows = 16;
constexpr uint32_t most_chunk_rows = 64;
// 16-byte pieces, as the copy engine and vector loads want them.
constexpr uint32_t piece_halves = 8;

// A tile's shape, worked out by the fetch warp, and where things lie in shared memory: queries, the newest key and
// value, rotation and norms in the activation buffer of the first chunk, rows of the cache in that of every chunk.
struct alignas(16) AttentionShape {
  uint32_t group, head_size, splits, split;
  uint32_t chunk_rows;
  uint32_t chunk_shift;  // log2 of chunk_rows
  uint32_t heads;        // worked on together; all of the group unless their sums need too much room
  uint32_t head_bytes;   // of a head's f32 elements in the activation buffer
  uint32_t key, value, rotation, q_norm, k_norm;  // first byte there; queries lie at 0
  uint32_t key_rows, value_rows;
  uint32_t bulk;  // 1: everything lies at multiples of 16 bytes
};
static_assert(sizeof(AttentionShape) <= machine::prepared_bytes);

__device__ inline const AttentionShape& attention_shape(const TileSlot& tile) {
  return *reinterpret_cast<const AttentionShape*>(tile.prepared);
}

// What the consumer warps share besides: a partial buffer, in floats.
struct AttentionRoom {
  float* query;        // heads x head_size, rotated and scaled
  float2* sum;         // heads x head_size / 2: values weighted so far
  float* score;        // two of heads x chunk_rows: a chunk's scores, then their exponentials
  float* statistic;    // heads x 3: maximum, total, and what the last chunk changed the sums by
  __half* newest_key;  // head_size
  __half* newest_value;
};
__device__ inline AttentionRoom attention_room(const AttentionShape& shape, uint32_t partial_number) {
  AttentionRoom room;
  const uint32_t elements = shape.heads * shape.head_size;
  // The newest row first: it is read in 16-byte pieces.
  room.newest_key = reinterpret_cast<__half*>(shared().partial[partial_number]);
  room.newest_value = room.newest_key + shape.head_bytes / 4;
  room.query = reinterpret_cast<float*>(shared().partial[partial_number]) + shape.head_bytes / 4;
  room.sum = reinterpret_cast<float2*>(room.query + elements);
  room.score = room.query + 2 * elements;
  room.statistic = room.score + 2 * shape.heads * shape.chunk_rows;
  return room;
}
// Floats of that room that each head takes.
__device__ inline uint32_t head_room(uint32_t head_size, uint32_t chunk_rows) {
  return 2 * head_size + 2 * chunk_rows + 3;
}
static_assert((256 + 2 * 256 + 2 * most_chunk_rows + 3) * 4 <= machine::partial_bytes, "the largest head fits");

__device__ inline void prepare_attention(uint32_t place) {
  TileSlot& tile = machine::slot(place);
  AttentionShape shape;
  shape.group = tile.record.parameter[isa::attention::group];
  shape.head_size = tile.record.parameter[isa::attention::head_size];
  shape.splits = tile.record.parameter[isa::attention::splits];
  shape.split = tile.index[2];
  shape.head_bytes = (shape.head_size * 4 + 15) / 16 * 16;
  shape.key = (shape.group * shape.head_size * 4 + 15) / 16 * 16;
  shape.value = shape.key + shape.head_bytes;
  shape.rotation = shape.value + shape.head_bytes;
  shape.q_norm = shape.rotation + shape.head_bytes;
  shape.k_norm = shape.q_norm + shape.head_bytes;
  shape.key_rows = shape.k_norm + shape.head_bytes;
  shape.chunk_rows = most_chunk_rows;
  shape.chunk_shift = __ffs(most_chunk_rows) - 1;
  while (shape.chunk_rows > least_chunk_rows &&
         shape.key_rows + shape.chunk_rows * shape.head_size * 4 + 16 > launch().activation_bytes) {
    shape.chunk_rows /= 2;
    --shape.chunk_shift;
  }
  shape.value_rows = shape.key_rows + (shape.chunk_rows * shape.head_size * 2 + 15) / 16 * 16;
  shape.heads =
      min(shape.group, (machine::partial_bytes - shape.head_bytes) / 4 / head_room(shape.head_size, shape.chunk_rows));
  const uint32_t lane = ptx::lane_number();
  const bool pieces = lane >= MKRT_RECORD_OPERANDS || tile.address[lane] % 16 == 0 ||
                      lane == isa::attention::position || lane == isa::attention::out ||
                      lane == isa::attention::statistics;
  shape.bulk = __all_sync(ptx::full_mask, pieces) && shape.head_size % piece_halves == 0;
  if (lane == 0) *reinterpret_cast<AttentionShape*>(tile.prepared) = shape;
}

// Chunks of the cache that a split has at a position; none where the position is outside the cache, a fault.
__device__ inline uint32_t chunk_count(const TileSlot& tile, const AttentionShape& shape, int32_t position) {
  const uint32_t begin = shape.split * shape.chunk_rows;
  if (position < 0 || static_cast<uint32_t>(position) >= tile.record.parameter[isa::attention::context]) return 0;
  if (static_cast<uint32_t>(position) < begin) return 0;
  return (static_cast<uint32_t>(position) - begin) / (shape.splits * shape.chunk_rows) + 1;
}
__device__ inline uint32_t chunk_begin(const AttentionShape& shape, uint32_t chunk) {
  return (chunk * shape.splits + shape.split) * shape.chunk_rows;
}

// ---- activation warp ------------------------------------------------------------------------------------------------

// What consumers find instead of a position when the block is leaving.
constexpr int32_t no_position = INT32_MIN;

// Starts to copy `bytes`, a multiple of 2, to shared memory; returns them where they count on the input barrier.
__device__ inline uint32_t bring_bytes(unsigned char* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                       bool bulk) {
  const auto* source = static_cast<const unsigned char*>(from);
#if MKRT_BULK_COPY
  if (bulk) {
    if (bytes != 0 && ptx::lane_number() == 0) ptx::bulk_copy(to, source, bytes, barrier);
    return bytes;
  }
#else
  if (bulk) {
    for (uint32_t at = ptx::lane_number() * 16; at < bytes; at += 32 * 16) ptx::async_copy_16(to + at, source + at);
    return 0;
  }
#endif
  for (uint32_t at = ptx::lane_number() * 2; at < bytes; at += 32 * 2) {
    *reinterpret_cast<uint16_t*>(to + at) = *reinterpret_cast<const uint16_t*>(source + at);
  }
  return 0;
}

// Brings queries and the newest key and value with what they are prepared by.
__device__ inline uint32_t bring_heads(const TileSlot& tile, const AttentionShape& shape, unsigned char* buffer,
                                       uint64_t* barrier) {
  const uint32_t head = shape.head_size * 4;
  const bool bulk = shape.bulk != 0;
  const auto bring = [&](uint32_t operand, uint32_t at, uint32_t bytes) {
    if (!machine::operand_present(tile, operand)) return 0u;
    return bring_bytes(buffer + at, input<unsigned char>(tile, operand), bytes, barrier, bulk);
  };
  uint32_t bytes = bring(isa::attention::q, 0, shape.group * head);
#pragma unroll 1
  for (uint32_t i = 0; i < 5; ++i) {
    // Places follow each other in the order of this list.
    constexpr uint32_t operands = isa::attention::k | isa::attention::v << 4 | isa::attention::rotation << 8 |
                                  isa::attention::q_norm << 12 | isa::attention::k_norm << 16;
    bytes += bring(operands >> 4 * i & 15, shape.key + i * shape.head_bytes, head);
  }
  return bytes;
}

// Brings a chunk's rows that lie in the cache, those before `position`.
__device__ inline uint32_t bring_rows(const TileSlot& tile, const AttentionShape& shape, uint32_t chunk,
                                      uint32_t position, unsigned char* buffer, uint64_t* barrier) {
  const uint32_t begin = chunk_begin(shape, chunk);
  const uint32_t bytes = min(shape.chunk_rows, position - begin) * shape.head_size * 2;
  const uint64_t first = static_cast<uint64_t>(begin) * shape.head_size;
  const bool bulk = shape.bulk != 0;
  return bring_bytes(buffer + shape.key_rows, input<__half>(tile, isa::attention::k_cache) + first, bytes, barrier,
                     bulk) +
         bring_bytes(buffer + shape.value_rows, input<__half>(tile, isa::attention::v_cache) + first, bytes, barrier,
                     bulk);
}

// The load that all lanes' copies so far belong to is complete when `bytes` have arrived.
__device__ inline void end_load(uint64_t* barrier, uint32_t bytes, bool bulk) {
  __syncwarp();
#if MKRT_BULK_COPY
  if (ptx::lane_number() == 0) {
    ptx::barrier_expect(barrier, bytes);
  } else if (MKRT_CHECK_ARRIVALS) {
    ptx::barrier_arrive(barrier);
  }
#else
  if (bulk) {
    ptx::async_copy_arrive(barrier);
  } else {
    ptx::barrier_arrive(barrier);
  }
#endif
}

// Brings in a tile's units, a chunk each; `begin_load` waits for the next buffer, `wait` for the tile's counters. False
// when the block is leaving.
template <class BeginLoad, class Wait>
__device__ inline bool bring_attention(const TileSlot& tile, const InputLoads& inputs, BeginLoad begin_load,
                                       Wait wait) {
  const AttentionShape shape = attention_shape(tile);
  if (!begin_load()) return false;
  const bool reached = wait();
  const int32_t position = reached ? *input<int32_t>(tile, isa::attention::position) : no_position;
  uint32_t chunks = 1;
  for (uint32_t first_head = 0; first_head < shape.group; first_head += shape.heads) {
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      if (first_head + chunk != 0 && !begin_load()) return false;
      unsigned char* buffer = machine::activation_buffer(inputs.buffer());
      uint64_t* barrier = &shared().input_full[inputs.buffer()];
      // What consumers did to the buffer, and what the acquire made visible, comes before the copy engine's accesses.
      if (shape.bulk != 0) ptx::fence_copy_engine();
      uint32_t bytes = 0;
      // Heads are asked for before the position has come.
      if (chunk == 0 && reached) bytes = bring_heads(tile, shape, buffer, barrier);
      if (first_head + chunk == 0) chunks = chunk_count(tile, shape, position);
      if (chunks != 0) bytes += bring_rows(tile, shape, chunk, static_cast<uint32_t>(position), buffer, barrier);
      if (ptx::lane_number() == 0) shared().position[inputs.buffer()] = position;
      end_load(barrier, bytes, shape.bulk != 0);
    }
    if (chunks == 0) break;
  }
  return reached;
}

// ---- consumer warps -------------------------------------------------------------------------------------------------

constexpr float largest_half = 65504.0f;
__device__ inline __half saturate_to_half(float value) {
  return __float2half_rn(fminf(fmaxf(value, -largest_half), largest_half));
}

// One warp: rotary(norm(from)) * factor, each pair of elements given to store(i, element i, element i + half).
template <class Store>
__device__ inline void prepare_head(const float* from, const float* norm, const float2* angles, uint32_t head_size,
                                    float epsilon, float factor, Store store) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t half = head_size / 2;
  float scale = 1.0f;
  if (norm != nullptr) {
    float squares = 0;
#pragma unroll 1
    for (uint32_t i = lane; i < head_size; i += 32) squares += from[i] * from[i];
    for (uint32_t offset = 16; offset != 0; offset /= 2) squares += __shfl_xor_sync(ptx::full_mask, squares, offset);
    scale = rsqrtf(squares / static_cast<float>(head_size) + epsilon);
  }
#pragma unroll 1
  for (uint32_t i = lane; i < half; i += 32) {
    const float low = from[i] * scale * (norm != nullptr ? norm[i] : 1.0f);
    const float high = from[i + half] * scale * (norm != nullptr ? norm[i + half] : 1.0f);
    const float2 angle = angles[i];
    store(i, (low * angle.x - high * angle.y) * factor, (high * angle.x + low * angle.y) * factor);
  }
}

// Prepares the queries of heads [first_head, first_head + heads) and, for the first of them, the newest row. Heads, key
// and value are dealt to the warps in turn.
__device__ inline void prepare_heads(const TileSlot& tile, const AttentionShape& shape, const AttentionRoom& room,
                                     const unsigned char* buffer, uint32_t first_head, uint32_t heads) {
  const float epsilon = __uint_as_float(tile.record.parameter[isa::attention::epsilon]);
  const float scale = __uint_as_float(tile.record.parameter[isa::attention::scale]);
  const auto floats = [&](uint32_t at) { return reinterpret_cast<const float*>(buffer + at); };
  const auto* angles = reinterpret_cast<const float2*>(buffer + shape.rotation);
  const uint32_t half = shape.head_size / 2;
  const uint32_t jobs = heads + (first_head == 0 ? 2 : 0);
#pragma unroll 1
  for (uint32_t job = consumer_warp(); job < jobs; job += machine::consumer_warps) {
    if (job == heads + 1) {
      for (uint32_t i = ptx::lane_number(); i < shape.head_size; i += 32) {
        room.newest_value[i] = saturate_to_half(floats(shape.value)[i]);
      }
      continue;
    }
    const bool query = job < heads;
    const uint32_t norm = query ? isa::attention::q_norm : isa::attention::k_norm;
    prepare_head(query ? floats(0) + (first_head + job) * shape.head_size : floats(shape.key),
                 machine::operand_present(tile, norm) ? floats(query ? shape.q_norm : shape.k_norm) : nullptr, angles,
                 shape.head_size, epsilon, query ? scale : 1.0f, [&](uint32_t i, float low, float high) {
                   if (query) {
                     room.query[job * shape.head_size + i] = low;
                     room.query[job * shape.head_size + i + half] = high;
                   } else {
                     room.newest_key[i] = saturate_to_half(low);
                     room.newest_key[i + half] = saturate_to_half(high);
                   }
                 });
  }
}

__device__ inline float product(const __half2& a, float x, float y, float sum) {
  const float2 f = __half22float2(a);
  return fmaf(f.y, y, fmaf(f.x, x, sum));
}

// query . key. Neighbouring lanes have neighbouring rows: each starts at another piece, so that they meet in different
// banks of shared memory.
__device__ inline float dot(const float* query, const __half* key, uint32_t head_size, uint32_t row) {
  if (head_size % piece_halves == 0) {
    // Four sums, so that additions do not wait for each other.
    float sums[4] = {};
    const uint32_t pieces = head_size / piece_halves;
    uint32_t piece = row % pieces;
#pragma unroll 4
    for (uint32_t i = 0; i < pieces; ++i) {
      const uint4 k = reinterpret_cast<const uint4*>(key)[piece];
      const float4 low = reinterpret_cast<const float4*>(query)[2 * piece];
      const float4 high = reinterpret_cast<const float4*>(query)[2 * piece + 1];
      sums[0] = product(reinterpret_cast<const __half2&>(k.x), low.x, low.y, sums[0]);
      sums[1] = product(reinterpret_cast<const __half2&>(k.y), low.z, low.w, sums[1]);
      sums[2] = product(reinterpret_cast<const __half2&>(k.z), high.x, high.y, sums[2]);
      sums[3] = product(reinterpret_cast<const __half2&>(k.w), high.z, high.w, sums[3]);
      piece = piece + 1 == pieces ? 0 : piece + 1;
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  float sum = 0;
#pragma unroll 1
  for (uint32_t i = 0; i < head_size / 2; ++i) {
    sum = product(reinterpret_cast<const __half2*>(key)[i], query[2 * i], query[2 * i + 1], sum);
  }
  return sum;
}

// A chunk as consumers see it.
struct Chunk {
  const __half* keys;
  const __half* values;
  uint32_t cached;  // rows in the cache
  bool newest;      // followed by the newest row
  bool first, last;
  float* score;  // heads x chunk_rows
};

__device__ inline void compute_scores(const AttentionShape& shape, const AttentionRoom& room, const Chunk& chunk,
                                      uint32_t heads) {
  const uint32_t rows = chunk.cached + chunk.newest;
#pragma unroll 1
  for (uint32_t item = consumer_thread(); item < heads << shape.chunk_shift; item += consumer_threads) {
    const uint32_t row = item & (shape.chunk_rows - 1);
    if (row >= rows) continue;
    const __half* key = row < chunk.cached ? chunk.keys + row * shape.head_size : room.newest_key;
    chunk.score[item] = dot(room.query + (item >> shape.chunk_shift) * shape.head_size, key, shape.head_size, row);
  }
}

// Scores become weights relative to the largest so far. A warp a head.
__device__ inline void compute_weights(uint32_t place, const AttentionShape& shape, const AttentionRoom& room,
                                       const Chunk& chunk, uint32_t first_head, uint32_t heads) {
  const uint32_t lane = ptx::lane_number();
  const uint32_t rows = chunk.cached + chunk.newest;
  const bool split = machine::operand_present(machine::slot(place), isa::attention::statistics);
#pragma unroll 1
  for (uint32_t head = consumer_warp(); head < heads; head += machine::consumer_warps) {
    float* score = chunk.score + (head << shape.chunk_shift);
    float* statistic = room.statistic + 3 * head;
    const float before = chunk.first ? -INFINITY : statistic[0];
    const float total_before = chunk.first ? 0.0f : statistic[1];
    float maximum = before;
#pragma unroll 1
    for (uint32_t row = lane; row < rows; row += 32) maximum = fmaxf(maximum, score[row]);
    for (uint32_t offset = 16; offset != 0; offset /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(ptx::full_mask, maximum, offset));
    }
    float total = 0;
#pragma unroll 1
    for (uint32_t row = lane; row < rows; row += 32) {
      const float weight = __expf(score[row] - maximum);
      score[row] = weight;
      total += weight;
    }
    for (uint32_t offset = 16; offset != 0; offset /= 2) total += __shfl_xor_sync(ptx::full_mask, total, offset);
    const float factor = chunk.first ? 0.0f : __expf(before - maximum);
    total += factor * total_before;
    if (lane != 0) continue;
    statistic[0] = maximum;
    statistic[1] = total;
    statistic[2] = factor;
    if (!chunk.last || !split) continue;
    auto* out = machine::operand<float>(machine::slot(place), isa::attention::statistics) + 2 * (first_head + head);
    machine::store(place, isa::attention::statistics, out, maximum);
    machine::store(place, isa::attention::statistics, out + 1, total);
  }
}

// Adds the weighted values; after the last chunk the sums go out. A thread two neighbouring elements of a head.
__device__ inline void add_values(uint32_t place, const AttentionShape& shape, const AttentionRoom& room,
                                  const Chunk& chunk, uint32_t first_head, uint32_t heads) {
  const uint32_t half = shape.head_size / 2;
  const bool split = machine::operand_present(machine::slot(place), isa::attention::statistics);
#pragma unroll 1
  for (uint32_t item = consumer_thread(); item < heads * half; item += consumer_threads) {
    const uint32_t head = item / half;
    const uint32_t pair = item % half;
    const float* weight = chunk.score + (head << shape.chunk_shift);
    const float* statistic = room.statistic + 3 * head;
    float2 sum = make_float2(0.0f, 0.0f);
    if (!chunk.first) sum = make_float2(room.sum[item].x * statistic[2], room.sum[item].y * statistic[2]);
    const auto add = [&](float2& to, const __half* row, float w) {
      const float2 value = __half22float2(reinterpret_cast<const __half2*>(row)[pair]);
      to.x = fmaf(w, value.x, to.x);
      to.y = fmaf(w, value.y, to.y);
    };
    // Every second row to sums of their own, so that additions wait less for each other.
    float2 other = make_float2(0.0f, 0.0f);
    const __half* row = chunk.values;
#pragma unroll 4
    for (uint32_t i = 0; i < chunk.cached / 2; ++i, row += 2 * shape.head_size) {
      add(sum, row, weight[2 * i]);
      add(other, row + shape.head_size, weight[2 * i + 1]);
    }
    if (chunk.cached % 2 != 0) add(sum, row, weight[chunk.cached - 1]);
    if (chunk.newest) add(other, room.newest_value, weight[chunk.cached]);
    sum = make_float2(sum.x + other.x, sum.y + other.y);
    if (!chunk.last) {
      room.sum[item] = sum;
      continue;
    }
    const float factor = split ? 1.0f : __fdividef(1.0f, statistic[1]);
    auto* out = machine::operand<float>(machine::slot(place), isa::attention::out) + first_head * shape.head_size +
                head * shape.head_size + 2 * pair;
    machine::store(place, isa::attention::out, out, sum.x * factor);
    machine::store(place, isa::attention::out, out + 1, sum.y * factor);
  }
}

// The tile that holds the newest position adds its row to the caches.
__device__ inline void append_row(const TileSlot& tile, const AttentionShape& shape, const AttentionRoom& room,
                                  uint32_t position) {
  const uint64_t first = static_cast<uint64_t>(position) * shape.head_size;
  for (uint32_t i = consumer_thread(); i < shape.head_size; i += consumer_threads) {
    machine::operand<__half>(tile, isa::attention::k_cache)[first + i] = room.newest_key[i];
    machine::operand<__half>(tile, isa::attention::v_cache)[first + i] = room.newest_value[i];
  }
}

// A split without positions: its part counts for nothing.
__device__ inline void store_nothing(uint32_t place, const AttentionShape& shape) {
  auto* statistics = machine::operand<float>(machine::slot(place), isa::attention::statistics);
  for (uint32_t i = consumer_thread(); i < 2 * shape.group; i += consumer_threads) {
    machine::store(place, isa::attention::statistics, statistics + i, i % 2 == 0 ? -INFINITY : 0.0f);
  }
}

// The first unit's inputs have come; the partial buffer is the tile's.
__device__ __forceinline__ uint32_t attention(uint32_t place, ConsumerState& state) {
  const TileSlot& tile = machine::slot(place);
  const AttentionShape shape = attention_shape(tile);
  const AttentionRoom room = attention_room(shape, state.partials & 1);
  const int32_t place_in_text = shared().position[state.inputs.buffer()];
  if (place_in_text == no_position) return leaving;
  const auto position = static_cast<uint32_t>(place_in_text);
  if (position >= tile.record.parameter[isa::attention::context]) return isa::attention::fault_position_outside_cache;
  const uint32_t chunks = chunk_count(tile, shape, place_in_text);
  if (chunks == 0) {
    // Only splits beyond the first can have none, and those of a record without statistics are the only one.
    if (machine::operand_present(tile, isa::attention::statistics)) store_nothing(place, shape);
    return done;
  }
#pragma unroll 1
  for (uint32_t first_head = 0; first_head < shape.group; first_head += shape.heads) {
    const uint32_t heads = min(shape.heads, shape.group - first_head);
#pragma unroll 1
    for (uint32_t number = 0; number < chunks; ++number) {
      if (first_head + number != 0 && !take_inputs(state)) return leaving;
      const unsigned char* buffer = machine::activation_buffer(state.inputs.buffer());
      const uint32_t begin = chunk_begin(shape, number);
      Chunk chunk;
      chunk.keys = reinterpret_cast<const __half*>(buffer + shape.key_rows);
      chunk.values = reinterpret_cast<const __half*>(buffer + shape.value_rows);
      chunk.cached = min(shape.chunk_rows, position - begin);
      chunk.newest = position - begin < shape.chunk_rows;
      chunk.first = number == 0;
      chunk.last = number + 1 == chunks;
      // By turns, since slower warps may still add the last chunk's values.
      chunk.score = room.score + (number & 1) * (shape.heads << shape.chunk_shift);
      if (chunk.first) {
        prepare_heads(tile, shape, room, buffer, first_head, heads);
        if (!synchronize_consumers()) return leaving;
      }
      compute_scores(shape, room, chunk, heads);
      if (!synchronize_consumers()) return leaving;
      compute_weights(place, shape, room, chunk, first_head, heads);
      if (!synchronize_consumers()) return leaving;
      add_values(place, shape, room, chunk, first_head, heads);
      if (chunk.newest && first_head == 0) append_row(tile, shape, room, position);
    }
    // The next heads' queries take the place of these.
    if (first_head + shape.heads < shape.group && !synchronize_consumers()) return leaving;
  }
  return done;
}

}  // namespace mkrt::llm
