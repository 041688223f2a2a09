// attention of mkrt.llm: one query position of a group of heads that share keys and values, over a split's share of the
// cache.
//
// The activation warp brings everything into an activation buffer, the cache in chunks of at most 64 rows; the consumer
// warps work from shared memory alone. A chunk takes two passes with one barrier between them: scores and weights, a
// warp eight rows of the cache, and values, a warp eight elements of every head. Weights are relative to the largest
// score of their eight rows, and brought to one measure when the values are added up.
//
// Chunks are dealt to the splits in turn, to one alone while they are few. Where a split's first chunk lies then does
// not depend on the position. Splits leave their parts in the record's workspace, and of the warps that have the same
// elements, one a split, that which comes last joins them: nobody waits for anybody, and no record of its own is
// needed.
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
constexpr uint32_t weight_padding = machine::small_machine ? 8 : 16;

// A tile's shape, worked out by the fetch warp, and where things lie in shared memory: queries, the newest key and
// value, rotation and norms in the activation buffer of the first chunk, rows of the cache in that of every chunk.
struct alignas(16) AttentionShape {
  uint32_t group, head_size, splits, split;
  uint32_t chunk_rows, chunk_shift;               // a power of two, and its logarithm
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

// Rows of the cache that a warp has of a chunk.
constexpr uint32_t warp_rows = 8;
static_assert(most_chunk_rows == machine::consumer_warps * warp_rows);

// What the consumer warps share besides, in a partial buffer: byte places. Weights and statistics of two chunks, so
// that a warp may begin the next one while others add up the values of the last.
struct AttentionRoom {
  uint32_t newest_key, newest_value;  // rows of the cache
  uint32_t query;                     // heads rows of rounded queries, then heads rows of what rounding left
  uint32_t weight[2];                 // the same of a chunk's weights
  uint32_t statistic[2];              // of a warp's rows, warps x heads float2: largest score, sum of weights
  uint32_t sum;                       // heads x padded head size f32: values weighted so far
  uint32_t end;
};
__device__ inline uint32_t weight_bytes(uint32_t chunk_rows) { return chunk_rows * 2 + weight_padding; }
__device__ inline uint32_t sum_floats(uint32_t row_bytes) { return row_bytes / 2; }
__device__ inline uint32_t query_bytes(uint32_t row_bytes) { return row_bytes + operand_padding; }
__device__ inline AttentionRoom attention_room(uint32_t heads, uint32_t row_bytes, uint32_t chunk_rows) {
  const uint32_t weights = 2 * heads * weight_bytes(chunk_rows);
  const uint32_t statistics = machine::consumer_warps * heads * 8;
  AttentionRoom room;
  room.newest_key = 0;
  room.newest_value = row_bytes;
  room.query = 2 * row_bytes;
  room.weight[0] = room.query + 2 * heads * query_bytes(row_bytes);
  room.weight[1] = room.weight[0] + weights;
  room.statistic[0] = room.weight[1] + weights;
  room.statistic[1] = room.statistic[0] + statistics;
  room.sum = room.statistic[1] + statistics;
  room.end = room.sum + heads * sum_floats(row_bytes) * 4;
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
  shape.chunk_shift = 31 - __clz(shape.chunk_rows);
  shape.value_rows = shape.key_rows + shape.chunk_rows * shape.row_bytes;
  shape.heads = min(shape.group, most_heads);
  while (attention_room(shape.heads, shape.row_bytes, shape.chunk_rows).end > machine::partial_bytes) --shape.heads;
  const uint32_t lane = ptx::lane_number();
  const bool pieces = lane >= MKRT_RECORD_OPERANDS || tile.address[lane] % 16 == 0 ||
                      lane == isa::attention::position || lane == isa::attention::out ||
                      lane == isa::attention::workspace;
  shape.bulk = __all_sync(ptx::full_mask, pieces) && shape.head_size % depth == 0;
  if (lane == 0) *reinterpret_cast<AttentionShape*>(tile.prepared) = shape;
}
// One head of the largest size and its newest row fit: 256 elements, 64 rows.
static_assert((2 + 2) * (2 * 256 + operand_padding) + 4 * (2 * most_chunk_rows + weight_padding) +
                  2 * machine::consumer_warps * 8 + 4 * 256 <=
              machine::partial_bytes);

// Chunks that one split does alone: a chunk more takes it about as long as to join the parts of several.
constexpr uint32_t chunks_alone = 1;

// Chunks of a context up to `position`.
__device__ inline uint32_t context_chunks(const AttentionShape& shape, uint32_t position) {
  return (position >> shape.chunk_shift) + 1;
}
// Splits that share them.
__device__ inline uint32_t splits_used(const AttentionShape& shape, uint32_t position) {
  const uint32_t chunks = context_chunks(shape, position);
  return chunks <= chunks_alone ? 1 : min(chunks, shape.splits);
}
// Chunks of the cache that a split has at a position; none where the position is outside the cache, a fault.
__device__ inline uint32_t chunk_count(const TileSlot& tile, const AttentionShape& shape, int32_t position) {
  const auto place = static_cast<uint32_t>(position);
  if (place >= tile.record.parameter[isa::attention::context]) return 0;
  const uint32_t chunks = context_chunks(shape, place);
  const uint32_t used = splits_used(shape, place);
  if (shape.split >= used) return 0;
  if (used == 1) return chunks;
  // A division takes as long as a look at shared memory.
  return chunks == used ? 1 : (chunks - shape.split - 1) / used + 1;
}
// First row of a split's chunk where `used` splits share them.
__device__ inline uint32_t chunk_begin(const AttentionShape& shape, uint32_t used, uint32_t chunk) {
  return (chunk * used + shape.split) * shape.chunk_rows;
}

// ---- activation warp ------------------------------------------------------------------------------------------------

// What consumers find instead of a position when the block is leaving.
constexpr int32_t no_position = INT32_MIN;

// The warp copies `bytes`, a multiple of 2, to shared memory; of 16 where `pieces`, and then only starts to.
__device__ inline void bring_bytes(unsigned char* to, const unsigned char* from, uint32_t bytes, bool pieces) {
#if !MKRT_BULK_COPY
  if (pieces) {
    for (uint32_t at = ptx::lane_number() * 16; at < bytes; at += 32 * 16) ptx::async_copy_16(to + at, from + at);
    return;
  }
#endif
  for (uint32_t at = ptx::lane_number() * 2; at < bytes; at += 32 * 2) {
    *reinterpret_cast<uint16_t*>(to + at) = *reinterpret_cast<const uint16_t*>(from + at);
  }
}

// Contiguous bytes of a tile's inputs, and where they go in the activation buffer.
struct Piece {
  const unsigned char* from;
  uint32_t to;
  uint32_t bytes;
};
// Queries, the newest key and value, and what they are prepared by: as many pieces, of which some may be absent.
constexpr uint32_t head_pieces = 6;
__device__ inline Piece head_piece(const TileSlot& tile, const AttentionShape& shape, uint32_t number) {
  // Places follow each other in the order of this list.
  constexpr uint32_t operands = isa::attention::q | isa::attention::k << 4 | isa::attention::v << 8 |
                                isa::attention::rotation << 12 | isa::attention::q_norm << 16 |
                                isa::attention::k_norm << 20;
  const uint32_t operand = operands >> 4 * number & 15;
  Piece piece;
  piece.from = input<unsigned char>(tile, operand);
  piece.to = number == 0 ? 0 : shape.key + (number - 1) * shape.head_bytes;
  piece.bytes = number < head_pieces && machine::operand_present(tile, operand)
                    ? shape.head_size * 4 * (number == 0 ? shape.group : 1)
                    : 0;
  return piece;
}

// Lanes that bring a chunk's rows of the two caches, where the copy engine does: each lane of the others a piece of the
// heads, so that all copies are worked out at once.
constexpr uint32_t key_lane = head_pieces;
constexpr uint32_t value_lane = key_lane + 1;

// Brings queries and the newest key and value with what they are prepared by. Each lane returns its bytes.
__device__ inline uint32_t bring_heads(const TileSlot& tile, const AttentionShape& shape, unsigned char* buffer,
                                       uint64_t* barrier) {
#if MKRT_BULK_COPY
  if (shape.bulk != 0) {
    const Piece piece = head_piece(tile, shape, min(ptx::lane_number(), head_pieces));
    if (piece.bytes != 0) ptx::bulk_copy(buffer + piece.to, piece.from, piece.bytes, barrier);
    return piece.bytes;
  }
#endif
#pragma unroll 1
  for (uint32_t i = 0; i < head_pieces; ++i) {
    const Piece piece = head_piece(tile, shape, i);
    bring_bytes(buffer + piece.to, piece.from, piece.bytes, shape.bulk != 0);
  }
  return 0;
}

// Brings rows of a cache without the copy engine. Where elements pad a row, lanes take one row after the other.
__device__ inline void bring_cache(const AttentionShape& shape, unsigned char* to, const __half* from, uint32_t rows) {
  if (shape.bulk != 0) {
    bring_bytes(to, reinterpret_cast<const unsigned char*>(from), rows * shape.row_bytes, true);
    return;
  }
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
}

// Brings the rows of a chunk that lie in the cache, those before `position`. Each lane returns its bytes.
__device__ inline uint32_t bring_rows(const TileSlot& tile, const AttentionShape& shape, uint32_t chunk,
                                      uint32_t position, unsigned char* buffer, uint64_t* barrier) {
  const uint32_t begin = chunk_begin(shape, splits_used(shape, position), chunk);
  const uint32_t rows = min(shape.chunk_rows, position - begin);
  const uint64_t first = static_cast<uint64_t>(begin) * shape.head_size;
#if MKRT_BULK_COPY
  if (shape.bulk != 0) {
    const uint32_t lane = ptx::lane_number();
    if ((lane != key_lane && lane != value_lane) || rows == 0) return 0;
    const uint32_t cache = lane == key_lane ? isa::attention::k_cache : isa::attention::v_cache;
    const uint32_t bytes = rows * shape.row_bytes;
    ptx::bulk_copy(buffer + (lane == key_lane ? shape.key_rows : shape.value_rows), input<__half>(tile, cache) + first,
                   bytes, barrier);
    return bytes;
  }
#endif
  bring_cache(shape, buffer + shape.key_rows, input<__half>(tile, isa::attention::k_cache) + first, rows);
  bring_cache(shape, buffer + shape.value_rows, input<__half>(tile, isa::attention::v_cache) + first, rows);
  return 0;
}

// The load that all lanes' copies so far belong to is complete when their bytes have arrived.
__device__ inline void end_load(uint64_t* barrier, uint32_t bytes, bool bulk) {
  __syncwarp();
#if MKRT_BULK_COPY
  const uint32_t total = __reduce_add_sync(ptx::full_mask, bytes);
  if (ptx::lane_number() == 0) {
    ptx::barrier_expect(barrier, total);
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
      // Where the guess was wrong, its rows are brought again: the same bytes to the same places, because a split's
      // first chunk begins where it does at every position.
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
  uint32_t used;  // splits that share the context
  uint32_t side;  // which of two places its weights have
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
  // Largest score and sum of weights that warp `warp` found for head `head`.
  __device__ float2& statistic(uint32_t warp, uint32_t head) const {
    return reinterpret_cast<float2*>(shared_room +
                                     (side == 0 ? room.statistic[0] : room.statistic[1]))[warp * heads + head];
  }
  __device__ uint32_t weight() const { return side == 0 ? room.weight[0] : room.weight[1]; }
  // Warps that have rows.
  __device__ uint32_t row_blocks() const { return (rows + warp_rows - 1) / warp_rows; }
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

// The warp that has the chunk's last rows puts the newest behind those from the cache, and zeros behind it: weights of
// zero do not undo what is no number. Nobody else reads this warp's keys; values are read after the next barrier.
__device__ inline void complete_rows(const Chunk& chunk) {
  const AttentionShape& shape = chunk.shape;
  const uint32_t end = chunk.row_blocks() * warp_rows;
#pragma unroll 1
  for (uint32_t i = ptx::lane_number(); i < shape.row_bytes / 4; i += 32) {
    const auto put = [&](__half* row, uint32_t newest) {
      reinterpret_cast<__half2*>(row)[i] = reinterpret_cast<const __half2*>(chunk.shared_room + newest)[i];
    };
    put(chunk.key(chunk.rows - 1), chunk.room.newest_key);
    put(chunk.value(chunk.rows - 1), chunk.room.newest_value);
#pragma unroll 1
    for (uint32_t row = chunk.rows; row < end; ++row) {
      reinterpret_cast<__half2*>(chunk.value(row))[i] = __half2half2(__half(0.0f));
    }
  }
  __syncwarp();
}

// Four neighbouring halves: two registers of an operand.
__device__ inline uint2 load_four(const __half* at) { return *reinterpret_cast<const uint2*>(at); }

// Of four neighbouring lanes, which have the same head.
__device__ inline float largest_of_four(float value) {
  value = fmaxf(value, __shfl_xor_sync(ptx::full_mask, value, 1));
  return fmaxf(value, __shfl_xor_sync(ptx::full_mask, value, 2));
}
__device__ inline float sum_of_four(float value) {
  value += __shfl_xor_sync(ptx::full_mask, value, 1);
  return value + __shfl_xor_sync(ptx::full_mask, value, 2);
}

// What weights are relative to: scores of minus infinity weigh nothing, also where there are no others.
__device__ inline float reference(float largest) { return largest == -INFINITY ? 0.0f : largest; }

// Weights of the chunk's rows, relative to the largest score of the warp's eight. Lane 4 g + t has head g and rows 2 t
// and 2 t + 1 of them.
__device__ inline void compute_weights(const Chunk& chunk) {
  const AttentionShape& shape = chunk.shape;
  const uint32_t warp = consumer_warp();
  if (warp >= chunk.row_blocks()) return;
  // Only where the newest row is are there others than from the cache.
  if (chunk.newest && warp + 1 == chunk.row_blocks()) complete_rows(chunk);
  const uint32_t g = ptx::lane_number() / 4;
  const uint32_t t = ptx::lane_number() % 4;
  const uint32_t first = warp * warp_rows;
  // Lanes without a head take the last one's: rows of a product do not mix.
  const __half* query = chunk.operand(chunk.room.query, query_bytes(shape.row_bytes), min(g, chunk.heads - 1)) + 4 * t;
  const uint32_t query_apart = chunk.heads * query_bytes(shape.row_bytes) / 2;
  const __half* key = chunk.key(first + g) + 4 * t;
  const uint32_t steps = shape.row_bytes / (2 * depth);
  float score[4] = {};
#pragma unroll 4
  for (uint32_t step = 0; step < steps; ++step) {
    const uint2 rounded = load_four(query + step * depth);
    const uint2 rest = load_four(query + query_apart + step * depth);
    const uint2 k = load_four(key + step * depth);
    ptx::multiply_f16(score, rounded.x, rest.x, rounded.y, rest.y, k.x, k.y);
  }
  const uint32_t row = first + 2 * t;
  const float low = row < chunk.rows ? score[0] + score[2] : -INFINITY;
  const float high = row + 1 < chunk.rows ? score[1] + score[3] : -INFINITY;
  const float largest = largest_of_four(fmaxf(low, high));
  const float low_weight = row < chunk.rows ? __expf(low - reference(largest)) : 0.0f;
  const float high_weight = row + 1 < chunk.rows ? __expf(high - reference(largest)) : 0.0f;
  const float total = sum_of_four(low_weight + high_weight);
  if (g >= chunk.heads) return;
  const uint32_t row_bytes = weight_bytes(shape.chunk_rows);
  const __half2 rounded = __floats2half2_rn(low_weight, high_weight);
  const float2 back = __half22float2(rounded);
  auto* weights = reinterpret_cast<__half2*>(chunk.operand(chunk.weight(), row_bytes, g) + row);
  weights[0] = rounded;
  weights[chunk.heads * row_bytes / 4] = __floats2half2_rn(low_weight - back.x, high_weight - back.y);
  if (t == 0) chunk.statistic(warp, g) = make_float2(largest, total);
}

// Of a lane's head, all chunks so far: what the sums of values are relative to.
struct Softmax {
  float largest = -INFINITY;
  float total = 0;
};

// Where a lane's part of a split is: two elements of a head, and what they are relative to. Parts begin after the words
// in which arrivals are counted, at a multiple of 16 bytes.
__device__ inline uint64_t workspace(const TileSlot& tile) {
  return (tile.address[isa::attention::workspace] + 15) & ~uint64_t{15};
}
// Words for each head: a consumer warp has one of those of the first head that it works on at a time.
constexpr uint32_t arrival_words = machine::consumer_warps;
__device__ inline uint32_t* arrivals(const TileSlot& tile, uint32_t first_head) {
  return reinterpret_cast<uint32_t*>(workspace(tile)) + first_head * arrival_words + consumer_warp();
}
__device__ inline float4* part_of(const TileSlot& tile, const AttentionShape& shape, uint32_t split, uint32_t head,
                                  uint32_t element) {
  auto* parts = reinterpret_cast<float4*>(workspace(tile) + shape.group * arrival_words * 4);
  return parts + ((split * shape.group + head) * shape.head_size + element) / 2;
}

__device__ inline void store_values(uint32_t place, const Chunk& chunk, uint32_t head, uint32_t element, float2 sums,
                                    float total) {
  auto* out = machine::operand<float>(machine::slot(place), isa::attention::out) +
              (chunk.first_head + head) * chunk.shape.head_size + element;
  machine::store(place, isa::attention::out, out, __fdividef(sums.x, total));
  machine::store(place, isa::attention::out, out + 1, __fdividef(sums.y, total));
}

// Products of add_values whose operands are on their way at once; more take too many registers.
constexpr uint32_t products_at_once = 4;
static_assert(machine::consumer_warps % products_at_once == 0);

// Adds the weighted values of a chunk; after the last one the sums go out, or into the workspace where there are other
// splits. Lane 4 g + t has head g and of every eight of the warp's elements 2 t and 2 t + 1.
__device__ inline void add_values(uint32_t place, const Chunk& chunk, Softmax& softmax) {
  const TileSlot& tile = machine::slot(place);
  const AttentionShape& shape = chunk.shape;
  const uint32_t g = ptx::lane_number() / 4;
  const uint32_t t = ptx::lane_number() % 4;
  const uint32_t head = min(g, chunk.heads - 1);
  const uint32_t blocks = chunk.row_blocks();
  // What each warp's weights have to be multiplied by, so that all are relative to the largest score of all.
  float factor[machine::consumer_warps];
  float totals[machine::consumer_warps];
  float largest = softmax.largest;
#pragma unroll
  for (uint32_t b = 0; b < machine::consumer_warps; ++b) {
    const float2 statistic = b < blocks ? chunk.statistic(b, head) : make_float2(-INFINITY, 0.0f);
    factor[b] = statistic.x;
    totals[b] = statistic.y;
    largest = fmaxf(largest, statistic.x);
  }
  const float before = chunk.first ? 0.0f : __expf(softmax.largest - reference(largest));
  float total = softmax.total * before;
#pragma unroll
  for (uint32_t b = 0; b < machine::consumer_warps; ++b) {
    factor[b] = __expf(factor[b] - reference(largest));
    total += factor[b] * totals[b];
  }
  softmax.largest = largest;
  softmax.total = total;

  const uint32_t row_bytes = weight_bytes(shape.chunk_rows);
  const __half* weights = chunk.operand(chunk.weight(), row_bytes, head) + 2 * t;
  const uint32_t apart = chunk.heads * row_bytes / 2;
#pragma unroll 1
  for (uint32_t first = consumer_warp() * 8; first < shape.head_size; first += machine::consumer_warps * 8) {
    float2* kept = reinterpret_cast<float2*>(reinterpret_cast<float*>(chunk.shared_room + chunk.room.sum) +
                                             head * sum_floats(shape.row_bytes) + first) +
                   t;
    float2 sums = make_float2(0, 0);
    if (!chunk.first) sums = make_float2(kept->x * before, kept->y * before);
#pragma unroll
    for (uint32_t base = 0; base < machine::consumer_warps; base += products_at_once) {
      if (base >= blocks) break;
      // What lies behind the last rows may be no number.
      uint32_t value[products_at_once / 2][2] = {};
      uint32_t rounded[products_at_once];
      uint32_t rest[products_at_once];
#pragma unroll
      for (uint32_t i = 0; i < products_at_once; ++i) {
        const bool there = base + i < blocks;
        if (i % 2 == 0 && there) {
          const uint32_t row = (base + i) * warp_rows + ptx::lane_number() % (2 * warp_rows);
          ptx::load_transposed(value[i / 2], chunk.value(row) + first);
        }
        const auto* word = reinterpret_cast<const uint32_t*>(weights + (base + i) * warp_rows);
        rounded[i] = there ? word[0] : 0;
        rest[i] = there ? word[apart / 2] : 0;
      }
#pragma unroll
      for (uint32_t i = 0; i < products_at_once; ++i) {
        float product[4] = {};
        ptx::multiply_f16_short(product, rounded[i], rest[i], base + i < blocks ? value[i / 2][i % 2] : 0);
        sums.x = fmaf(factor[base + i], product[0] + product[2], sums.x);
        sums.y = fmaf(factor[base + i], product[1] + product[3], sums.y);
      }
    }
    if (g >= chunk.heads) continue;
    const uint32_t element = first + 2 * t;
    if (!chunk.last) {
      *kept = sums;
    } else if (element >= shape.head_size) {
      continue;
    } else if (chunk.used == 1) {
      store_values(place, chunk, g, element, sums, total);
    } else {
      *part_of(tile, shape, shape.split, chunk.first_head + g, element) = make_float4(sums.x, sums.y, largest, total);
    }
  }
}

// Parts of an element that are on their way at once.
constexpr uint32_t parts_at_once = 8;

// Joins the splits' parts of the warp's elements: the same lanes as in add_values. In the order of the splits,
// whichever came last, so that results do not depend on it.
__device__ inline void join_parts(uint32_t place, const Chunk& chunk) {
  const TileSlot& tile = machine::slot(place);
  const AttentionShape& shape = chunk.shape;
  const uint32_t g = ptx::lane_number() / 4;
  if (g >= chunk.heads) return;
#pragma unroll 1
  for (uint32_t element = consumer_warp() * 8 + ptx::lane_number() % 4 * 2; element < shape.head_size;
       element += machine::consumer_warps * 8) {
    float2 sums = make_float2(0, 0);
    Softmax softmax;
#pragma unroll 1
    for (uint32_t first = 0; first < chunk.used; first += parts_at_once) {
      float4 part[parts_at_once];
      float largest = softmax.largest;
#pragma unroll
      for (uint32_t s = 0; s < parts_at_once; ++s) {
        part[s] = make_float4(0, 0, -INFINITY, 0);
        if (first + s < chunk.used) part[s] = *part_of(tile, shape, first + s, chunk.first_head + g, element);
      }
#pragma unroll
      for (uint32_t s = 0; s < parts_at_once; ++s) largest = fmaxf(largest, part[s].z);
      const float before = __expf(softmax.largest - reference(largest));
      sums.x *= before;
      sums.y *= before;
      softmax.total *= before;
      softmax.largest = largest;
#pragma unroll
      for (uint32_t s = 0; s < parts_at_once; ++s) {
        const float factor = __expf(part[s].z - reference(largest));
        sums.x = fmaf(factor, part[s].x, sums.x);
        sums.y = fmaf(factor, part[s].y, sums.y);
        softmax.total = fmaf(factor, part[s].w, softmax.total);
      }
    }
    store_values(place, chunk, g, element, sums, softmax.total);
  }
}

// The warp's part is in the workspace. Of the warps that have the same elements of the other splits, the last to come
// here joins all parts. The words are zero in a new session, and again after each record: an increment wraps around.
__device__ inline void arrive_and_join(uint32_t place, const Chunk& chunk) {
  if (consumer_warp() * 8 >= chunk.shape.head_size) return;
  __syncwarp();
  uint32_t before = 0;
  // Release: the warp's part, which lanes before the warp's barrier wrote, is there for whoever joins. Acquire: so are
  // the others' for this warp, if it is the last.
  if (ptx::lane_number() == 0) {
    before = ptx::fetch_increment_acq_rel_gpu(arrivals(machine::slot(place), chunk.first_head), chunk.used - 1);
  }
  if (__shfl_sync(ptx::full_mask, before, 0) != chunk.used - 1) return;
  __syncwarp();
  join_parts(place, chunk);
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

// One chunk, whose inputs have come. False when the block is leaving.
__device__ inline bool attend(uint32_t place, const Chunk& chunk, uint32_t position, Softmax& softmax) {
  const TileSlot& tile = machine::slot(place);
  if (chunk.first) {
    prepare_heads(tile, chunk);
    if (!synchronize_consumers()) return false;
  }
  compute_weights(chunk);
  if (!synchronize_consumers()) return false;
  add_values(place, chunk, softmax);
  if (chunk.last && chunk.used != 1) arrive_and_join(place, chunk);
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
  const uint32_t used = splits_used(shape, position);
#pragma unroll 1
  for (uint32_t first_head = 0; first_head < shape.group; first_head += shape.heads) {
    const uint32_t heads = min(shape.heads, shape.group - first_head);
    const AttentionRoom room = attention_room(heads, shape.row_bytes, shape.chunk_rows);
    Softmax softmax;
#pragma unroll 1
    for (uint32_t number = 0; number < chunks; ++number) {
      if (first_head + number != 0 && !take_inputs(state)) return leaving;
      const uint32_t behind = position - chunk_begin(shape, used, number);
      const bool newest = behind < shape.chunk_rows;
      const Chunk chunk{shape,
                        room,
                        shared().partial[state.partials & 1],
                        machine::activation_buffer(state.inputs.buffer()),
                        first_head,
                        heads,
                        newest ? behind + 1 : shape.chunk_rows,
                        used,
                        number & 1,
                        newest,
                        number == 0,
                        number + 1 == chunks};
      if (!attend(place, chunk, position, softmax)) return leaving;
    }
    // The next heads' queries take the place of these. A split without chunks has nothing to do.
    if (chunks != 0 && first_head + shape.heads < shape.group && !synchronize_consumers()) return leaving;
  }
  return done;
}

}  // namespace mkrt::llm
