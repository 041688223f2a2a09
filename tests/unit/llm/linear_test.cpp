// linear, linear_swiglu and linear_best against float64, written from isa/README.md.
#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "fixture.hpp"
#include "mkrt_isa/llm.hpp"

namespace {

using namespace mkrt::test;
using mkrt::host::vector_targets;
namespace llm = mkrt::isa::llm;

constexpr float epsilon = 1e-5f;

// A sum and the sum of its terms' magnitudes, which bounds the error of any order of adding them up.
struct Sum {
  double value = 0;
  double magnitude = 0;
};

// What a matrix of `columns` columns does with `x`.
struct Case {
  size_t columns;
  size_t rows;
  uint32_t batch;
  uint32_t tile_rows;
  bool has_norm;
  Matrix matrix;
  Tensor<uint16_t> weight;
  Tensor<float> x;  // [batch][columns + 3], 2 elements before and 1 after each row belong to nobody
  Tensor<float> norm;

  size_t x_stride() const { return columns + 3; }
  uint32_t tiles() const { return static_cast<uint32_t>((rows + tile_rows - 1) / tile_rows); }
};

// Weights and norm start at odd addresses: a file may have them anywhere.
Case make_case(size_t columns, size_t rows, uint32_t batch, uint32_t tile_rows, bool has_norm) {
  Case c{columns,
         rows,
         batch,
         tile_rows,
         has_norm,
         random_matrix(rows, columns),
         Tensor<uint16_t>(packed_size(rows, columns, tile_rows), 1, 1),
         Tensor<float>((columns + 3) * batch),
         Tensor<float>(columns, 1, 3)};
  pack(c.matrix, tile_rows, c.weight);
  for (uint32_t s = 0; s < batch; ++s) {
    const double scale = std::exp(random_normal());
    for (size_t k = 0; k < columns; ++k) {
      c.x.set(s * c.x_stride() + 2 + k, static_cast<float>(random_normal() * scale));
    }
  }
  fill_random(c.norm);
  return c;
}

// Input k of sequence s, normalized where the case says so.
std::vector<double> inputs(const Case& c, uint32_t s) {
  std::vector<double> out(c.columns);
  double squares = 0;
  for (size_t k = 0; k < c.columns; ++k) {
    out[k] = c.x.at(s * c.x_stride() + 2 + k);
    squares += out[k] * out[k];
  }
  if (!c.has_norm) return out;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(c.columns) + epsilon);
  for (size_t k = 0; k < c.columns; ++k) out[k] *= scale * c.norm.at(k);
  return out;
}

Sum dot(const Case& c, size_t row, const std::vector<double>& x) {
  Sum sum;
  for (size_t k = 0; k < c.columns; ++k) {
    const double term = c.matrix.at(row, k) * x[k];
    sum.value += term;
    sum.magnitude += std::abs(term);
  }
  return sum;
}

// [sequence][row]
std::vector<std::vector<Sum>> products(const Case& c) {
  std::vector<std::vector<Sum>> out(c.batch);
  for (uint32_t s = 0; s < c.batch; ++s) {
    const std::vector<double> x = inputs(c, s);
    for (size_t r = 0; r < c.rows; ++r) out[s].push_back(dot(c, r, x));
  }
  return out;
}

// Rounding errors of n additions grow like sqrt(n); 16 allows for the norm and for unlucky draws.
double tolerance(const Case& c, const Sum& sum) {
  return (16 + 4 * std::sqrt(static_cast<double>(c.columns))) * 0x1p-24 * sum.magnitude + 1e-37;
}

template <class Names>
Record make_record(const Case& c, uint32_t opcode, Names names) {
  Record record(opcode, {c.tiles()});
  record.operand(names.x, c.x, {.offset = 2, .size = c.columns, .rows = c.batch, .row_stride = c.x_stride()})
      .operand(names.weight, c.weight,
               {.size = packed_size(c.tile_rows, c.columns, c.tile_rows),
                .strides = {packed_size(c.tile_rows, c.columns, c.tile_rows)}})
      .parameter(names.columns, static_cast<uint32_t>(c.columns))
      .parameter(names.batch, c.batch)
      .parameter(names.tile_rows, c.tile_rows)
      .parameter(names.epsilon, epsilon);
  if (c.has_norm) record.operand(names.norm, c.norm);
  return record;
}

struct LinearNames {
  uint32_t x = llm::linear::x, norm = llm::linear::norm, weight = llm::linear::weight, columns = llm::linear::columns,
           batch = llm::linear::batch, tile_rows = llm::linear::tile_rows, epsilon = llm::linear::epsilon;
};
struct SwigluNames {
  uint32_t x = llm::linear_swiglu::x, norm = llm::linear_swiglu::norm, weight = llm::linear_swiglu::weight,
           columns = llm::linear_swiglu::columns, batch = llm::linear_swiglu::batch,
           tile_rows = llm::linear_swiglu::tile_rows, epsilon = llm::linear_swiglu::epsilon;
};
struct BestNames {
  uint32_t x = llm::linear_best::x, norm = llm::linear_best::norm, weight = llm::linear_best::weight,
           columns = llm::linear_best::columns, batch = llm::linear_best::batch,
           tile_rows = llm::linear_best::tile_rows, epsilon = llm::linear_best::epsilon;
};

// Outputs [batch][rows] with `margin` elements around every row.
constexpr size_t margin = 5;
struct Output {
  explicit Output(size_t rows_, uint32_t batch_) : rows(rows_), batch(batch_), tensor((rows + 2 * margin) * batch) {}
  size_t stride() const { return rows + 2 * margin; }
  SliceOf slice(uint32_t tile_rows) const {
    return {.offset = margin,
            .size = tile_rows,
            .strides = {tile_rows},
            .limit = rows,
            .rows = batch,
            .row_stride = stride()};
  }
  float at(uint32_t s, size_t row) const { return tensor.at(s * stride() + margin + row); }
  bool margins_intact() const {
    for (uint32_t s = 0; s < batch; ++s) {
      for (size_t i = 0; i < margin; ++i) {
        if (!tensor.untouched(s * stride() + i) || !tensor.untouched((s + 1) * stride() - 1 - i)) return false;
      }
    }
    return true;
  }
  size_t rows;
  uint32_t batch;
  Tensor<float> tensor;
};

void check_linear(const Case& c, bool has_bias, bool has_residual, bool in_place) {
  CAPTURE(c.columns);
  CAPTURE(c.rows);
  CAPTURE(c.batch);
  CAPTURE(c.tile_rows);
  Tensor<float> bias(c.rows);
  fill_random(bias);
  Output residual(c.rows, c.batch);
  for (uint32_t s = 0; s < c.batch; ++s) {
    for (size_t r = 0; r < c.rows; ++r) {
      residual.tensor.set(s * residual.stride() + margin + r, static_cast<float>(random_normal()));
    }
  }
  const std::vector<std::vector<Sum>> expected = products(c);
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Output out(c.rows, c.batch);
    if (in_place) out.tensor = Tensor<float>(residual.tensor.size());
    for (size_t i = 0; in_place && i < out.tensor.size(); ++i) out.tensor.set(i, residual.tensor.at(i));
    Record record = make_record(c, llm::opcode_linear, LinearNames());
    record.operand(llm::linear::out, out.tensor, out.slice(c.tile_rows));
    if (has_bias) {
      record.operand(llm::linear::bias, bias, {.size = c.tile_rows, .strides = {c.tile_rows}, .limit = c.rows});
    }
    if (has_residual) {
      record.operand(llm::linear::residual, in_place ? out.tensor : residual.tensor, residual.slice(c.tile_rows));
    }
    Worker worker(target.isa);
    REQUIRE(worker.run(record) == 0);
    CHECK(out.margins_intact());
    bool close = true;
    for (uint32_t s = 0; s < c.batch; ++s) {
      for (size_t r = 0; r < c.rows; ++r) {
        Sum sum = expected[s][r];
        const double added[2] = {has_bias ? bias.at(r) : 0.0, has_residual ? residual.at(s, r) : 0.0};
        for (double a : added) {
          sum.value += a;
          sum.magnitude += std::abs(a);
        }
        close = close && std::abs(out.at(s, r) - sum.value) <= tolerance(c, sum);
      }
    }
    CHECK(close);
  }
}

TEST_CASE("linear equals W x + bias + residual for any K, N and batch") {
  for (size_t columns : {1, 2, 31, 32, 33, 64, 172, 576, 2048, 8192}) {
    for (uint32_t batch : {1u, 2u, 3u, 4u, 5u, 7u, 16u}) {
      // 8 to 40 rows a tile, the last tile with any number of rows.
      const auto tile_rows = static_cast<uint32_t>(8 * (1 + random_below(columns > 1000 ? 2 : 5)));
      const size_t rows = 1 + random_below(3 * tile_rows);
      const uint64_t options = random_below(8);
      check_linear(make_case(columns, rows, batch, tile_rows, options & 1), options & 2, options & 4, false);
    }
  }
}

// Sizes of models that exist: multiples of nothing in particular.
constexpr size_t model_sizes[] = {172, 576, 640, 896, 2048};
constexpr size_t vocabularies[] = {49152, 128256};

TEST_CASE("linear is right at the sizes of models that exist") {
  // Each size as columns and as rows; which go together differs from run to run.
  const size_t shift = random_below(std::size(model_sizes));
  for (size_t i = 0; i < std::size(model_sizes); ++i) {
    const size_t rows = model_sizes[(i + shift) % std::size(model_sizes)];
    check_linear(make_case(model_sizes[i], rows, 1, 32, true), i % 2 == 0, i % 2 == 1, false);
    check_linear(make_case(model_sizes[i], 172, static_cast<uint32_t>(2 + random_below(15)), 48, i % 2 == 0), false,
                 true, false);
  }
  for (const size_t rows : vocabularies) check_linear(make_case(19, rows, 1, 128, true), true, false, false);
}

TEST_CASE("linear takes every batch size with each of norm, bias and residual") {
  for (uint32_t batch = 1; batch <= 16; ++batch) {
    for (uint32_t options = 0; options < 8; ++options) {
      check_linear(make_case(100, 21, batch, 16, options & 1), options & 2, options & 4, false);
    }
  }
}

TEST_CASE("linear adds to its residual in place") {
  for (uint32_t batch : {1u, 6u, 16u}) check_linear(make_case(172, 45, batch, 24, true), true, true, true);
}

TEST_CASE("linear prepares inputs that do not fit a worker's scratch in chunks") {
  check_linear(make_case(16500, 37, 16, 40, true), true, true, false);
  check_linear(make_case(262200, 9, 1, 16, true), false, false, false);
}

// Runs sequences [first, first + count) of a case alone.
std::vector<float> run_sequences(Worker& worker, const Case& c, uint32_t first, uint32_t count) {
  Output out(c.rows, count);
  Record record = make_record(c, llm::opcode_linear, LinearNames());
  record
      .operand(llm::linear::x, c.x,
               {.offset = 2 + first * c.x_stride(), .size = c.columns, .rows = count, .row_stride = c.x_stride()})
      .operand(llm::linear::out, out.tensor, out.slice(c.tile_rows))
      .parameter(llm::linear::batch, count);
  REQUIRE(worker.run(record) == 0);
  std::vector<float> results;
  for (uint32_t s = 0; s < count; ++s) {
    for (size_t r = 0; r < c.rows; ++r) results.push_back(out.at(s, r));
  }
  return results;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("a sequence's results do not depend on the batch, the order of tiles or what a worker did before") {
  // 16 sequences of 16500 columns are prepared in chunks, one is prepared as a whole.
  for (size_t columns : {345, 16500}) {
    const Case c = make_case(columns, 41, 16, 8, true);
    for (const auto& target : vector_targets()) {
      CAPTURE(std::string(target.name));
      Worker worker(target.isa);
      const std::vector<float> all = run_sequences(worker, c, 0, 16);
      CHECK(same_bits(all, run_sequences(worker, c, 0, 16)));
      CHECK(same_bits(all, [&] {
        Worker fresh(target.isa);
        return run_sequences(fresh, c, 0, 16);
      }()));
      bool same = true;
      for (uint32_t first = 0; first < 16; first += 5) {
        for (uint32_t count : {1u, 4u}) {
          if (first + count > 16) continue;
          worker.next_step();
          const std::vector<float> some = run_sequences(worker, c, first, count);
          same = same && std::memcmp(some.data(), all.data() + first * c.rows, some.size() * sizeof(float)) == 0;
        }
      }
      CHECK(same);
    }
  }
}

TEST_CASE("a worker keeps prepared inputs for one record of one step of one execute only") {
  Case c = make_case(96, 16, 2, 8, true);
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Worker worker(target.isa);
    Output out(c.rows, c.batch);
    Record record = make_record(c, llm::opcode_linear, LinearNames());
    record.operand(llm::linear::out, out.tensor, out.slice(c.tile_rows));
    const auto is_current = [&] {
      const std::vector<std::vector<Sum>> expected = products(c);
      REQUIRE(worker.run(record) == 0);
      for (uint32_t s = 0; s < c.batch; ++s) {
        for (size_t r = 0; r < c.rows; ++r) {
          if (!(std::abs(out.at(s, r) - expected[s][r].value) <= tolerance(c, expected[s][r]))) return false;
        }
      }
      return true;
    };
    CHECK(is_current());
    fill_random(c.x);
    worker.next_step();
    CHECK(is_current());
    fill_random(c.x);
    worker.next_execute();
    CHECK(is_current());
    fill_random(c.x);
    record.get().index = 1;
    CHECK(is_current());
  }
}

TEST_CASE("linear reads zeros where a limit cuts its inputs, and nothing beyond") {
  // Sizes that end inside a block: what lies behind is poisoned, so reading it makes NaN.
  const Case c = make_case(100, 24, 3, 24, true);
  const size_t x_limit = 70;
  const size_t norm_limit = 65;
  const size_t bias_limit = 11;
  const size_t weight_limit = 2 * 4 * 256 + 3 * 256 + 100;  // row blocks 0 and 1, of block 2 three column blocks
  Tensor<float> x(c.x.size());
  for (uint32_t s = 0; s < c.batch; ++s) {
    for (size_t k = 0; k < x_limit; ++k) x.set(s * c.x_stride() + 2 + k, c.x.at(s * c.x_stride() + 2 + k));
  }
  Tensor<float> norm(c.norm.size());
  for (size_t k = 0; k < norm_limit; ++k) norm.set(k, c.norm.at(k));
  Tensor<float> bias(c.rows);
  for (size_t r = 0; r < bias_limit; ++r) bias.set(r, static_cast<float>(r));
  Tensor<uint16_t> weight(c.weight.size());
  for (size_t i = 0; i < weight_limit; ++i) weight.set(i, c.weight.at(i));
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Output out(c.rows, c.batch);
    Record record = make_record(c, llm::opcode_linear, LinearNames());
    record
        .operand(llm::linear::x, x,
                 {.offset = 2, .size = c.columns, .limit = x_limit, .rows = c.batch, .row_stride = c.x_stride()})
        .operand(llm::linear::norm, norm, {.limit = norm_limit})
        .operand(llm::linear::weight, weight, {.limit = weight_limit})
        .operand(llm::linear::bias, bias, {.limit = bias_limit})
        .operand(llm::linear::out, out.tensor, out.slice(c.tile_rows));
    Worker worker(target.isa);
    REQUIRE(worker.run(record) == 0);
    CHECK(out.margins_intact());
    bool close = true;
    for (uint32_t s = 0; s < c.batch; ++s) {
      double squares = 0;
      for (size_t k = 0; k < x_limit; ++k) squares += std::pow(x.at(s * c.x_stride() + 2 + k), 2);
      for (size_t r = 0; r < c.rows; ++r) {
        Sum sum;
        // Of the last row block, only whole blocks of columns are there.
        for (size_t k = 0; k < (r < 16 ? norm_limit : std::min<size_t>(norm_limit, 96)); ++k) {
          const double term = c.matrix.at(r, k) * x.at(s * c.x_stride() + 2 + k) * norm.at(k) /
                              std::sqrt(squares / static_cast<double>(c.columns) + epsilon);
          sum.value += term;
          sum.magnitude += std::abs(term);
        }
        const double b = r < bias_limit ? bias.at(r) : 0;
        sum.value += b;
        sum.magnitude += b;
        close = close && std::abs(out.at(s, r) - sum.value) <= tolerance(c, sum);
      }
    }
    CHECK(close);
  }
}

TEST_CASE("linear_swiglu joins gate and up rows that alternate in eights") {
  for (uint32_t batch : {1u, 3u, 8u, 16u}) {
    for (size_t columns : {33, 576}) {
      const auto tile_rows = static_cast<uint32_t>(16 * (1 + random_below(3)));
      const size_t out_rows = 1 + random_below(3 * tile_rows / 2);
      // Rows of W for whole pairs of blocks.
      Case c = make_case(columns, (out_rows + 7) / 8 * 16, batch, tile_rows, batch % 2 == 1);
      CAPTURE(columns);
      CAPTURE(out_rows);
      CAPTURE(batch);
      CAPTURE(tile_rows);
      const std::vector<std::vector<Sum>> expected = products(c);
      for (const auto& target : vector_targets()) {
        CAPTURE(std::string(target.name));
        Output out(out_rows, batch);
        Record record = make_record(c, llm::opcode_linear_swiglu, SwigluNames());
        record.operand(llm::linear_swiglu::out, out.tensor, out.slice(tile_rows / 2));
        Worker worker(target.isa);
        REQUIRE(worker.run(record) == 0);
        CHECK(out.margins_intact());
        bool close = true;
        for (uint32_t s = 0; s < batch; ++s) {
          for (size_t i = 0; i < out_rows; ++i) {
            const Sum& gate = expected[s][i / 8 * 16 + i % 8];
            const Sum& up = expected[s][i / 8 * 16 + 8 + i % 8];
            const double sigmoid = 1 / (1 + std::exp(-gate.value));
            const double value = gate.value * sigmoid * up.value;
            // The slope of silu is at most 1.1.
            const double allowed = 1.1 * tolerance(c, gate) * std::abs(up.value) +
                                   (std::abs(gate.value * sigmoid) + tolerance(c, gate)) * tolerance(c, up) +
                                   1e-6 * std::abs(value);
            close = close && std::abs(out.at(s, i) - value) <= allowed;
          }
        }
        CHECK(close);
      }
    }
  }
}

TEST_CASE("linear_swiglu is zero for large negative gates and linear for large positive ones") {
  Tensor<float> x{1.0f};
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Tensor<uint16_t> weight(16 * 32);
    for (size_t i = 0; i < weight.size(); ++i) weight.set(i, 0);
    const float gates[8] = {-3e38f, -1000, -200, -90, 90, 200, 1000, 1e30f};
    for (size_t i = 0; i < 8; ++i) {
      weight.set(packed_index(i, 0, 1), static_cast<uint16_t>(std::bit_cast<uint32_t>(gates[i]) >> 16));
      weight.set(packed_index(8 + i, 0, 1), 0x3f80);
    }
    Tensor<float> out(8);
    Record record(llm::opcode_linear_swiglu, {1});
    record.operand(llm::linear_swiglu::x, x)
        .operand(llm::linear_swiglu::weight, weight)
        .operand(llm::linear_swiglu::out, out)
        .parameter(llm::linear_swiglu::columns, 1u)
        .parameter(llm::linear_swiglu::batch, 1u)
        .parameter(llm::linear_swiglu::tile_rows, 16u);
    Worker worker(target.isa);
    REQUIRE(worker.run(record) == 0);
    for (size_t i = 0; i < 8; ++i) {
      const double gate = number_of_bf16(weight.at(packed_index(i, 0, 1)));
      CHECK(std::abs(out.at(i) - (gate > 0 ? gate : 0)) <= std::abs(gate) * 1e-6);
    }
  }
}

void check_linear_best(size_t columns, size_t rows, uint32_t batch, uint32_t tile_rows) {
  CAPTURE(columns);
  CAPTURE(rows);
  CAPTURE(batch);
  const uint32_t first_index = 1000;
  Case c = make_case(columns, rows, batch, tile_rows, true);
  const std::vector<std::vector<Sum>> expected = products(c);
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Output out(rows, batch);
    Tensor<float> best_value(c.tiles() * batch);
    Tensor<int32_t> best_index(c.tiles() * batch);
    const SliceOf best{.size = 1, .strides = {1}, .rows = batch, .row_stride = c.tiles()};
    Record record = make_record(c, llm::opcode_linear_best, BestNames());
    record.operand(llm::linear_best::out, out.tensor, out.slice(tile_rows))
        .operand(llm::linear_best::best_value, best_value, best)
        .operand(llm::linear_best::best_index, best_index, best)
        .parameter(llm::linear_best::first_index, first_index)
        .parameter(llm::linear_best::rank_index, 500u);  // of rank 0: nothing
    Worker worker(target.isa);
    REQUIRE(worker.run(record) == 0);
    CHECK(out.margins_intact());
    bool close = true, chosen = true;
    for (uint32_t s = 0; s < batch; ++s) {
      for (uint32_t t = 0; t < c.tiles(); ++t) {
        size_t best_row = size_t{t} * tile_rows;
        for (size_t r = best_row; r < std::min(rows, (size_t{t} + 1) * tile_rows); ++r) {
          close = close && std::abs(out.at(s, r) - expected[s][r].value) <= tolerance(c, expected[s][r]);
          if (out.at(s, r) > out.at(s, best_row)) best_row = r;
        }
        chosen = chosen && best_value.at(s * c.tiles() + t) == out.at(s, best_row) &&
                 best_index.at(s * c.tiles() + t) == static_cast<int32_t>(first_index + best_row);
      }
    }
    CHECK(close);
    CHECK(chosen);
  }
}

TEST_CASE("linear_best finds each sequence's largest logit and its index") {
  for (uint32_t batch : {1u, 2u, 16u}) check_linear_best(64, 70, batch, 16);
}

TEST_CASE("linear_best is right at the sizes of models that exist") {
  for (const size_t columns : model_sizes) check_linear_best(columns, 1 + random_below(200), 3, 64);
  for (const size_t rows : vocabularies) check_linear_best(21, rows, 1, 128);
}

// Best of one tile whose logits are `logits`.
std::pair<float, int32_t> best_of(const mkrt::host::VectorTarget& target, const std::vector<float>& logits,
                                  uint32_t rank = 0, uint32_t rank_index = 0) {
  const auto tile_rows = static_cast<uint32_t>((logits.size() + 7) / 8 * 8);
  Tensor<float> x{1.0f};
  Tensor<uint16_t> weight(tile_rows * 32);
  for (size_t i = 0; i < weight.size(); ++i) weight.set(i, 0);
  for (size_t r = 0; r < logits.size(); ++r) {
    weight.set(packed_index(r, 0, 1), static_cast<uint16_t>(std::bit_cast<uint32_t>(logits[r]) >> 16));
  }
  Tensor<float> out(tile_rows);
  Tensor<float> value(1);
  Tensor<int32_t> index(1);
  Record record(llm::opcode_linear_best, {1}, rank, rank + 1);
  record.operand(llm::linear_best::x, x)
      .operand(llm::linear_best::weight, weight)
      .operand(llm::linear_best::out, out, {.limit = logits.size()})
      .operand(llm::linear_best::best_value, value)
      .operand(llm::linear_best::best_index, index)
      .parameter(llm::linear_best::columns, 1u)
      .parameter(llm::linear_best::batch, 1u)
      .parameter(llm::linear_best::tile_rows, tile_rows)
      .parameter(llm::linear_best::first_index, 7u)
      .parameter(llm::linear_best::rank_index, rank_index);
  Worker worker(target.isa);
  REQUIRE(worker.run(record) == 0);
  for (size_t i = logits.size(); i < tile_rows; ++i) CHECK(out.untouched(i));
  return {value.at(0), index.at(0)};
}

TEST_CASE("linear_best counts the indices of later ranks from later rows") {
  for (const auto& target : vector_targets()) {
    CHECK(best_of(target, {1, 3, 2}, 0, 1000) == std::pair(3.0f, 8));
    CHECK(best_of(target, {1, 3, 2}, 5, 1000) == std::pair(3.0f, 5008));
    CHECK(best_of(target, {std::numeric_limits<float>::quiet_NaN()}, 2, 8) ==
          std::pair(-std::numeric_limits<float>::infinity(), 23));
  }
}

TEST_CASE("linear_best takes the smallest index of equal logits, and NaN never wins") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    CHECK(best_of(target, {1, 3, 3, 2}) == std::pair(3.0f, 8));
    CHECK(best_of(target, {-1, -3, -3, -2, -1, -4, -5, -6, -1}) == std::pair(-1.0f, 7));
    CHECK(best_of(target, {nan, -5, nan, -4, nan}) == std::pair(-4.0f, 10));
    CHECK(best_of(target, {1, inf, 2, inf}) == std::pair(inf, 8));
    CHECK(best_of(target, {nan, -inf, -inf}) == std::pair(-inf, 8));
    CHECK(best_of(target, {nan, nan}) == std::pair(-inf, 7));
  }
}

TEST_CASE("linear reads from and writes to the ranks that its operands name") {
  constexpr uint32_t ranks = 3;
  constexpr size_t columns = 40;
  constexpr uint32_t tile_rows = 8;
  constexpr size_t rows = 24;
  // One size for all tensors of several ranks: one distance leads from rank to rank.
  Tensor<float> x(columns, ranks);
  Tensor<float> out(columns, ranks);
  const Matrix matrix = random_matrix(rows, columns);
  Tensor<uint16_t> weight(packed_size(rows, columns, tile_rows));
  pack(matrix, tile_rows, weight);
  for (uint32_t r = 0; r < ranks; ++r) {
    for (size_t k = 0; k < columns; ++k) x.set(k, static_cast<float>(random_normal()), r);
  }
  struct Selection {
    mkrt_rank_selector in;
    mkrt_rank_selector out;
  };
  constexpr uint8_t none = 0xff;
  const Selection selections[] = {{{MKRT_RANK_SELF, none, 0}, {MKRT_RANK_ALL, none, 0}},
                                  {{MKRT_RANK_FIXED, none, 2}, {MKRT_RANK_FIXED, none, 0}},
                                  {{MKRT_RANK_RELATIVE, none, 1}, {MKRT_RANK_RELATIVE, 0, 1}}};
  const uint32_t own = 1;
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    for (const Selection& selection : selections) {
      CAPTURE(int{selection.out.mode});
      for (uint32_t r = 0; r < ranks; ++r) {
        for (size_t i = 0; i < columns; ++i) out.set(i, poison<float>(), r);
      }
      Record record(llm::opcode_linear, {3}, own, ranks);
      record.use_rank_distance(x.bytes());
      record.operand(llm::linear::x, x, {.rank = selection.in})
          .operand(llm::linear::weight, weight,
                   {.size = packed_size(tile_rows, columns, tile_rows),
                    .strides = {packed_size(tile_rows, columns, tile_rows)}})
          .operand(llm::linear::out, out, {.size = tile_rows, .strides = {tile_rows}, .rank = selection.out})
          .parameter(llm::linear::columns, static_cast<uint32_t>(columns))
          .parameter(llm::linear::batch, 1u)
          .parameter(llm::linear::tile_rows, tile_rows);
      Worker worker(target.isa);
      REQUIRE(worker.run(record) == 0);
      const uint32_t from = selection.in.mode == MKRT_RANK_SELF ? own : 2;
      for (size_t row = 0; row < rows; ++row) {
        double value = 0;
        for (size_t k = 0; k < columns; ++k) value += matrix.at(row, k) * x.at(k, from);
        for (uint32_t r = 0; r < ranks; ++r) {
          const bool written = selection.out.mode == MKRT_RANK_ALL ||
                               (selection.out.mode == MKRT_RANK_FIXED && r == 0) ||
                               (selection.out.mode == MKRT_RANK_RELATIVE && r == (own + 1 + row / tile_rows) % ranks);
          if (written) {
            CHECK(std::abs(out.at(row, r) - value) < 1e-4);
          } else {
            CHECK(out.untouched(row, r));
          }
        }
      }
    }
  }
}

}  // namespace
