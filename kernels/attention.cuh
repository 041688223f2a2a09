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

// All consumer warps have come here, and see each other's shared memory. False when one of them is leaving: the caller
// then leaves too, and does not come here again.
__device__ inline bool synchronize_consumers() {
  __syncwarp();
  return ptx::threads_barrier_count(machine::consumer_barrier, consumer_threads, false) == 0;
}
// A consumer warp that leaves, for whatever reason, meets the others here until all eight leave. The hardware barrier
// looks at no flag, so every round needs every warp: those that wait in synchronize_consumers are told in one round and
// come here for the next, those that are elsewhere find the abort flag or the walk's end.
__device__ inline void leave_consumers() {
  __syncwarp();
  while (ptx::threads_barrier_count(machine::consumer_barrier, consumer_threads, true) != consumer_threads) {
  }
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
// Heads worked on together: the hi and lo parts of eight are the 16 rows of a product.
constexpr uint32_t most_heads = 8;
// The depth of a product: rows have their elements padded to a multiple.
constexpr uint32_t depth = 16;
// Bytes between rows of queries and weights beyond their elements, so that the rows that one load touches lie in
// different banks. Rows of the cache meet in the same banks: copying each to a place of its own took 4 us more
// (PERFORMANCE.md).
constexpr uint32_t operand_padding = 32;
constexpr uint32_t weight_padding = 16;

// A tile's shape, worked out by the fetch warp, and where things lie in shared memory: queries, the newest key and
// value, rotation and norms in the activation buffer of the first chunk, rows of the cache in that of every chunk.
struct alignas(16) AttentionShape {
  uint32_t group, head_size, splits, split;
  uint32_t chunk_rows;
  uint32_t heads;                                 // worked on together; all of the group where they are few enough
  uint32_t head_bytes;                            // of a head's f32 elements in the activation buffer
  uint32_t key, value, rotation, q_norm, k_norm;  // first byte there; queries lie at 0
  uint32_t key_rows, value_rows;
  uint32_t row_bytes;  // of a row of the cache there: one behind the other, so that one copy brings many
  uint32_t bulk;       // 1: the copy engine can do it: pieces of 16 bytes, no elements to pad
};
static_assert(sizeof(AttentionShape) <= machine::prepared_bytes);

__device__ inline const AttentionShape& attention_shape(const TileSlot& tile) {
  return *reinterpret_cast<const AttentionShape*>(tile.prepared);
}

// What the consumer warps share besides, in a partial buffer: byte places.
struct AttentionRoom {
  uint32_t newest_key, newest_value;  // rows of the cache
  uint32_t query;                     // heads rows of rounded queries, then heads rows of what rounding left
  uint32_t weight;                    // the same of a chunk's weights
  uint32_t score;                     // heads x (chunk_rows + 4) f32
  uint32_t sum;                       // heads x padded head size f32: values weighted so far
  uint32_t statistic;                 // heads x 3 f32: maximum, total, what the last chunk changes the sums by
  uint32_t end;
};
__device__ inline uint32_t weight_bytes(uint32_t chunk_rows) { return chunk_rows * 2 + weight_padding; }
__device__ inline uint32_t score_floats(uint32_t chunk_rows) { return chunk_rows + 4; }
__device__ inline uint32_t sum_floats(uint32_t row_bytes) { return row_bytes / 2; }
__device__ inline uint32_t query_bytes(uint32_t row_bytes) { return row_bytes + operand_padding; }
__device__ inline AttentionRoom attention_room(uint32_t heads, uint32_t row_bytes, uint32_t chunk_rows) {
  AttentionRoom room;
  room.newest_key = 0;
  room.newest_value = row_bytes;
  room.query = 2 * row_bytes;
  room.weight = room.query + 2 * heads * query_bytes(row_bytes);
  room.score = room.weight + 2 * heads * weight_bytes(chunk_rows);
  room.sum = room.score + heads * score_floats(chunk_rows) * 4;
  room.statistic = room.sum + heads * sum_floats(row_bytes) * 4;
  room.end = room.statistic + heads * 12;
  return room;
}

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
  shape.row_bytes = (shape.head_size + depth - 1) / depth * depth * 2;
  shape.chunk_rows = most_chunk_rows;
  while (shape.chunk_rows > least_chunk_rows &&
         shape.key_rows + 2 * shape.chunk_rows * shape.row_bytes > launch().activation_bytes) {
    shape.chunk_rows /= 2;
  }
  shape.value_rows = shape.key_rows + shape.chunk_rows * shape.row_bytes;
  shape.heads = min(shape.group, most_heads);
  while (attention_room(shape.heads, shape.row_bytes, shape.chunk_rows).end > machine::partial_bytes) --shape.heads;
  const uint32_t lane = ptx::lane_number();
  const bool pieces = lane >= MKRT_RECORD_OPERANDS || tile.address[lane] % 16 == 0 ||
                      lane == isa::attention::position || lane == isa::attention::out ||
                      lane == isa::attention::statistics;
  shape.bulk = __all_sync(ptx::full_mask, pieces) && shape.head_size % depth == 0;
  if (lane == 0) *reinterpret_cast<AttentionShape*>(tile.prepared) = shape;
}
// One head of the largest size and its newest row fit: 256 elements, 64 rows.
static_assert((2 + 2) * (2 * 256 + operand_padding) + 2 * (2 * most_chunk_rows + weight_padding) +
                  4 * (most_chunk_rows + 4) + 4 * 256 + 12 <=
              machine::partial_bytes);

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

// Brings rows of a cache. Where the copy engine does not, lanes take one row after the other and pad it.
__device__ inline uint32_t bring_cache(const AttentionShape& shape, unsigned char* to, const __half* from,
                                       uint32_t rows, uint64_t* barrier) {
  if (shape.bulk != 0) return bring_bytes(to, from, rows * shape.row_bytes, barrier, true);
#pragma unroll 1
  for (uint32_t row = ptx::lane_number(); row < rows; row += 32) {
    const __half* source = from + static_cast<uint64_t>(row) * shape.head_size;
    auto* halves = reinterpret_cast<__half2*>(to + row * shape.row_bytes);
#pragma unroll 1
    for (uint32_t i = 0; i < shape.row_bytes / 4; ++i) {
      halves[i] =
          2 * i < shape.head_size ? __halves2half2(source[2 * i], source[2 * i + 1]) : __half2half2(__half(0.0f));
    }
  }
  return 0;
}

// Brings the rows of a chunk that lie in the cache, those before `position`.
__device__ inline uint32_t bring_rows(const TileSlot& tile, const AttentionShape& shape, uint32_t chunk,
                                      uint32_t position, unsigned char* buffer, uint64_t* barrier) {
  const uint32_t begin = chunk_begin(shape, chunk);
  const uint32_t rows = min(shape.chunk_rows, position - begin);
  const uint64_t first = static_cast<uint64_t>(begin) * shape.head_size;
  return bring_cache(shape, buffer + shape.key_rows, input<__half>(tile, isa::attention::k_cache) + first, rows,
                     barrier) +
         bring_cache(shape, buffer + shape.value_rows, input<__half>(tile, isa::attention::v_cache) + first, rows,
                     barrier);
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
  // The position beside the copies is an ordinary store, which only an ordinary arrival releases.
  if (bulk) ptx::async_copies_wait();
  ptx::barrier_arrive(barrier);
#endif
}

// Brings in a tile's units, a chunk each; `begin_load` waits for the next buffer, `wait` for the tile's counters.
// `expected` is the position of the tile before: usually this one's too, so that the first rows are asked for before it
// has come. False when the block is leaving.
template <class BeginLoad, class Wait>
__device__ inline bool bring_attention(const TileSlot& tile, const InputLoads& inputs, int32_t& expected,
                                       BeginLoad begin_load, Wait wait) {
  const AttentionShape shape = attention_shape(tile);
  if (!begin_load()) return false;
  const bool reached = wait();
  if (shape.bulk != 0) ptx::fence_copy_engine_global();
  // Whatever stands in the tensor, it does not say that the block is leaving.
  const int32_t position = reached ? max(*input<int32_t>(tile, isa::attention::position), -1) : no_position;
  uint32_t chunks = 1;
  for (uint32_t first_head = 0; first_head < shape.group; first_head += shape.heads) {
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const bool first = first_head + chunk == 0;
      if (!first && !begin_load()) return false;
      unsigned char* buffer = machine::activation_buffer(inputs.buffer());
      uint64_t* barrier = &shared().input_full[inputs.buffer()];
      if (shape.bulk != 0) ptx::fence_copy_engine_shared();
      uint32_t bytes = 0;
      if (chunk == 0 && reached) bytes = bring_heads(tile, shape, buffer, barrier);
      bool missing = true;
      if (first && reached && shape.bulk != 0 && chunk_count(tile, shape, expected) != 0) {
        bytes += bring_rows(tile, shape, chunk, static_cast<uint32_t>(expected), buffer, barrier);
        missing = position != expected;
      }
      if (first) chunks = chunk_count(tile, shape, position);
      // Where the guess was wrong, its rows are brought again: the same bytes to the same places.
      if (missing && chunks != 0)
        bytes += bring_rows(tile, shape, chunk, static_cast<uint32_t>(position), buffer, barrier);
      if (ptx::lane_number() == 0) shared().position[inputs.buffer()] = position;
      end_load(barrier, bytes, shape.bulk != 0);
    }
    if (chunks == 0) break;
  }
  expected = position;
  return reached;
}

// ---- consumer warps -------------------------------------------------------------------------------------------------

constexpr float largest_half = 65504.0f;
__device__ inline __half saturate_to_half(float value) {
  return __float2half_rn(fminf(fmaxf(value, -largest_half), largest_half));
}

// One warp: rotary(norm(from)) * factor, each element given to store(i, element).
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
    store(i, (low * angle.x - high * angle.y) * factor);
    store(i + half, (high * angle.x + low * angle.y) * factor);
  }
}

// A chunk as consumers see it, and all else they need: pointers into shared memory.
struct Chunk {
  const AttentionShape& shape;
  const AttentionRoom& room;
  unsigned char* shared_room;  // the partial buffer
  unsigned char* buffer;       // the activation buffer
  uint32_t first_head, heads;
  uint32_t rows;  // the newest included
  bool newest;    // the last row is the newest
  bool first, last;

  __device__ __half* key(uint32_t row) const {
    return reinterpret_cast<__half*>(buffer + shape.key_rows + row * shape.row_bytes);
  }
  __device__ __half* value(uint32_t row) const {
    return reinterpret_cast<__half*>(buffer + shape.value_rows + row * shape.row_bytes);
  }
  // Row `row` of an operand's rounded half, and of what rounding left.
  __device__ __half* operand(uint32_t at, uint32_t row_bytes, uint32_t row) const {
    return reinterpret_cast<__half*>(shared_room + at + row * row_bytes);
  }
  __device__ float* floats(uint32_t at) const { return reinterpret_cast<float*>(shared_room + at); }
};

// Stores `value` as a pair of f16, `apart` halves from each other.
__device__ inline void store_pair(__half* to, uint32_t apart, float value) {
  const __half rounded = saturate_to_half(value);
  to[0] = rounded;
  to[apart] = __float2half_rn(value - __half2float(rounded));
}

// Prepares the queries and, with the first heads, the newest row. Heads, key and value are dealt to the warps in turn.
__device__ inline void prepare_heads(const TileSlot& tile, const Chunk& chunk) {
  const AttentionShape& shape = chunk.shape;
  const float epsilon = __uint_as_float(tile.record.parameter[isa::attention::epsilon]);
  const float scale = __uint_as_float(tile.record.parameter[isa::attention::scale]);
  const auto floats = [&](uint32_t at) { return reinterpret_cast<const float*>(chunk.buffer + at); };
  const auto* angles = reinterpret_cast<const float2*>(chunk.buffer + shape.rotation);
  const uint32_t apart = chunk.heads * query_bytes(shape.row_bytes) / 2;
  __half* newest_key = chunk.operand(chunk.room.newest_key, 0, 0);
  __half* newest_value = chunk.operand(chunk.room.newest_value, 0, 0);
  const uint32_t padded = shape.row_bytes / 2;
#pragma unroll 1
  for (uint32_t job = consumer_warp(); job < chunk.heads + 2; job += machine::consumer_warps) {
    const uint32_t lane = ptx::lane_number();
    const bool query = job < chunk.heads;
    __half* to = query                ? chunk.operand(chunk.room.query, query_bytes(shape.row_bytes), job)
                 : job == chunk.heads ? newest_key
                                      : newest_value;
    // Elements that pad a row are zeros in queries and keys; those of values are not looked at.
    for (uint32_t i = shape.head_size + lane; i < padded; i += 32) {
      to[i] = __half(0.0f);
      if (query) to[i + apart] = __half(0.0f);
    }
    if (job == chunk.heads + 1) {
      for (uint32_t i = lane; i < shape.head_size; i += 32) to[i] = saturate_to_half(floats(shape.value)[i]);
      continue;
    }
    const uint32_t norm = query ? isa::attention::q_norm : isa::attention::k_norm;
    prepare_head(query ? floats(0) + (chunk.first_head + job) * shape.head_size : floats(shape.key),
                 machine::operand_present(tile, norm) ? floats(query ? shape.q_norm : shape.k_norm) : nullptr, angles,
                 shape.head_size, epsilon, query ? scale : 1.0f, [&](uint32_t i, float value) {
                   if (query) {
                     store_pair(to + i, apart, value);
                   } else {
                     to[i] = saturate_to_half(value);
                   }
                 });
  }
}

// Puts the newest row behind the chunk's rows from the cache, and zeros behind it up to a multiple of 16 rows: weights
// of zero do not undo what is no number.
__device__ inline void complete_rows(const Chunk& chunk) {
  const AttentionShape& shape = chunk.shape;
  const uint32_t pairs = shape.row_bytes / 4;
  const uint32_t end = (chunk.rows + depth - 1) / depth * depth;
#pragma unroll 1
  for (uint32_t i = consumer_thread(); i < pairs; i += consumer_threads) {
    const auto put = [&](__half* row, uint32_t newest) {
      reinterpret_cast<__half2*>(row)[i] = reinterpret_cast<const __half2*>(chunk.shared_room + newest)[i];
    };
    if (chunk.newest) {
      put(chunk.key(chunk.rows - 1), chunk.room.newest_key);
      put(chunk.value(chunk.rows - 1), chunk.room.newest_value);
    }
#pragma unroll 1
    for (uint32_t row = chunk.rows; row < end; ++row) {
      reinterpret_cast<__half2*>(chunk.value(row))[i] = __half2half2(__half(0.0f));
    }
  }
}

// Four neighbouring halves: two registers of an operand.
__device__ inline uint2 load_four(const __half* at) { return *reinterpret_cast<const uint2*>(at); }

// A warp takes eight rows of the chunk. Lane 4 g + t has head g and rows 2 t and 2 t + 1 of them.
__device__ inline void compute_scores(const Chunk& chunk) {
  const AttentionShape& shape = chunk.shape;
  const uint32_t g = ptx::lane_number() / 4;
  const uint32_t t = ptx::lane_number() % 4;
  // Lanes without a head take the last one's: rows of a product do not mix.
  const __half* query = chunk.operand(chunk.room.query, query_bytes(shape.row_bytes), min(g, chunk.heads - 1)) + 4 * t;
  const uint32_t apart = chunk.heads * query_bytes(shape.row_bytes) / 2;
  const uint32_t steps = shape.row_bytes / (2 * depth);
#pragma unroll 1
  for (uint32_t first = consumer_warp() * 8; first < chunk.rows; first += machine::consumer_warps * 8) {
    float score[4] = {};
    const __half* key = chunk.key(first + g) + 4 * t;
#pragma unroll 2
    for (uint32_t step = 0; step < steps; ++step) {
      const uint2 rounded = load_four(query + step * depth);
      const uint2 rest = load_four(query + apart + step * depth);
      const uint2 k = load_four(key + step * depth);
      ptx::multiply_f16(score, rounded.x, rest.x, rounded.y, rest.y, k.x, k.y);
    }
    if (g >= chunk.heads) continue;
    float* out = chunk.floats(chunk.room.score) + g * score_floats(shape.chunk_rows) + first + 2 * t;
    *reinterpret_cast<float2*>(out) = make_float2(score[0] + score[2], score[1] + score[3]);
  }
}

// Scores become weights relative to the largest so far. A warp a head.
__device__ inline void compute_weights(uint32_t place, const Chunk& chunk) {
  const AttentionShape& shape = chunk.shape;
  const uint32_t lane = ptx::lane_number();
  const uint32_t row_bytes = weight_bytes(shape.chunk_rows);
  const uint32_t end = (chunk.rows + depth - 1) / depth * depth;
  const bool split = machine::operand_present(machine::slot(place), isa::attention::statistics);
#pragma unroll 1
  for (uint32_t head = consumer_warp(); head < chunk.heads; head += machine::consumer_warps) {
    const float* score = chunk.floats(chunk.room.score) + head * score_floats(shape.chunk_rows);
    float* statistic = chunk.floats(chunk.room.statistic) + 3 * head;
    __half* weights = chunk.operand(chunk.room.weight, row_bytes, head);
    const float before = chunk.first ? -INFINITY : statistic[0];
    const float total_before = chunk.first ? 0.0f : statistic[1];
    // At most 64 rows: two a lane.
    const float low = lane < chunk.rows ? score[lane] : -INFINITY;
    const float high = lane + 32 < chunk.rows ? score[lane + 32] : -INFINITY;
    float maximum = fmaxf(before, fmaxf(low, high));
    for (uint32_t offset = 16; offset != 0; offset /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(ptx::full_mask, maximum, offset));
    }
    const float low_weight = lane < chunk.rows ? __expf(low - maximum) : 0.0f;
    const float high_weight = lane + 32 < chunk.rows ? __expf(high - maximum) : 0.0f;
    const uint32_t apart = chunk.heads * row_bytes / 2;
    if (lane < end) store_pair(weights + lane, apart, low_weight);
    if (lane + 32 < end) store_pair(weights + lane + 32, apart, high_weight);
    float total = low_weight + high_weight;
    for (uint32_t offset = 16; offset != 0; offset /= 2) total += __shfl_xor_sync(ptx::full_mask, total, offset);
    const float factor = chunk.first ? 0.0f : __expf(before - maximum);
    total += factor * total_before;
    if (lane != 0) continue;
    statistic[0] = maximum;
    statistic[1] = total;
    statistic[2] = factor;
    if (!chunk.last || !split) continue;
    auto* out =
        machine::operand<float>(machine::slot(place), isa::attention::statistics) + 2 * (chunk.first_head + head);
    machine::store(place, isa::attention::statistics, out, maximum);
    machine::store(place, isa::attention::statistics, out + 1, total);
  }
}
static_assert(most_chunk_rows <= 64, "compute_weights gives a lane two rows");

// Adds the weighted values; after the last chunk the sums go out. A warp takes eight elements of every head; lane
// 4 g + t has head g and elements 2 t and 2 t + 1 of them.
__device__ inline void add_values(uint32_t place, const Chunk& chunk) {
  const AttentionShape& shape = chunk.shape;
  const uint32_t g = ptx::lane_number() / 4;
  const uint32_t t = ptx::lane_number() % 4;
  const uint32_t row_bytes = weight_bytes(shape.chunk_rows);
  const __half* weights = chunk.operand(chunk.room.weight, row_bytes, min(g, chunk.heads - 1)) + 2 * t;
  const uint32_t apart = chunk.heads * row_bytes / 2;
  const float* statistic = chunk.floats(chunk.room.statistic) + 3 * min(g, chunk.heads - 1);
  const bool split = machine::operand_present(machine::slot(place), isa::attention::statistics);
#pragma unroll 1
  for (uint32_t first = consumer_warp() * 8; first < shape.head_size; first += machine::consumer_warps * 8) {
    float sum[4] = {};
#pragma unroll 2
    for (uint32_t row = 0; row < chunk.rows; row += depth) {
      uint32_t value[2];
      ptx::load_transposed(value, chunk.value(row + ptx::lane_number() % depth) + first);
      const auto word = [&](uint32_t at) { return *reinterpret_cast<const uint32_t*>(weights + at); };
      ptx::multiply_f16(sum, word(row), word(row + apart), word(row + 8), word(row + 8 + apart), value[0], value[1]);
    }
    if (g >= chunk.heads) continue;
    float2* sums =
        reinterpret_cast<float2*>(chunk.floats(chunk.room.sum) + g * sum_floats(shape.row_bytes) + first) + t;
    float2 total = make_float2(sum[0] + sum[2], sum[1] + sum[3]);
    if (!chunk.first) {
      total.x = fmaf(sums->x, statistic[2], total.x);
      total.y = fmaf(sums->y, statistic[2], total.y);
    }
    if (!chunk.last) {
      *sums = total;
      continue;
    }
    if (first + 2 * t >= shape.head_size) continue;
    const float factor = split ? 1.0f : __fdividef(1.0f, statistic[1]);
    auto* out = machine::operand<float>(machine::slot(place), isa::attention::out) +
                (chunk.first_head + g) * shape.head_size + first + 2 * t;
    machine::store(place, isa::attention::out, out, total.x * factor);
    machine::store(place, isa::attention::out, out + 1, total.y * factor);
  }
}

// The tile that holds the newest position adds its row to the caches.
__device__ inline void append_row(const TileSlot& tile, const Chunk& chunk, uint32_t position) {
  const uint64_t first = static_cast<uint64_t>(position) * chunk.shape.head_size;
  for (uint32_t i = consumer_thread(); i < chunk.shape.head_size; i += consumer_threads) {
    machine::operand<__half>(tile, isa::attention::k_cache)[first + i] = chunk.operand(chunk.room.newest_key, 0, 0)[i];
    machine::operand<__half>(tile, isa::attention::v_cache)[first + i] =
        chunk.operand(chunk.room.newest_value, 0, 0)[i];
  }
}

// A split without positions: its part counts for nothing.
__device__ inline void store_nothing(uint32_t place, const AttentionShape& shape) {
  auto* statistics = machine::operand<float>(machine::slot(place), isa::attention::statistics);
  for (uint32_t i = consumer_thread(); i < 2 * shape.group; i += consumer_threads) {
    machine::store(place, isa::attention::statistics, statistics + i, i % 2 == 0 ? -INFINITY : 0.0f);
  }
}

// One chunk, whose inputs have come. False when the block is leaving.
__device__ inline bool attend(uint32_t place, const Chunk& chunk, uint32_t position) {
  const TileSlot& tile = machine::slot(place);
  if (chunk.first) {
    prepare_heads(tile, chunk);
    if (!synchronize_consumers()) return false;
  }
  complete_rows(chunk);
  if (chunk.newest && !synchronize_consumers()) return false;
  compute_scores(chunk);
  if (!synchronize_consumers()) return false;
  compute_weights(place, chunk);
  if (!synchronize_consumers()) return false;
  add_values(place, chunk);
  if (chunk.newest && chunk.first_head == 0) append_row(tile, chunk, position);
  return true;
}

// The first unit's inputs have come; the partial buffer is the tile's.
__device__ __forceinline__ uint32_t attention(uint32_t place, ConsumerState& state) {
  const TileSlot& tile = machine::slot(place);
  const AttentionShape& shape = attention_shape(tile);
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
    const AttentionRoom room = attention_room(heads, shape.row_bytes, shape.chunk_rows);
#pragma unroll 1
    for (uint32_t number = 0; number < chunks; ++number) {
      if (first_head + number != 0 && !take_inputs(state)) return leaving;
      const uint32_t behind = position - chunk_begin(shape, number);
      const bool newest = behind < shape.chunk_rows;
      const Chunk chunk{shape,
                        room,
                        shared().partial[state.partials & 1],
                        machine::activation_buffer(state.inputs.buffer()),
                        first_head,
                        heads,
                        newest ? behind + 1 : shape.chunk_rows,
                        newest,
                        number == 0,
                        number + 1 == chunks};
      if (!attend(place, chunk, position)) return leaving;
    }
    // The next heads' queries take the place of these.
    if (first_head + shape.heads < shape.group && !synchronize_consumers()) return leaving;
  }
  return done;
}

}  // namespace mkrt::llm
