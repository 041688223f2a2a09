// attention against float64, written from isa/README.md.
#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>

#include "fixture.hpp"
#include "host/llm/numbers.hpp"
#include "mkrt_isa/llm.hpp"

namespace {

using namespace mkrt::test;
using mkrt::host::vector_targets;
namespace op = mkrt::isa::llm::attention;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float epsilon = 1e-6f;

struct Shape {
  size_t batch = 1;
  size_t heads = 1;  // key-value heads
  size_t group = 1;
  size_t head_size = 64;
  size_t context = 100;
  size_t splits = 1;
  bool norms = false;
  std::vector<int32_t> positions;  // one a sequence
};

// All tensors of one record. Cache rows below the position hold numbers, all others poison.
struct Case {
  explicit Case(const Shape& shape_);

  Record record() const;
  size_t cache_row(size_t s, size_t h, size_t p) const {
    return ((s * shape.heads + h) * shape.context + p) * shape.head_size;
  }
  // Elements of a key-value head's workspace.
  size_t workspace_size() const { return shape.splits * shape.group * ((shape.head_size + 15) / 16 * 16) * 3; }

  Shape shape;
  double scale;
  Tensor<int32_t> position;
  Tensor<float> rotation, q, k, v, q_norm, k_norm;
  Tensor<uint16_t> k_cache, v_cache;
  Tensor<float> out, workspace;
};

Case::Case(const Shape& s)
    : shape(s),
      scale(1 / std::sqrt(static_cast<double>(s.head_size))),
      position(s.batch),
      rotation(s.batch * s.head_size),
      q(s.batch * s.heads * s.group * s.head_size),
      k(s.batch * s.heads * s.head_size),
      v(s.batch * s.heads * s.head_size),
      q_norm(s.head_size, 1, 2),
      k_norm(s.head_size, 1, 1),
      k_cache(s.batch * s.heads * s.context * s.head_size),
      v_cache(s.batch * s.heads * s.context * s.head_size),
      out(s.batch * s.heads * s.group * s.head_size),
      // Not where its words would be aligned: instructions look after that themselves.
      workspace(s.batch * s.heads * workspace_size(), 1, random_below(16)) {
  for (size_t i = 0; i < workspace.size(); ++i) workspace.set(i, 0);
  for (Tensor<float>* tensor : {&q, &k, &v, &q_norm, &k_norm}) fill_random(*tensor, 1.5);
  for (size_t i = 0; i < rotation.size(); i += 2) {
    const double angle = random_normal() * 10;
    rotation.set(i, static_cast<float>(std::cos(angle)));
    rotation.set(i + 1, static_cast<float>(std::sin(angle)));
  }
  for (size_t b = 0; b < s.batch; ++b) {
    position.set(b, s.positions[b]);
    for (size_t h = 0; h < s.heads; ++h) {
      for (size_t i = 0; i < static_cast<size_t>(std::max(s.positions[b], 0)) * s.head_size; ++i) {
        k_cache.set(cache_row(b, h, 0) + i, random_f16());
        v_cache.set(cache_row(b, h, 0) + i, random_f16());
      }
    }
  }
}

Record Case::record() const {
  const size_t hs = shape.head_size;
  const size_t tile = shape.group * hs;
  Record r(mkrt::isa::llm::opcode_attention, {static_cast<uint32_t>(shape.batch), static_cast<uint32_t>(shape.heads),
                                              static_cast<uint32_t>(shape.splits)});
  const SliceOf cache{.size = shape.context * hs, .strides = {shape.heads * shape.context * hs, shape.context * hs}};
  r.operand(op::position, position, {.size = 1, .strides = {1}})
      .operand(op::rotation, rotation, {.size = hs, .strides = {hs}})
      .operand(op::q, q, {.size = tile, .strides = {shape.heads * tile, tile}})
      .operand(op::k, k, {.size = hs, .strides = {shape.heads * hs, hs}})
      .operand(op::v, v, {.size = hs, .strides = {shape.heads * hs, hs}})
      .operand(op::k_cache, k_cache, cache)
      .operand(op::v_cache, v_cache, cache)
      .operand(op::out, out, {.size = tile, .strides = {shape.heads * tile, tile}})
      .operand(op::workspace, workspace,
               {.size = workspace_size(), .strides = {shape.heads * workspace_size(), workspace_size()}})
      .parameter(op::group, static_cast<uint32_t>(shape.group))
      .parameter(op::head_size, static_cast<uint32_t>(hs))
      .parameter(op::context, static_cast<uint32_t>(shape.context))
      .parameter(op::splits, static_cast<uint32_t>(shape.splits))
      .parameter(op::scale, static_cast<float>(scale))
      .parameter(op::epsilon, epsilon);
  if (shape.norms) r.operand(op::q_norm, q_norm).operand(op::k_norm, k_norm);
  return r;
}

// A head of q or k after norm and rotary embedding.
std::vector<double> embedded(const Case& c, const Tensor<float>& tensor, size_t first, const Tensor<float>& norm,
                             size_t sequence) {
  const size_t hs = c.shape.head_size;
  std::vector<double> x(hs);
  double squares = 0;
  for (size_t i = 0; i < hs; ++i) {
    x[i] = tensor.at(first + i);
    squares += x[i] * x[i];
  }
  if (c.shape.norms) {
    for (size_t i = 0; i < hs; ++i) x[i] *= norm.at(i) / std::sqrt(squares / static_cast<double>(hs) + epsilon);
  }
  std::vector<double> out(hs);
  for (size_t i = 0; i < hs / 2; ++i) {
    const double cosine = c.rotation.at(sequence * hs + 2 * i);
    const double sine = c.rotation.at(sequence * hs + 2 * i + 1);
    out[i] = x[i] * cosine - x[i + hs / 2] * sine;
    out[i + hs / 2] = x[i + hs / 2] * cosine + x[i] * sine;
  }
  return out;
}

struct Attended {
  std::vector<double> out;
  double largest_value = 0;  // magnitude of any element of V that takes part
};

// What one query head makes of positions 0 to `last`.
Attended attended(const Case& c, size_t s, size_t h, size_t g, size_t last) {
  const size_t hs = c.shape.head_size;
  const std::vector<double> q = embedded(c, c.q, ((s * c.shape.heads + h) * c.shape.group + g) * hs, c.q_norm, s);
  std::vector<double> scores;
  double maximum = -infinity;
  double sum = 0;
  Attended result{std::vector<double>(hs, 0.0)};
  for (size_t t = 0; t <= last; ++t) {
    double score = 0;
    for (size_t i = 0; i < hs; ++i) score += q[i] * number_of_f16(c.k_cache.at(c.cache_row(s, h, t) + i));
    scores.push_back(score * c.scale);
    maximum = std::max(maximum, scores.back());
  }
  for (size_t t = 0; t <= last; ++t) {
    const double weight = std::exp(scores[t] - maximum);
    sum += weight;
    for (size_t i = 0; i < hs; ++i) {
      const double value = number_of_f16(c.v_cache.at(c.cache_row(s, h, t) + i));
      result.out[i] += weight * value;
      result.largest_value = std::max(result.largest_value, std::abs(value));
    }
  }
  for (double& o : result.out) o /= sum;
  return result;
}

bool near_f16(uint16_t bits, double value) {
  // Half a step of f16, and the error of computing the value in f32.
  return std::abs(number_of_f16(bits) - value) <= std::abs(value) * (0x1p-11 + 1e-5) + 0x1p-25 + 1e-6;
}

// Checks the appended rows, that nothing else in the caches changed, and the results.
void check(const Case& c, const std::vector<uint16_t>& k_before, const std::vector<uint16_t>& v_before) {
  const size_t hs = c.shape.head_size;
  bool rows_right = true;
  bool rest_untouched = true;
  bool results_right = true;
  for (size_t s = 0; s < c.shape.batch; ++s) {
    const auto p = static_cast<size_t>(c.shape.positions[s]);
    for (size_t h = 0; h < c.shape.heads; ++h) {
      const size_t head = (s * c.shape.heads + h) * hs;
      const std::vector<double> k = embedded(c, c.k, head, c.k_norm, s);
      for (size_t i = 0; i < hs; ++i) {
        rows_right = rows_right && near_f16(c.k_cache.at(c.cache_row(s, h, p) + i), k[i]) &&
                     near_f16(c.v_cache.at(c.cache_row(s, h, p) + i), c.v.at(head + i));
      }
      for (size_t t = 0; t < c.shape.context; ++t) {
        for (size_t i = 0; t != p && i < hs; ++i) {
          const size_t e = c.cache_row(s, h, t) + i;
          rest_untouched = rest_untouched && c.k_cache.at(e) == k_before[e] && c.v_cache.at(e) == v_before[e];
        }
      }
      for (size_t g = 0; g < c.shape.group; ++g) {
        const Attended expected = attended(c, s, h, g, p);
        const size_t first = ((s * c.shape.heads + h) * c.shape.group + g) * hs;
        for (size_t i = 0; i < hs; ++i) {
          // Errors of scores move weights by as much; scores here are below a few tens.
          const double error = std::abs(c.out.at(first + i) - expected.out[i]);
          results_right = results_right && error <= 2e-5 * expected.largest_value;
        }
      }
    }
  }
  CHECK(rows_right);
  CHECK(rest_untouched);
  CHECK(results_right);
}

void run_and_check(const Shape& shape) {
  CAPTURE(shape.batch);
  CAPTURE(shape.group);
  CAPTURE(shape.head_size);
  CAPTURE(shape.splits);
  CAPTURE(shape.positions[0]);
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    const Case c(shape);
    const std::vector<uint16_t> k_before = c.k_cache.values();
    const std::vector<uint16_t> v_before = c.v_cache.values();
    Worker worker(target.isa);
    Record record = c.record();
    REQUIRE(worker.run(record) == 0);
    check(c, k_before, v_before);
  }
}

std::vector<int32_t> random_positions(size_t batch, size_t context) {
  std::vector<int32_t> out(batch);
  for (int32_t& p : out) p = static_cast<int32_t>(random_below(context));
  return out;
}

TEST_CASE("attention is right for every even head size and group") {
  for (size_t head_size : {2, 4, 6, 10, 16, 30, 32, 34, 64, 80, 96, 100, 128, 254, 256}) {
    run_and_check({.batch = 2,
                   .heads = 2,
                   .group = 1 + random_below(8),
                   .head_size = head_size,
                   .context = 70,
                   .norms = random_below(2) == 1,
                   .positions = random_positions(2, 70)});
  }
  for (size_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
    run_and_check({.heads = 2,
                   .group = group,
                   .head_size = 20,
                   .context = 40,
                   .norms = group % 2 == 0,
                   .positions = random_positions(1, 40)});
  }
}

TEST_CASE("attention is right at the first and the last position and around multiples of 32") {
  for (int32_t position : {0, 1, 30, 31, 32, 33, 63, 64, 99}) {
    for (size_t splits : {1, 3}) {
      run_and_check({.group = 3, .head_size = 32, .splits = splits, .positions = {position}});
    }
  }
}

TEST_CASE("attention splits positions over tiles, also where there are fewer than splits") {
  for (size_t splits = 1; splits <= 7; ++splits) {
    for (int32_t position : {0, 1, 2, 5, 6, 7, 40, 99}) {
      run_and_check({.batch = 2,
                     .heads = 2,
                     .group = 2,
                     .head_size = 16,
                     .splits = splits,
                     .norms = position % 2 == 1,
                     .positions = {position, static_cast<int32_t>(random_below(100))}});
    }
  }
}

TEST_CASE("attention over a long context stays exact") {
  run_and_check({.group = 4, .head_size = 64, .context = 3000, .positions = {2999}});
}

TEST_CASE("attention finds its workspace as its last record left it") {
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Case c({.heads = 2, .group = 3, .head_size = 34, .splits = 5, .positions = {99}});
    Worker worker(target.isa);
    Record record = c.record();
    for (const int32_t position : {99, 3, 0, 98, 1, 50}) {
      c.position.set(0, position);
      c.shape.positions[0] = position;
      const std::vector<uint16_t> k_before = c.k_cache.values();
      const std::vector<uint16_t> v_before = c.v_cache.values();
      REQUIRE(worker.run(record) == 0);
      check(c, k_before, v_before);
    }
  }
}

TEST_CASE("splits that run at the same time join their parts once, with the same bits in every order") {
  constexpr uint32_t splits = 4;
  Case c({.group = 2, .head_size = 18, .splits = splits, .positions = {90}});
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    std::vector<float> first;
    for (int round = 0; round < 50; ++round) {
      for (size_t i = 0; i < c.out.size(); ++i) c.out.set(i, poison<float>());
      std::atomic<uint32_t> begun = 0;
      std::atomic<uint32_t> faults = 0;
      std::vector<std::thread> threads;
      for (uint32_t split = 0; split < splits; ++split) {
        threads.emplace_back([&, split] {
          Worker worker(target.isa);
          Record record = c.record();
          ++begun;
          while (begun < splits) std::this_thread::yield();
          faults += worker.run_tile(record, {0, 0, split, 0});
        });
      }
      for (std::thread& thread : threads) thread.join();
      REQUIRE(faults == 0);
      if (round == 0) first = c.out.values();
      REQUIRE(c.out.values() == first);
    }
    check(c, c.k_cache.values(), c.v_cache.values());
  }
}

TEST_CASE("attention refuses positions outside the cache and touches nothing") {
  for (int32_t position :
       {-1, -100, 100, 101, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    CAPTURE(position);
    for (const auto& target : vector_targets()) {
      Shape shape{.head_size = 16, .positions = {50}};
      Case c(shape);
      c.position.set(0, position);
      const std::vector<uint16_t> k_before = c.k_cache.values();
      Worker worker(target.isa);
      Record record = c.record();
      CHECK(worker.run(record) == op::fault_position_outside_cache);
      CHECK(c.k_cache.values() == k_before);
      for (size_t i = 0; i < c.out.size(); ++i) CHECK(c.out.untouched(i));
    }
  }
}

TEST_CASE("attention refuses positions behind a cache's limit") {
  for (const auto& target : vector_targets()) {
    Case c({.head_size = 16, .positions = {50}});
    Record record = c.record();
    record.operand(op::v_cache, c.v_cache, {.size = 100 * 16, .limit = 51 * 16 - 1});
    Worker worker(target.isa);
    CHECK(worker.run(record) == op::fault_position_outside_cache);
    record.operand(op::v_cache, c.v_cache, {.size = 100 * 16, .limit = 51 * 16});
    CHECK(worker.run(record) == 0);
  }
}

TEST_CASE("keys and values beyond the range of f16 become its largest numbers") {
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Case c({.head_size = 4, .context = 2, .positions = {0}});
    const float values[4] = {1e6f, -std::numeric_limits<float>::infinity(), 65519.0f, -65504.0f};
    for (size_t i = 0; i < 4; ++i) {
      c.v.set(i, values[i]);
      c.k.set(i, i < 2 ? 7e5f : 0.0f);
    }
    for (size_t i = 0; i < 4; i += 2) {
      c.rotation.set(i, 1);
      c.rotation.set(i + 1, 0);
    }
    Worker worker(target.isa);
    Record record = c.record();
    REQUIRE(worker.run(record) == 0);
    CHECK(c.k_cache.at(0) == 0x7bff);
    CHECK(c.k_cache.at(1) == 0x7bff);
    CHECK(c.k_cache.at(2) == 0);
    const float expected[4] = {65504, -65504, 65504, -65504};
    for (size_t i = 0; i < 4; ++i) {
      CHECK(number_of_f16(c.v_cache.at(i)) == expected[i]);
      CHECK(c.out.at(i) == expected[i]);
    }
  }
}

// A case of two positions in which all weight lies on position 0.
Case first_position_wins(size_t head_size) {
  Case c({.head_size = head_size, .context = 2, .positions = {1}});
  for (size_t i = 0; i < head_size; ++i) {
    c.q.set(i, i == 0 ? 1000.0f : 0.0f);
    c.k.set(i, i == 0 ? -1000.0f : 0.0f);
    c.v.set(i, 0);
    c.rotation.set(i, i % 2 == 0 ? 1.0f : 0.0f);
    c.k_cache.set(i, i == 0 ? 0x63d0 : 0);  // 1000
  }
  return c;
}

TEST_CASE("every f16 number in a cache is read exactly") {
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Worker worker(target.isa);
    Case c = first_position_wins(256);
    Record record = c.record();
    bool exact = true;
    for (uint32_t first = 0; first < 65536; first += 256) {
      for (uint32_t i = 0; i < 256; ++i) c.v_cache.set(i, static_cast<uint16_t>(first + i));
      REQUIRE(worker.run(record) == 0);
      for (uint32_t i = 0; i < 256; ++i) {
        const double expected = number_of_f16(static_cast<uint16_t>(first + i));
        const double got = c.out.at(i);
        exact = exact && (std::isnan(expected) ? std::isnan(got) : got == expected);
      }
    }
    CHECK(exact);
  }
}

TEST_CASE("scores of minus infinity weigh nothing, and NaN shows in the result") {
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Worker worker(target.isa);
    Case c({.head_size = 8, .context = 80, .positions = {70}});
    // Positions 0 to 39, a whole chunk and more, have a score of -infinity.
    for (size_t i = 0; i < 8; ++i) {
      c.q.set(i, i == 0 ? 1.0f : 0.0f);
      c.rotation.set(i, i % 2 == 0 ? 1.0f : 0.0f);
      for (size_t p = 0; p < 70; ++p) {
        c.k_cache.set(p * 8 + i, i == 0 && p < 40 ? 0xfc00 : 0);
        c.v_cache.set(p * 8 + i, p < 40 ? 0x7bff : 0x3c00);
      }
      c.k.set(i, 0);
      c.v.set(i, 1);
    }
    Record record = c.record();
    REQUIRE(worker.run(record) == 0);
    for (size_t i = 0; i < 8; ++i) CHECK(std::abs(c.out.at(i) - 1) < 1e-6);
    c.q.set(3, std::numeric_limits<float>::quiet_NaN());
    REQUIRE(worker.run(record) == 0);
    for (size_t i = 0; i < 8; ++i) CHECK(std::isnan(c.out.at(i)));
  }
}

TEST_CASE("attention writes its row and its result where its operands say") {
  constexpr uint32_t ranks = 2;
  // One size in bytes for all tensors of several ranks.
  constexpr size_t head_size = 8;
  constexpr size_t context = 4;
  for (const auto& target : vector_targets()) {
    CAPTURE(std::string(target.name));
    Case c({.head_size = head_size, .context = context, .positions = {0}});
    Tensor<uint16_t> k_cache(context * head_size, ranks);
    Tensor<uint16_t> v_cache(context * head_size, ranks);
    Tensor<float> out(context * head_size / 2, ranks);
    const mkrt_rank_selector peer{MKRT_RANK_RELATIVE, 0xff, 1};
    const mkrt_rank_selector all{MKRT_RANK_ALL, 0xff, 0};
    Record record(mkrt::isa::llm::opcode_attention, {1, 1, 1}, 1, ranks);
    record.use_rank_distance(k_cache.bytes());
    record.operand(op::position, c.position)
        .operand(op::rotation, c.rotation)
        .operand(op::q, c.q)
        .operand(op::k, c.k)
        .operand(op::v, c.v)
        .operand(op::k_cache, k_cache, {.rank = peer})
        .operand(op::v_cache, v_cache, {.rank = peer})
        .operand(op::out, out, {.size = head_size, .rank = all})
        .parameter(op::group, 1u)
        .parameter(op::head_size, static_cast<uint32_t>(head_size))
        .parameter(op::context, static_cast<uint32_t>(context))
        .parameter(op::splits, 1u)
        .parameter(op::scale, 1.0f);
    Worker worker(target.isa);
    REQUIRE(worker.run(record) == 0);
    for (size_t i = 0; i < context * head_size; ++i) {
      CHECK(k_cache.untouched(i, 1));
      CHECK(v_cache.untouched(i, 1));
      CHECK(v_cache.untouched(i, 0) == (i >= head_size));
    }
    for (size_t i = 0; i < head_size; ++i) {
      CHECK(number_of_f16(v_cache.at(i, 0)) == out.at(i, 0));
      CHECK(out.at(i, 0) == out.at(i, 1));
      CHECK(out.untouched(head_size + i, 0));
    }
  }
}

TEST_CASE("numbers are rounded to the nearest f16, ties to even, and saturate") {
  using mkrt::host::llm::f16_of_float;
  bool right = true;
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto here = static_cast<float>(number_of_f16(static_cast<uint16_t>(bits)));
    right = right && f16_of_float(here) == bits && f16_of_float(-here) == (bits | 0x8000);
    if (bits == 0x7bff) continue;
    const auto next = static_cast<float>(number_of_f16(static_cast<uint16_t>(bits + 1)));
    const float middle = here + (next - here) / 2;
    right = right && f16_of_float(middle) == bits + bits % 2 && f16_of_float(std::nextafter(middle, 0.0f)) == bits &&
            f16_of_float(std::nextafter(middle, 1e9f)) == bits + 1;
  }
  CHECK(right);
  CHECK(f16_of_float(65505) == 0x7bff);
  CHECK(f16_of_float(-std::numeric_limits<float>::infinity()) == 0xfbff);
  CHECK(std::isnan(number_of_f16(f16_of_float(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(f16_of_float(1e-40f) == 0);
}

}  // namespace
