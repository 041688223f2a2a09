#include "cli/sampler.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cli/error.hpp"

namespace mkrt::cli {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

std::vector<int32_t> draw(const SamplerOptions& options, const std::vector<float>& logits, int count) {
  Sampler sampler(options);
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back(sampler.sample(logits));
  return out;
}

TEST_CASE("the portable exponential agrees with the mathematical one") {
  for (double x = 0; x > -700; x -= 0.37) {
    CHECK(std::abs(portable_exp(x) / std::exp(x) - 1) < 4e-15);
  }
  CHECK(portable_exp(0) == 1);
  CHECK(portable_exp(-800) == 0);
  CHECK(portable_exp(-std::numeric_limits<double>::infinity()) == 0);
  CHECK(portable_exp(std::numeric_limits<double>::quiet_NaN()) == 0);
}

TEST_CASE("tokens come as often as their probabilities say") {
  const std::vector<float> logits = random_logits(50, 1);
  constexpr double kTemperature = 1.7;
  constexpr int kDraws = 200'000;
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / kTemperature);
  std::vector<int> counts(logits.size());
  SamplerOptions options;
  options.temperature = kTemperature;
  options.seed = 7;
  for (const int32_t id : draw(options, logits, kDraws)) ++counts[static_cast<size_t>(id)];
  for (size_t i = 0; i < logits.size(); ++i) {
    const double probability = std::exp(logits[i] / kTemperature) / total;
    const double deviation = std::sqrt(probability * (1 - probability) * kDraws);
    CHECK(std::abs(counts[i] - probability * kDraws) < 5 * deviation + 1);
  }
}

TEST_CASE("top_k leaves the k likeliest, the smaller number first where two are equal") {
  std::vector<float> logits = random_logits(1000, 2);
  logits[10] = logits[500] = logits[900] = 20;
  logits[3] = 19;
  SamplerOptions options;
  options.temperature = 100;  // nearly uniform
  options.top_k = 2;
  std::vector<int32_t> ids = draw(options, logits, 200);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  CHECK(ids == std::vector<int32_t>{10, 500});
  options.top_k = 1;
  for (const int32_t id : draw(options, logits, 20)) CHECK(id == 10);
}

TEST_CASE("top_p leaves the likeliest until they have the probability together") {
  // Probabilities 0.5, 0.3, 0.15, 0.05, out of order.
  const std::vector<float> logits = {std::log(0.15F), std::log(0.5F), std::log(0.05F), std::log(0.3F)};
  const auto seen = [&](double top_p, uint32_t top_k) {
    SamplerOptions options;
    options.top_p = top_p;
    options.top_k = top_k;
    std::vector<int32_t> ids = draw(options, logits, 2000);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
  };
  CHECK(seen(0.4, 0) == std::vector<int32_t>{1});
  CHECK(seen(0.7, 0) == std::vector<int32_t>{1, 3});
  CHECK(seen(0.9, 0) == std::vector<int32_t>{0, 1, 3});
  CHECK(seen(1.0, 0) == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(seen(0.99, 2) == std::vector<int32_t>{1, 3});
  // Of the two that top_k leaves, the first has 0.625.
  CHECK(seen(0.6, 2) == std::vector<int32_t>{1});
}

TEST_CASE("a seed fixes the choice on every machine") {
  std::vector<float> logits(300);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 1000) / 128.0F;  // exact
  SamplerOptions options;
  options.temperature = 0.8;
  options.top_k = 100;
  options.top_p = 0.95;
  options.seed = 42;
  const std::vector<int32_t> expected = draw(options, logits, 8);
  CHECK(draw(options, logits, 8) == expected);
  // Computed independently of this code: the generator by its definition, the rest in another language.
  CHECK(expected == std::vector<int32_t>{162, 211, 162, 136, 138, 210, 38, 87});
  options.seed = 43;
  CHECK(draw(options, logits, 8) != expected);
}

TEST_CASE("what is no number is never chosen") {
  std::vector<float> logits = {std::nanf(""), -kInfinity, 1, std::nanf(""), -kInfinity};
  for (const int32_t id : draw({}, logits, 100)) CHECK(id == 2);
  Sampler sampler({});
  logits[2] = -kInfinity;
  CHECK_THROWS_AS(sampler.sample(logits), Error);
  logits[2] = kInfinity;
  CHECK_THROWS_AS(sampler.sample(logits), Error);
  CHECK_THROWS_AS(sampler.sample({}), Error);
}

}  // namespace
}  // namespace mkrt::cli
