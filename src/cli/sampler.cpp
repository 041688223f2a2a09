#include "cli/sampler.hpp"

#include <algorithm>
#include <cmath>

#include "cli/error.hpp"

namespace mkrt::cli {

double portable_exp(double x) noexcept {
  // exp(-745.2) is below the smallest double; this also takes -infinity.
  if (!(x > -745.2)) return 0;
  // x = n ln 2 + r with |r| <= ln 2 / 2. The first part of ln 2 has 21 zero bits at its end, so n times it is exact.
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0.693147180369123816490,
                   kLn2Low = 1.90821492927058770002e-10;
  const double n = std::floor(x * kLog2E + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor's series by Horner's rule; the first term left out is r^14 / 14! < 5e-18.
  double sum = 1;
  for (int k = 13; k > 0; --k) sum = 1 + sum * r / k;
  return std::ldexp(sum, static_cast<int>(n));
}

void Sampler::keep_likeliest() {
  const auto likelier = [](const Choice& a, const Choice& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  if (options_.top_k != 0 && options_.top_k < choices_.size()) {
    std::nth_element(choices_.begin(), choices_.begin() + options_.top_k, choices_.end(), likelier);
    choices_.resize(options_.top_k);
  }
  std::sort(choices_.begin(), choices_.end(), likelier);
  double total = 0;
  for (const Choice& choice : choices_) total += choice.weight;
  double reached = 0;
  size_t kept = 0;
  while (kept < choices_.size() && (kept == 0 || reached < options_.top_p * total)) reached += choices_[kept++].weight;
  choices_.resize(kept);
}

int32_t Sampler::sample(std::span<const float> logits) {
  float largest = -INFINITY;
  for (const float logit : logits) largest = std::max(largest, logit);  // max(a, NaN) is a
  if (!std::isfinite(largest)) throw Error("the model's logits are not finite numbers");
  choices_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    const double distance = static_cast<double>(logits[id]) - static_cast<double>(largest);
    const double weight = portable_exp(distance / options_.temperature);
    if (weight > 0) choices_.push_back({logits[id], static_cast<int32_t>(id), weight});
  }
  if (options_.top_k != 0 || options_.top_p < 1) keep_likeliest();

  double total = 0;
  for (const Choice& choice : choices_) total += choice.weight;
  // 53 bits of the generator make a number in [0, 1).
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (const Choice& choice : choices_) {
    left -= choice.weight;
    if (left < 0) return choice.id;
  }
  return choices_.back().id;  // rounding left a little over
}

}  // namespace mkrt::cli
