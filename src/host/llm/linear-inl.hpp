// linear, linear_swiglu and linear_best for one vector target; guard as in vector-inl.hpp.
//
// A tile's weights are read once, from the first byte to the last, for all sequences. Every row and sequence has one
// vector of partial sums, to which products are added in the order of the columns: a sequence's result depends neither
// on how many others there are nor on how the work is cut below.
#if defined(MKRT_HOST_LLM_LINEAR_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MKRT_HOST_LLM_LINEAR_INL_HPP
#undef MKRT_HOST_LLM_LINEAR_INL_HPP
#else
#define MKRT_HOST_LLM_LINEAR_INL_HPP
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "host/llm/numbers.hpp"
#include "host/llm/scratch.hpp"
#include "host/llm/slices.hpp"
#include "host/llm/vector-inl.hpp"
#include "mkrt_isa/llm.hpp"

HWY_BEFORE_NAMESPACE();
namespace mkrt::host::llm {
namespace HWY_NAMESPACE {

// Packed weights: blocks of 8 rows x 32 columns of bf16, row after row.
constexpr size_t block_rows = 8;
constexpr size_t block_columns = 32;
constexpr size_t row_bytes = block_columns * 2;
constexpr size_t block_bytes = block_rows * row_bytes;

// A row of a block is `pieces` times two vectors of floats: the even and the odd columns of 2 * lanes neighbours.
constexpr size_t pieces = block_columns / (2 * lanes);

struct LinearInput {
  Slice x;
  Slice norm;
  Slice weight;
  size_t columns;
  size_t column_blocks;
  size_t batch;
  size_t rows;  // of the tile
  float epsilon;
};

// All three opcodes have these operands and parameters, at numbers of their own.
template <class Operand, class Parameter>
LinearInput linear_input(const mkrt_host_tile* tile, Operand x, Operand norm, Operand weight, Parameter columns,
                         Parameter batch, Parameter tile_rows, Parameter epsilon) {
  LinearInput in;
  in.x = read_slice(tile, x, sizeof(float));
  in.norm = read_slice(tile, norm, sizeof(float));
  in.weight = read_slice(tile, weight, sizeof(uint16_t));
  in.columns = parameter_u32(tile, columns);
  in.column_blocks = round_up(in.columns, block_columns) / block_columns;
  in.batch = std::min<size_t>(parameter_u32(tile, batch), max_batch);
  in.rows = parameter_u32(tile, tile_rows);
  in.epsilon = parameter_f32(tile, epsilon);
  return in;
}

// Columns 32 * block and on of a row of `count` floats, zeros where it ends.
HWY_INLINE void load_columns(const std::byte* row, size_t count, size_t block, FloatVector (&out)[2 * pieces]) {
  const size_t first = block * block_columns;
  if (first + block_columns <= count) {
    for (size_t i = 0; i < 2 * pieces; ++i) out[i] = load_floats(row + (first + i * lanes) * sizeof(float));
    return;
  }
  alignas(64) float padded[block_columns] = {};
  if (first < count) std::memcpy(padded, row + first * sizeof(float), (count - first) * sizeof(float));
  for (size_t i = 0; i < 2 * pieces; ++i) out[i] = hn::Load(Floats(), padded + i * lanes);
}

// 1 / sqrt(mean of squares + epsilon) of a sequence's input.
HWY_INLINE float norm_scale(const LinearInput& in, size_t sequence) {
  const Floats d;
  const size_t count = std::min<size_t>(in.columns, in.x.count);
  FloatVector squares[2 * pieces];
  for (FloatVector& s : squares) s = hn::Zero(d);
  for (size_t block = 0; block * block_columns < count; ++block) {
    FloatVector x[2 * pieces];
    load_columns(in.x.row(sequence), count, block, x);
    for (size_t i = 0; i < 2 * pieces; ++i) squares[i] = hn::MulAdd(x[i], x[i], squares[i]);
  }
  for (size_t i = 1; i < 2 * pieces; ++i) squares[0] = hn::Add(squares[0], squares[i]);
  const float sum = hn::GetLane(hn::SumOfLanes(d, squares[0]));
  return 1.0f / std::sqrt(sum / static_cast<float>(in.columns) + in.epsilon);
}

// Writes the inputs of `count` column blocks in the order in which multiply() reads them: block after block, in each
// sequence after sequence, in each piece after piece its even and its odd columns. All that a chunk needs is then one
// contiguous range, and no two sequences compete for the same lines of a cache.
HWY_NOINLINE void prepare(const LinearInput& in, const float* scales, size_t first, size_t count, float* out) {
  const Floats d;
  const size_t x_count = std::min<size_t>(in.columns, in.x.count);
  for (size_t block = first; block < first + count; ++block) {
    FloatVector norm[2 * pieces];
    if (in.norm.present()) load_columns(in.norm.row(0), std::min<size_t>(in.columns, in.norm.count), block, norm);
    for (size_t sequence = 0; sequence < in.batch; ++sequence, out += block_columns) {
      FloatVector x[2 * pieces];
      load_columns(in.x.row(sequence), x_count, block, x);
      if (in.norm.present()) {
        const FloatVector scale = hn::Set(d, scales[sequence]);
        for (size_t i = 0; i < 2 * pieces; ++i) x[i] = hn::Mul(hn::Mul(x[i], scale), norm[i]);
      }
      for (size_t i = 0; i < pieces; ++i) {
        hn::Store(even_lanes(x[2 * i], x[2 * i + 1]), d, out + 2 * i * lanes);
        hn::Store(odd_lanes(x[2 * i], x[2 * i + 1]), d, out + (2 * i + 1) * lanes);
      }
    }
  }
}

// Calls work(0) to work(count - 1), each with its number as a constant, so that arrays of vectors become registers: GCC
// 12 unrolls ordinary loops too late for that, and moved all sums through the stack at each end of multiply().
template <size_t count, class Work>
HWY_INLINE void unrolled(const Work& work) {
  [&]<size_t... i>(std::index_sequence<i...>)
      HWY_ATTR { (work(std::integral_constant<size_t, i>()), ...); }(std::make_index_sequence<count>());
}

// Adds the products of `count` column blocks with row_count rows and sequence_count sequences to their partial sums.
// `weight` points at the first of the rows in the first block, `x` at the first of the sequences; x_stride floats lie
// between a sequence's inputs for one block and the next; a sequence's sums are 8 rows of `lanes`.
template <size_t row_count, size_t sequence_count>
HWY_NOINLINE void multiply(const std::byte* HWY_RESTRICT weight, size_t count, const float* HWY_RESTRICT x,
                           size_t x_stride, float* HWY_RESTRICT sums) {
  constexpr Floats d;
  const WordVector high_half = hn::Set(Words(), 0xffff0000u);
  FloatVector sum[sequence_count * row_count];
  unrolled<sequence_count * row_count>(
      [&](auto i) HWY_ATTR { sum[i] = hn::Load(d, sums + (i / row_count * block_rows + i % row_count) * lanes); });
  for (; count > 0; --count, weight += block_bytes, x += x_stride) {
    unrolled<2 * pieces>([&](auto half) HWY_ATTR {
      FloatVector input[sequence_count];
      unrolled<sequence_count>([&](auto s) HWY_ATTR { input[s] = hn::Load(d, x + s * block_columns + half * lanes); });
      unrolled<row_count>([&](auto r) HWY_ATTR {
        // A bf16 number is the upper half of a float; columns are in little-endian order.
        const WordVector pair = load_words(weight + r * row_bytes + half / 2 * lanes * sizeof(uint32_t));
        const WordVector bits = half % 2 == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, high_half);
        unrolled<sequence_count>([&](auto s) HWY_ATTR {
          sum[s * row_count + r] = hn::MulAdd(hn::BitCast(d, bits), input[s], sum[s * row_count + r]);
        });
      });
    });
  }
  unrolled<sequence_count * row_count>(
      [&](auto i) HWY_ATTR { hn::Store(sum[i], d, sums + (i / row_count * block_rows + i % row_count) * lanes); });
}

// multiply() for all 8 rows of `sequence_count` sequences: at once where there are registers for 8 sums a sequence and
// 8 more, otherwise one half after the other.
template <size_t sequence_count>
HWY_INLINE void multiply_rows(const std::byte* weight, size_t count, const float* x, size_t x_stride, float* sums) {
  constexpr size_t at_once = sequence_count * 8 <= registers - 8 ? 8 : 4;
  for (size_t r = 0; r < block_rows; r += at_once) {
    multiply<at_once, sequence_count>(weight + r * row_bytes, count, x, x_stride, sums + r * lanes);
  }
}

// Sequences that are multiplied first: as many as registers hold sums for with all 8 rows. This group brings the
// weights from memory, and only a read of byte after byte keeps the processor's prefetching busy; halves took half
// again as long.
constexpr size_t first_group = registers == 32 ? 3 : 1;

// multiply() for all rows and sequences.
HWY_INLINE void multiply_batch(const std::byte* weight, size_t count, const float* x, size_t batch, float* sums) {
  const size_t x_stride = batch * block_columns;
  constexpr size_t sequence_sums = block_rows * lanes;
  size_t s = 0;
  if (batch >= first_group) {
    multiply_rows<first_group>(weight, count, x, x_stride, sums);
    s = first_group;
  }
  for (; batch - s >= 3; s += 3) {
    multiply_rows<3>(weight, count, x + s * block_columns, x_stride, sums + s * sequence_sums);
  }
  x += s * block_columns;
  sums += s * sequence_sums;
  switch (batch - s) {
    case 2: return multiply_rows<2>(weight, count, x, x_stride, sums);
    case 1: return multiply_rows<1>(weight, count, x, x_stride, sums);
    default: return;
  }
}

// Column blocks that several groups of sequences read one after the other: 16 KiB of weights, half of a first cache.
// With 8 blocks, 16 sequences took 1.2 times as long; 64 changed nothing.
constexpr size_t chunk_blocks = 32;

// Makes the inputs of all columns ready in scratch.x, unless the worker's last tiles left them there. Returns false
// where they are too many; scratch.scales is ready in any case.
HWY_INLINE bool prepare_all(const mkrt_host_tile* tile, const LinearInput& in, LinearScratch& scratch) {
  const bool fits = in.column_blocks * in.batch * block_columns <= prepared_floats;
  const PreparedInput wanted{tile->execute_serial, tile->step, tile->record->index, in.x.address, in.norm.address};
  if (fits && scratch.prepared == wanted) return true;
  if (in.norm.present()) {
    for (size_t s = 0; s < in.batch; ++s) scratch.scales[s] = norm_scale(in, s);
  }
  scratch.prepared = fits ? wanted : PreparedInput{};
  if (fits) prepare(in, scratch.scales, 0, in.column_blocks, scratch.x);
  return fits;
}

// Column blocks of row block `row_block` that the weight operand holds; all, unless a limit cuts it.
HWY_INLINE size_t weight_blocks(const LinearInput& in, size_t row_block) {
  const size_t held = in.weight.count * sizeof(uint16_t) / block_bytes;
  const size_t before = row_block * in.column_blocks;
  return held <= before ? 0 : std::min(held - before, in.column_blocks);
}

// Computes W x for blocks of 8 rows, the first `row_blocks` of the tile, and gives each to
// finish(row block, results as [sequence][8]).
template <class Finish>
HWY_INLINE void for_each_row_block(const mkrt_host_tile* tile, const LinearInput& in, size_t row_blocks,
                                   Finish& finish) {
  LinearScratch& scratch = static_cast<Scratch*>(tile->scratch)->linear;
  const bool prepared = prepare_all(tile, in, scratch);
  const size_t strip = prepared ? 1 : strip_blocks;
  // One group of sequences needs no second look at the weights, so that nothing is gained by chunks.
  const size_t chunk = prepared && in.batch <= first_group ? in.column_blocks : chunk_blocks;
  const size_t block_sums = in.batch * block_rows * lanes;
  for (size_t first_row = 0; first_row < row_blocks; first_row += strip) {
    const size_t strip_rows = std::min(strip, row_blocks - first_row);
    std::memset(scratch.sums, 0, strip_rows * block_sums * sizeof(float));
    for (size_t first = 0; first < in.column_blocks; first += chunk) {
      const float* x = scratch.x;
      if (prepared) {
        x += first * in.batch * block_columns;
      } else {
        prepare(in, scratch.scales, first, std::min(chunk, in.column_blocks - first), scratch.x);
      }
      for (size_t r = 0; r < strip_rows; ++r) {
        const size_t held = weight_blocks(in, first_row + r);
        if (held <= first) continue;
        const std::byte* weight = in.weight.row(0) + ((first_row + r) * in.column_blocks + first) * block_bytes;
        multiply_batch(weight, std::min(chunk, held - first), x, in.batch, scratch.sums + r * block_sums);
      }
    }
    for (size_t r = 0; r < strip_rows; ++r) {
      float results[max_batch][block_rows];
      for (size_t s = 0; s < in.batch; ++s) {
        sum_lanes_of_8(scratch.sums + r * block_sums + s * block_rows * lanes, results[s]);
      }
      finish(first_row + r, results);
    }
  }
}

// Blocks of 8 that a tile's outputs take.
HWY_INLINE size_t output_blocks(const Destination& out, size_t rows) {
  return round_up(std::min<uint64_t>(out.count(), rows), block_rows) / block_rows;
}

struct FinishLinear {
  const Destination& out;
  const Slice& bias;
  const Slice& residual;
  size_t batch;

  void operator()(size_t row_block, float (&results)[max_batch][block_rows]) const {
    for (size_t s = 0; s < batch; ++s) {
      for (size_t i = 0; i < block_rows; ++i) {
        const size_t row = row_block * block_rows + i;
        if (bias.present()) results[s][i] += element<float>(bias, 0, row);
        if (residual.present()) results[s][i] += element<float>(residual, s, row);
      }
      out.store(s, row_block * block_rows, results[s], block_rows);
    }
  }
};

uint32_t linear(const mkrt_host_tile* tile) {
  namespace op = isa::llm::linear;
  const LinearInput in =
      linear_input(tile, op::x, op::norm, op::weight, op::columns, op::batch, op::tile_rows, op::epsilon);
  const Destination out(tile, op::out, sizeof(float));
  const Slice bias = read_slice(tile, op::bias, sizeof(float));
  const Slice residual = read_slice(tile, op::residual, sizeof(float));
  FinishLinear finish{out, bias, residual, in.batch};
  for_each_row_block(tile, in, output_blocks(out, in.rows), finish);
  return op::fault_none;
}

struct FinishSwiglu {
  const Destination& out;
  size_t batch;
  float gate[max_batch][block_rows];

  void operator()(size_t row_block, float (&results)[max_batch][block_rows]) {
    if (row_block % 2 == 0) {
      std::memcpy(gate, results, batch * sizeof results[0]);
      return;
    }
    const Floats d;
    alignas(64) float denominator[max_lanes] = {};
    for (size_t s = 0; s < batch; ++s) {
      for (size_t i = 0; i < block_rows; ++i) denominator[i] = -gate[s][i];
      for (size_t i = 0; i < block_rows; i += lanes) {
        const FloatVector e = exponential(hn::Load(d, denominator + i));
        hn::Store(hn::Add(e, hn::Set(d, 1.0f)), d, denominator + i);
      }
      for (size_t i = 0; i < block_rows; ++i) results[s][i] *= gate[s][i] / denominator[i];
      out.store(s, row_block / 2 * block_rows, results[s], block_rows);
    }
  }
};

uint32_t linear_swiglu(const mkrt_host_tile* tile) {
  namespace op = isa::llm::linear_swiglu;
  const LinearInput in =
      linear_input(tile, op::x, op::norm, op::weight, op::columns, op::batch, op::tile_rows, op::epsilon);
  const Destination out(tile, op::out, sizeof(float));
  FinishSwiglu finish{out, in.batch, {}};
  for_each_row_block(tile, in, 2 * output_blocks(out, in.rows / 2), finish);
  return op::fault_none;
}

struct FinishBest {
  const Destination& out;
  size_t batch;
  size_t rows;
  float value[max_batch];
  size_t row[max_batch];
  bool found[max_batch];

  void operator()(size_t row_block, float (&results)[max_batch][block_rows]) {
    const size_t first = row_block * block_rows;
    const size_t count = std::min(block_rows, rows - first);
    for (size_t s = 0; s < batch; ++s) {
      for (size_t i = 0; i < count; ++i) {
        const float result = results[s][i];
        if (std::isnan(result) || (found[s] && result <= value[s])) continue;
        found[s] = true;
        value[s] = result;
        row[s] = first + i;
      }
      out.store(s, first, results[s], block_rows);
    }
  }
};

// A tile of nothing but NaN reports -infinity at its first row.
uint32_t linear_best(const mkrt_host_tile* tile) {
  namespace op = isa::llm::linear_best;
  const LinearInput in =
      linear_input(tile, op::x, op::norm, op::weight, op::columns, op::batch, op::tile_rows, op::epsilon);
  const Destination out(tile, op::out, sizeof(float));
  const Destination best_value(tile, op::best_value, sizeof(float));
  const Destination best_index(tile, op::best_index, sizeof(int32_t));
  FinishBest finish{out, in.batch, std::min<size_t>(in.rows, out.count()), {}, {}, {}};
  for (float& value : finish.value) value = -std::numeric_limits<float>::infinity();
  for_each_row_block(tile, in, output_blocks(out, in.rows), finish);

  const uint64_t first_index = parameter_u32(tile, op::first_index) +
                               uint64_t{tile->rank} * parameter_u32(tile, op::rank_index) + tile_number(tile) * in.rows;
  for (size_t s = 0; s < in.batch; ++s) {
    const auto index = static_cast<int32_t>(first_index + finish.row[s]);
    best_value.store(s, 0, &finish.value[s], 1);
    best_index.store(s, 0, &index, 1);
  }
  return op::fault_none;
}

}  // namespace HWY_NAMESPACE
}  // namespace mkrt::host::llm
HWY_AFTER_NAMESPACE();

#endif
