// Choosing a token from logits by chance.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace mkrt::cli {

struct SamplerOptions {
  double temperature = 1.0;  // divides the logits; above 0
  uint32_t top_k = 0;        // only the k likeliest tokens; 0: all
  double top_p = 1.0;        // only the likeliest tokens until they have this probability together; above 0
  uint64_t seed = 0;
};

// The same options and logits give the same tokens on every machine: nothing here depends on the C++ library's
// distributions, on a mathematical library's last digit, or on contraction of arithmetic.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}

  // Temperature first, then top_k, then top_p of what is left. A token whose logit is NaN or -infinity is never
  // chosen; of equal logits the smaller number counts as the likelier. Throws Error where no token can be chosen.
  int32_t sample(std::span<const float> logits);

 private:
  struct Choice {
    float logit;
    int32_t id;
    double weight;  // probability, up to a common factor
  };
  // The choices that top_k and top_p leave, likeliest first.
  void keep_likeliest();

  SamplerOptions options_;
  std::mt19937_64 random_;  // its numbers are fixed by the standard
  std::vector<Choice> choices_;
};

// e to the power of x for x <= 0, to a relative error of about 1e-15, in additions and multiplications only.
double portable_exp(double x) noexcept;

}  // namespace mkrt::cli
