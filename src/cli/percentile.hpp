// Figures of many samples.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace mkrt::cli {

// The sample below which a share of `part` of all samples lies; at least one sample.
inline double percentile(std::vector<double> samples, double part) {
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(samples.size())));
  return samples[std::clamp<size_t>(rank, 1, samples.size()) - 1];
}

inline double median(const std::vector<double>& samples) { return percentile(samples, 0.5); }

}  // namespace mkrt::cli
