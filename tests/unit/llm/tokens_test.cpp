// embed, rotation, choose and sum_partials, written from isa/README.md.
#include <doctest/doctest.h>

#include <string>

#include "fixture.hpp"
#include "mkrt_isa/llm.hpp"

namespace {

using namespace mkrt::test;
namespace llm = mkrt::isa::llm;

constexpr int32_t int_max = std::numeric_limits<int32_t>::max();
constexpr int32_t int_min = std::numeric_limits<int32_t>::min();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

const mkrt_host_isa& isa() { return mkrt::host::llm_isa; }

struct Embedding {
  Embedding(size_t vocabulary_, size_t columns_, std::vector<std::vector<int32_t>> tokens_)
      : vocabulary(vocabulary_),
        columns(columns_),
        matrix(random_matrix(vocabulary_, columns_)),
        table(packed_size(vocabulary_, columns_, 8), 1, 1),
        tokens(tokens_.size() * tokens_[0].size()),
        position(tokens_.size()),
        out(tokens_.size() * columns_) {
    pack(matrix, 8, table);
    for (size_t s = 0; s < tokens_.size(); ++s) {
      position.set(s, 0);
      for (size_t i = 0; i < tokens_[0].size(); ++i) tokens.set(s * tokens_[0].size() + i, tokens_[s][i]);
    }
  }
  Record record() {
    const size_t batch = position.size();
    const size_t length = tokens.size() / batch;
    Record r(llm::opcode_embed, {static_cast<uint32_t>(batch)});
    r.operand(llm::embed::tokens, tokens, {.size = length, .strides = {length}})
        .operand(llm::embed::position, position, {.size = 1, .strides = {1}})
        .operand(llm::embed::table, table)
        .operand(llm::embed::out, out, {.size = columns, .strides = {columns}})
        .parameter(llm::embed::vocabulary, static_cast<uint32_t>(vocabulary))
        .parameter(llm::embed::columns, static_cast<uint32_t>(columns));
    return r;
  }
  uint32_t run() {
    Record r = record();
    return Worker(isa()).run(r);
  }

  size_t vocabulary;
  size_t columns;
  Matrix matrix;
  Tensor<uint16_t> table;
  Tensor<int32_t> tokens;
  Tensor<int32_t> position;
  Tensor<float> out;
};

TEST_CASE("embed takes the row of each sequence's token") {
  for (size_t columns : {1, 31, 32, 33, 172, 576, 640, 896, 2048}) {
    Embedding e(101, columns, {{3, 100, 7}, {0, 8, 99}, {55, 56, 57}});
    for (size_t s = 0; s < 3; ++s) e.position.set(s, static_cast<int32_t>(s));
    REQUIRE(e.run() == 0);
    const size_t rows[3] = {3, 8, 57};
    for (size_t s = 0; s < 3; ++s) {
      for (size_t k = 0; k < columns; ++k) CHECK(e.out.at(s * columns + k) == e.matrix.at(rows[s], k));
    }
  }
}

TEST_CASE("embed finds the first, the last and any other token of a large vocabulary") {
  for (const int32_t vocabulary : {49152, 128256}) {
    const auto any = static_cast<int32_t>(random_below(static_cast<uint64_t>(vocabulary)));
    Embedding e(static_cast<size_t>(vocabulary), 13, {{0}, {vocabulary - 1}, {any}});
    REQUIRE(e.run() == 0);
    for (size_t s = 0; s < 3; ++s) {
      const auto row = static_cast<size_t>(e.tokens.at(s));
      for (size_t k = 0; k < 13; ++k) CHECK(e.out.at(s * 13 + k) == e.matrix.at(row, k));
    }
  }
}

TEST_CASE("embed refuses positions outside the list and tokens outside the vocabulary") {
  for (int32_t position : {-1, 3, int_max, int_min}) {
    Embedding e(20, 40, {{1, 2, 3}});
    e.position.set(0, position);
    CHECK(e.run() == llm::embed::fault_position_outside_token_list);
    CHECK(e.out.untouched(0));
  }
  for (int32_t token : {-1, 20, 21, 24, int_max, int_min}) {
    Embedding e(20, 40, {{token, 2, 3}});
    CHECK(e.run() == llm::embed::fault_token_outside_vocabulary);
    CHECK(e.out.untouched(0));
  }
}

TEST_CASE("embed refuses tokens behind the table's limit and writes no further than its output's") {
  Embedding e(20, 40, {{17, 2, 3}});
  Record record = e.record();
  // Row 17 is the second row of the third row block: it ends in that block's second column block.
  const size_t end = packed_index(17, 32, 40) + 32;
  record.operand(llm::embed::table, e.table, {.limit = end - 1});
  CHECK(Worker(isa()).run(record) == llm::embed::fault_token_outside_vocabulary);
  record.operand(llm::embed::table, e.table, {.limit = end}).operand(llm::embed::out, e.out, {.limit = 35});
  REQUIRE(Worker(isa()).run(record) == 0);
  for (size_t k = 0; k < 40; ++k) CHECK(e.out.untouched(k) == (k >= 35));
}

TEST_CASE("embed writes to every rank where its output names all") {
  Embedding e(20, 40, {{17, 2, 3}});
  Tensor<float> out(40, 3);
  Record record(llm::opcode_embed, {1}, 2, 3);
  record.use_rank_distance(out.bytes());
  record.operand(llm::embed::tokens, e.tokens)
      .operand(llm::embed::position, e.position)
      .operand(llm::embed::table, e.table)
      .operand(llm::embed::out, out, {.rank = {MKRT_RANK_ALL, 0xff, 0}})
      .parameter(llm::embed::vocabulary, 20u)
      .parameter(llm::embed::columns, 40u);
  REQUIRE(Worker(isa()).run(record) == 0);
  for (uint32_t r = 0; r < 3; ++r) {
    for (size_t k = 0; k < 40; ++k) CHECK(out.at(k, r) == e.matrix.at(17, k));
  }
}

TEST_CASE("rotation gives the cosine and sine of every frequency's angle") {
  for (size_t half : {1, 7, 32, 128}) {
    for (int32_t position : {0, 1, 12345, 131071}) {
      Tensor<int32_t> positions{position, 3};
      Tensor<float> frequencies(half);
      for (size_t i = 0; i < half; ++i) {
        frequencies.set(i, static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half))));
      }
      Tensor<float> out(2 * 2 * half);
      Record record(llm::opcode_rotation, {2});
      record.operand(llm::rotation::position, positions, {.size = 1, .strides = {1}})
          .operand(llm::rotation::frequencies, frequencies)
          .operand(llm::rotation::out, out, {.size = 2 * half, .strides = {2 * half}});
      REQUIRE(Worker(isa()).run(record) == 0);
      for (size_t s = 0; s < 2; ++s) {
        for (size_t i = 0; i < half; ++i) {
          // The angle is a float: Hugging Face's models compute it as one.
          const double angle = static_cast<float>(positions.at(s)) * frequencies.at(i);
          CHECK(std::abs(out.at(2 * (s * half + i)) - std::cos(angle)) < 1e-7);
          CHECK(std::abs(out.at(2 * (s * half + i) + 1) - std::sin(angle)) < 1e-7);
        }
      }
    }
  }
}

// One sequence of `choose`.
struct Choice {
  std::vector<float> values{1, 5, 2};
  std::vector<int32_t> indices{10, 20, 30};
  int32_t prompt_length = 1;
  std::vector<int32_t> stop_tokens{2, 3};
  int32_t stop_count = 0;
  std::vector<int32_t> tokens{7, -1, -1, -1};
  int32_t position = 0;
  int32_t active = 1;

  // Leaves tokens, position and active as the instruction left them.
  uint32_t run() {
    Tensor<float> best_value(values.size());
    Tensor<int32_t> best_index(indices.size());
    Tensor<int32_t> stops(stop_tokens.size());
    Tensor<int32_t> list(tokens.size());
    for (size_t i = 0; i < values.size(); ++i) best_value.set(i, values[i]);
    for (size_t i = 0; i < indices.size(); ++i) best_index.set(i, indices[i]);
    for (size_t i = 0; i < stop_tokens.size(); ++i) stops.set(i, stop_tokens[i]);
    for (size_t i = 0; i < tokens.size(); ++i) list.set(i, tokens[i]);
    Tensor<int32_t> length{prompt_length};
    Tensor<int32_t> count{stop_count};
    Tensor<int32_t> place{position};
    Tensor<int32_t> running{active};
    Record record(llm::opcode_choose, {1});
    record.operand(llm::choose::best_value, best_value)
        .operand(llm::choose::best_index, best_index)
        .operand(llm::choose::prompt_length, length)
        .operand(llm::choose::stop_tokens, stops)
        .operand(llm::choose::stop_count, count)
        .operand(llm::choose::tokens, list)
        .operand(llm::choose::position, place)
        .operand(llm::choose::active, running);
    const uint32_t fault = Worker(isa()).run(record);
    tokens = list.values();
    position = place.at(0);
    active = running.at(0);
    return fault;
  }
};

TEST_CASE("choose appends the best token and moves on") {
  Choice c;
  REQUIRE(c.run() == 0);
  CHECK(c.tokens == std::vector<int32_t>{7, 20, -1, -1});
  CHECK(c.position == 1);
  CHECK(c.active == 1);
}

TEST_CASE("choose moves through the prompt without changing it, stop tokens or not") {
  Choice c{.prompt_length = 3, .stop_count = 2, .tokens = {7, 2, 3, -1}};
  REQUIRE(c.run() == 0);
  CHECK(c.tokens == std::vector<int32_t>{7, 2, 3, -1});
  CHECK(c.position == 1);
  CHECK(c.active == 1);
  REQUIRE(c.run() == 0);
  CHECK(c.position == 2);
  CHECK(c.active == 1);
  REQUIRE(c.run() == 0);
  CHECK(c.tokens == std::vector<int32_t>{7, 2, 3, 20});
  CHECK(c.position == 3);
}

TEST_CASE("choose takes the smallest index of equal values, and NaN never wins") {
  Choice equal{.values = {5, 1, 5}, .indices = {30, 1, 20}};
  REQUIRE(equal.run() == 0);
  CHECK(equal.tokens[1] == 20);
  Choice some{.values = {nan, -7, nan}};
  REQUIRE(some.run() == 0);
  CHECK(some.tokens[1] == 20);
  Choice none{.values = {nan, nan, nan}};
  REQUIRE(none.run() == 0);
  CHECK(none.tokens[1] == 10);
  constexpr float inf = std::numeric_limits<float>::infinity();
  Choice infinite{.values = {nan, -inf, -inf}, .indices = {10, 30, 20}};
  REQUIRE(infinite.run() == 0);
  CHECK(infinite.tokens[1] == 20);
}

TEST_CASE("a sequence stops at a stop token, of which only the first stop_count count") {
  Choice stop{.stop_tokens = {9, 20}, .stop_count = 2};
  REQUIRE(stop.run() == 0);
  CHECK(stop.tokens[1] == 20);
  CHECK(stop.position == 1);
  CHECK(stop.active == 0);
  Choice go_on{.stop_tokens = {9, 20}, .stop_count = 1};
  REQUIRE(go_on.run() == 0);
  CHECK(go_on.active == 1);
  for (int32_t count : {-1, int_min, 0}) {
    Choice none{.stop_tokens = {20, 20}, .stop_count = count};
    REQUIRE(none.run() == 0);
    CHECK(none.active == 1);
  }
  for (int32_t count : {3, int_max}) {
    Choice all{.stop_tokens = {9, 8}, .stop_count = count};
    REQUIRE(all.run() == 0);
    CHECK(all.active == 1);
  }
}

TEST_CASE("a sequence becomes inactive at the end of its list and stays where it is") {
  Choice c{.tokens = {7, 8, 9}, .position = 2};
  REQUIRE(c.run() == 0);
  CHECK(c.tokens == std::vector<int32_t>{7, 8, 9});
  CHECK(c.position == 2);
  CHECK(c.active == 0);
}

TEST_CASE("inactive sequences change nothing, wherever they are") {
  for (int32_t position : {0, 3, -5, 1000}) {
    Choice c{.position = position, .active = 0};
    REQUIRE(c.run() == 0);
    CHECK(c.tokens == std::vector<int32_t>{7, -1, -1, -1});
    CHECK(c.position == position);
    CHECK(c.active == 0);
  }
}

TEST_CASE("choose refuses positions outside the list") {
  for (int32_t position : {-1, 4, int_max, int_min}) {
    Choice c{.position = position};
    CHECK(c.run() == llm::choose::fault_position_outside_token_list);
    CHECK(c.tokens == std::vector<int32_t>{7, -1, -1, -1});
    CHECK(c.position == position);
    CHECK(c.active == 1);
  }
}

TEST_CASE("choose takes any prompt length") {
  for (int32_t length : {int_min, -1, 0, 1}) {
    Choice c{.prompt_length = length};
    REQUIRE(c.run() == 0);
    CHECK(c.tokens[1] == 20);
  }
  Choice c{.prompt_length = int_max};
  REQUIRE(c.run() == 0);
  CHECK(c.tokens[1] == -1);
  CHECK(c.position == 1);
}

// Sums of [parts][batch][columns] in tiles of `tile_columns`, with rows longer than what is summed.
struct Parts {
  Parts(uint32_t parts_, uint32_t batch_, size_t columns_, size_t tile_columns_, uint32_t ranks = 1)
      : parts(parts_),
        batch(batch_),
        columns(columns_),
        tile_columns(tile_columns_),
        partial(stride() * parts_ * batch_),
        residual(stride() * batch_),
        out(stride() * batch_, ranks) {
    fill_random(partial);
    fill_random(residual);
  }
  size_t stride() const { return columns + 3; }
  Record record(bool with_residual, bool in_place, uint32_t rank = 0, mkrt_rank_selector to = {}) {
    const SliceOf slice{.offset = 2,
                        .size = tile_columns,
                        .strides = {tile_columns},
                        .limit = columns,
                        .rows = batch,
                        .row_stride = stride(),
                        .rank = {MKRT_RANK_SELF, 0xff, 0}};
    SliceOf all = slice, written = slice;
    all.rows = parts * batch;
    written.rank = to;
    Record r(llm::opcode_sum_partials, {static_cast<uint32_t>((columns + tile_columns - 1) / tile_columns)}, rank,
             out.ranks());
    r.use_rank_distance(out.bytes());
    r.operand(llm::sum_partials::partial, partial, all)
        .operand(llm::sum_partials::out, in_place ? residual : out, written)
        .parameter(llm::sum_partials::parts, parts)
        .parameter(llm::sum_partials::batch, batch);
    if (with_residual) r.operand(llm::sum_partials::residual, residual, slice);
    return r;
  }
  // The definition's sum in float64, and what f32 additions in the definition's order give.
  double sum(size_t s, size_t k, bool with_residual, float& in_order) const {
    double exact = 0;
    in_order = with_residual ? residual.at(s * stride() + 2 + k) : 0;
    exact = in_order;
    for (uint32_t p = 0; p < parts; ++p) {
      const float value = partial.at((p * batch + s) * stride() + 2 + k);
      exact += value;
      in_order += value;
    }
    return exact;
  }

  uint32_t parts, batch;
  size_t columns, tile_columns;
  Tensor<float> partial, residual, out;
};

TEST_CASE("sum_partials adds the parts to the residual, in their order, and writes no further than its limit") {
  for (uint32_t parts : {1u, 2u, 3u, 8u, 64u}) {
    for (uint32_t batch : {1u, 3u, 16u}) {
      for (size_t columns : {1, 32, 77, 600}) {
        for (const bool with_residual : {false, true}) {
          Parts p(parts, batch, columns, 32);
          const Tensor<float>& residual = p.residual;
          std::vector<std::vector<float>> in_order(batch, std::vector<float>(columns));
          std::vector<std::vector<double>> exact(batch, std::vector<double>(columns));
          for (size_t s = 0; s < batch; ++s) {
            for (size_t k = 0; k < columns; ++k) exact[s][k] = p.sum(s, k, with_residual, in_order[s][k]);
          }
          const float before = residual.at(0);
          Record record = p.record(with_residual, false);
          REQUIRE(Worker(isa()).run(record) == 0);
          Record in_place = p.record(with_residual, true);
          REQUIRE(Worker(isa()).run(in_place) == 0);
          size_t wrong = 0;
          for (size_t s = 0; s < batch; ++s) {
            for (size_t k = 0; k < columns; ++k) {
              const size_t at = s * p.stride() + 2 + k;
              wrong += p.out.at(at) != in_order[s][k] || residual.at(at) != in_order[s][k];
              wrong += std::abs(p.out.at(at) - exact[s][k]) > 1e-5 * parts;
            }
            for (const size_t at : {size_t{0}, size_t{1}, columns + 2}) wrong += !p.out.untouched(s * p.stride() + at);
          }
          CHECK(wrong == 0);
          CHECK(residual.at(0) == before);
        }
      }
    }
  }
}

TEST_CASE("sum_partials writes to every rank where its output names all") {
  Parts p(2, 1, 40, 16, 3);
  Record record = p.record(true, false, 1, {MKRT_RANK_ALL, 0xff, 0});
  REQUIRE(Worker(isa()).run(record) == 0);
  for (uint32_t r = 0; r < 3; ++r) {
    for (size_t k = 0; k < 40; ++k) {
      float in_order = 0;
      p.sum(0, k, true, in_order);
      CHECK(p.out.at(2 + k, r) == in_order);
    }
  }
}

}  // namespace
