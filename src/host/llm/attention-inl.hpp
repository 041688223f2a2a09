// attention for one vector target; guard as in vector-inl.hpp.
//
// A tile reads its positions' keys and values once for every 8 query heads, 32 positions at a time, and keeps a running
// maximum and sum (online softmax: Milakov and Gimelshein 2018, algorithm 3). Heads are padded with zeros to whole
// vectors inside scratch memory. Where several splits have positions, each leaves its part in the record's workspace,
// and the tile that is done last joins them: no tile waits for another.
#if defined(MKRT_HOST_LLM_ATTENTION_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MKRT_HOST_LLM_ATTENTION_INL_HPP
#undef MKRT_HOST_LLM_ATTENTION_INL_HPP
#else
#define MKRT_HOST_LLM_ATTENTION_INL_HPP
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "host/llm/numbers.hpp"
#include "host/llm/scratch.hpp"
#include "host/llm/slices.hpp"
#include "host/llm/vector-inl.hpp"
#include "mkrt_isa/llm.hpp"

HWY_BEFORE_NAMESPACE();
namespace mkrt::host::llm {
namespace HWY_NAMESPACE {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct AttentionInput {
  Slice rotation;
  Slice k_cache;
  Slice v_cache;
  size_t head_size;
  size_t padded_size;  // head_size in whole vectors
  float scale;
  float epsilon;
};

// Query or key head `head` of `source` with its norm and rotary embedding, padded with zeros to `padded_size`.
HWY_INLINE void rotate_head(const AttentionInput& in, const Slice& source, size_t head, const Slice& norm, float* out) {
  const size_t half = in.head_size / 2;
  for (size_t i = 0; i < in.padded_size; ++i) {
    out[i] = i < in.head_size ? element<float>(source, 0, head * in.head_size + i) : 0.0f;
  }
  if (norm.present()) {
    float squares = 0;
    for (size_t i = 0; i < in.head_size; ++i) squares += out[i] * out[i];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(in.head_size) + in.epsilon);
    for (size_t i = 0; i < in.head_size; ++i) out[i] = out[i] * scale * element<float>(norm, 0, i);
  }
  for (size_t i = 0; i < half; ++i) {
    const float cosine = element<float>(in.rotation, 0, 2 * i);
    const float sine = element<float>(in.rotation, 0, 2 * i + 1);
    const float low = out[i];
    const float high = out[i + half];
    out[i] = low * cosine - high * sine;
    out[i + half] = high * cosine + low * sine;
  }
}

HWY_INLINE void append_row(const Destination& cache, size_t position, const float* values, size_t count) {
  uint16_t row[max_head_size];
  for (size_t i = 0; i < count; ++i) row[i] = f16_of_float(values[i]);
  cache.store(0, position * count, row, count);
}

// Turns rows [first, first + count) of a cache into floats.
HWY_INLINE void load_rows(const AttentionInput& in, const Slice& cache, size_t first, size_t count,
                          float (*out)[max_head_size]) {
  const Floats d;
  const size_t whole = in.head_size / lanes * lanes;
  const std::byte* row = cache.row(0) + first * in.head_size * sizeof(uint16_t);
  for (size_t p = 0; p < count; ++p, row += in.head_size * sizeof(uint16_t)) {
    for (size_t i = 0; i < whole; i += lanes) hn::Store(floats_of_f16(row + i * sizeof(uint16_t)), d, out[p] + i);
    if (whole == in.head_size) continue;
    std::byte rest[max_lanes * sizeof(uint16_t)] = {};
    std::memcpy(rest, row + whole * sizeof(uint16_t), (in.head_size - whole) * sizeof(uint16_t));
    hn::Store(floats_of_f16(rest), d, out[p] + whole);
  }
}

// Running softmax of one query head.
struct Softmax {
  float maximum = -infinity;
  float sum = 0;
};

// scale * q k^T for up to `positions_at_once` keys in scratch.rows.
HWY_INLINE void score(const AttentionInput& in, AttentionScratch& scratch, const float* q, size_t count, float* out) {
  const Floats d;
  for (size_t first = 0; first < count; first += 8) {
    // Keys beyond `count` are whatever the last chunk left; nobody looks at their scores.
    FloatVector sums[8];
    for (FloatVector& sum : sums) sum = hn::Zero(d);
    for (size_t i = 0; i < in.padded_size; i += lanes) {
      const FloatVector query = hn::Load(d, q + i);
      for (size_t p = 0; p < 8; ++p) sums[p] = hn::MulAdd(query, hn::Load(d, scratch.rows[first + p] + i), sums[p]);
    }
    for (size_t p = 0; p < 8; ++p) hn::Store(sums[p], d, scratch.sums + p * lanes);
    sum_lanes_of_8(scratch.sums, out + first);
  }
  for (size_t p = 0; p < count; ++p) out[p] *= in.scale;
}

// Replaces scores by exp(score - maximum), and returns what earlier sums have to be multiplied with.
HWY_INLINE float soften(Softmax& softmax, float* scores, size_t count) {
  const Floats d;
  float maximum = softmax.maximum;
  for (size_t p = 0; p < count; ++p) maximum = scores[p] > maximum ? scores[p] : maximum;
  const float correction = maximum == softmax.maximum ? 1.0f : std::exp(softmax.maximum - maximum);
  // A maximum of -infinity would make NaN of scores that weigh nothing.
  const FloatVector offset = hn::Set(d, maximum == -infinity ? 0.0f : maximum);
  for (size_t p = count; p < positions_at_once; ++p) scores[p] = -infinity;
  FloatVector sum = hn::Zero(d);
  for (size_t p = 0; p < positions_at_once; p += lanes) {
    const FloatVector weight = exponential(hn::Sub(hn::Load(d, scores + p), offset));
    hn::Store(weight, d, scores + p);
    sum = hn::Add(sum, weight);
  }
  softmax.maximum = maximum;
  softmax.sum = softmax.sum * correction + hn::GetLane(hn::SumOfLanes(d, sum));
  return correction;
}

// out = out * correction + weights * values in scratch.rows, for elements [first, first + vectors * lanes) of a head.
template <size_t vectors>
HWY_INLINE void accumulate_elements(const AttentionScratch& scratch, const float* weights, float correction,
                                    size_t count, size_t first, float* out) {
  const Floats d;
  FloatVector sums[vectors];
  for (size_t i = 0; i < vectors; ++i) {
    sums[i] = hn::Mul(hn::Load(d, out + first + i * lanes), hn::Set(d, correction));
  }
  for (size_t p = 0; p < count; ++p) {
    const FloatVector weight = hn::Set(d, weights[p]);
    for (size_t i = 0; i < vectors; ++i) {
      sums[i] = hn::MulAdd(weight, hn::Load(d, scratch.rows[p] + first + i * lanes), sums[i]);
    }
  }
  for (size_t i = 0; i < vectors; ++i) hn::Store(sums[i], d, out + first + i * lanes);
}

// The same for the whole head; 4 vectors at once keep the multipliers busy while a sum waits for itself.
HWY_INLINE void accumulate(const AttentionInput& in, const AttentionScratch& scratch, const float* weights,
                           float correction, size_t count, float* out) {
  size_t i = 0;
  for (; i + 4 * lanes <= in.padded_size; i += 4 * lanes) {
    accumulate_elements<4>(scratch, weights, correction, count, i, out);
  }
  for (; i < in.padded_size; i += lanes) accumulate_elements<1>(scratch, weights, correction, count, i, out);
}

// Attends with up to `heads_at_once` heads, their queries in scratch.q, to positions [first, last).
HWY_NOINLINE void attend(const AttentionInput& in, AttentionScratch& scratch, size_t heads, size_t first, size_t last,
                         Softmax (&softmax)[heads_at_once]) {
  std::memset(scratch.out, 0, heads * sizeof scratch.out[0]);
  for (; first < last; first += positions_at_once) {
    const size_t count = std::min<size_t>(positions_at_once, last - first);
    float corrections[heads_at_once];
    load_rows(in, in.k_cache, first, count, scratch.rows);
    for (size_t h = 0; h < heads; ++h) {
      score(in, scratch, scratch.q[h], count, scratch.weights[h]);
      corrections[h] = soften(softmax[h], scratch.weights[h], count);
    }
    load_rows(in, in.v_cache, first, count, scratch.rows);
    for (size_t h = 0; h < heads; ++h) {
      accumulate(in, scratch, scratch.weights[h], corrections[h], count, scratch.out[h]);
    }
  }
}

// Positions that each split of a sequence at `position` handles.
HWY_INLINE size_t split_size(size_t position, size_t splits) { return (position + splits) / splits; }

// What the splits of one key-value head hand to each other, in the record's workspace: how many of them are done, each
// one's sums of values, each one's maxima and sums of weights.
struct Parts {
  std::byte* base;  // at a multiple of 16 bytes, for which the workspace has room
  size_t group;
  size_t head_size;
  size_t splits;

  // Zero in a new session, and again when the last split is done.
  std::atomic_ref<uint32_t> done() const { return std::atomic_ref(*reinterpret_cast<uint32_t*>(base)); }
  float* sums(size_t split, size_t head) const {
    return reinterpret_cast<float*>(base + 16) + (split * group + head) * head_size;
  }
  Softmax& softmax(size_t split, size_t head) const {
    return reinterpret_cast<Softmax*>(sums(splits, 0))[split * group + head];
  }
};

HWY_INLINE Parts parts_of(const mkrt_host_tile* tile, size_t group, size_t head_size) {
  namespace op = isa::llm::attention;
  const auto address = reinterpret_cast<uintptr_t>(mkrt_host_operand(tile, op::workspace)) +
                       static_cast<uintptr_t>(tile->rank_delta[tile->rank]);
  return {reinterpret_cast<std::byte*>((address + 15) & ~uintptr_t{15}), group, head_size,
          parameter_u32(tile, op::splits)};
}

// Weight of a split whose scores have the maximum `maximum` when the largest of all splits is `largest`. Every score of
// a split may be -infinity, and so may all.
HWY_INLINE float split_weight(float maximum, float largest) {
  return std::exp(maximum - (largest == -infinity ? 0.0f : largest));
}

// Joins the parts of the first `used` splits, in their order.
HWY_NOINLINE void join_parts(const Parts& parts, size_t used, const Destination& out) {
  for (size_t head = 0; head < parts.group; ++head) {
    float largest = -infinity;
    for (size_t s = 0; s < used; ++s) {
      const float maximum = parts.softmax(s, head).maximum;
      largest = maximum > largest ? maximum : largest;
    }
    float sums[max_head_size] = {};
    float total = 0;
    for (size_t s = 0; s < used; ++s) {
      const float weight = split_weight(parts.softmax(s, head).maximum, largest);
      total += weight * parts.softmax(s, head).sum;
      for (size_t i = 0; i < parts.head_size; ++i) sums[i] += weight * parts.sums(s, head)[i];
    }
    for (size_t i = 0; i < parts.head_size; ++i) sums[i] /= total;
    out.store(0, head * parts.head_size, sums, parts.head_size);
  }
}

uint32_t attention(const mkrt_host_tile* tile) {
  namespace op = isa::llm::attention;
  AttentionScratch& scratch = static_cast<Scratch*>(tile->scratch)->attention;
  AttentionInput in;
  in.rotation = read_slice(tile, op::rotation, sizeof(float));
  in.k_cache = read_slice(tile, op::k_cache, sizeof(uint16_t));
  in.v_cache = read_slice(tile, op::v_cache, sizeof(uint16_t));
  in.head_size = std::min<size_t>(parameter_u32(tile, op::head_size), max_head_size);
  in.padded_size = round_up(in.head_size, lanes);
  in.scale = parameter_f32(tile, op::scale);
  in.epsilon = parameter_f32(tile, op::epsilon);

  const uint64_t cache_rows = std::min<uint64_t>(
      {parameter_u32(tile, op::context), in.k_cache.count / in.head_size, in.v_cache.count / in.head_size});
  const int32_t position = element<int32_t>(read_slice(tile, op::position, sizeof(int32_t)), 0, 0);
  if (position < 0 || static_cast<uint64_t>(position) >= cache_rows) return op::fault_position_outside_cache;
  const auto own = static_cast<size_t>(position);
  const size_t per_split = split_size(own, parameter_u32(tile, op::splits));
  const size_t used = own / per_split + 1;
  const size_t split = tile->index[2];
  if (split >= used) return op::fault_none;
  const size_t first = split * per_split;
  const size_t last = std::min(first + per_split, own + 1);

  if (own < last) {
    const Slice v = read_slice(tile, op::v, sizeof(float));
    float* row = scratch.q[0];
    rotate_head(in, read_slice(tile, op::k, sizeof(float)), 0, read_slice(tile, op::k_norm, sizeof(float)), row);
    append_row(Destination(tile, op::k_cache, sizeof(uint16_t)), own, row, in.head_size);
    for (size_t i = 0; i < in.head_size; ++i) row[i] = element<float>(v, 0, i);
    append_row(Destination(tile, op::v_cache, sizeof(uint16_t)), own, row, in.head_size);
  }

  const Slice q = read_slice(tile, op::q, sizeof(float));
  const Slice q_norm = read_slice(tile, op::q_norm, sizeof(float));
  const Destination out(tile, op::out, sizeof(float));
  const size_t group = parameter_u32(tile, op::group);
  const Parts parts = parts_of(tile, group, in.head_size);
  for (size_t head = 0; head < group; head += heads_at_once) {
    const size_t heads = std::min<size_t>(heads_at_once, group - head);
    Softmax softmax[heads_at_once];
    for (size_t h = 0; h < heads; ++h) rotate_head(in, q, head + h, q_norm, scratch.q[h]);
    attend(in, scratch, heads, first, last, softmax);
    for (size_t h = 0; h < heads; ++h) {
      if (used > 1) {
        parts.softmax(split, head + h) = softmax[h];
        std::copy_n(scratch.out[h], in.head_size, parts.sums(split, head + h));
        continue;
      }
      for (size_t i = 0; i < in.head_size; ++i) scratch.out[h][i] /= softmax[h].sum;
      out.store(0, (head + h) * in.head_size, scratch.out[h], in.head_size);
    }
  }
  if (used == 1) return op::fault_none;
  // Release: this split's part is there for whoever joins. Acquire: so are the others' for this tile, if it is the
  // last.
  if (parts.done().fetch_add(1, std::memory_order_acq_rel) + 1 != used) return op::fault_none;
  parts.done().store(0, std::memory_order_relaxed);
  join_parts(parts, used, out);
  return op::fault_none;
}

}  // namespace HWY_NAMESPACE
}  // namespace mkrt::host::llm
HWY_AFTER_NAMESPACE();

#endif
