// What the benchmarks of CUDA devices share. Each writes JSON to standard output and a line or two to standard error.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mkrt/mkrt.hpp"

namespace mkrt::bench {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// `part` from 0 to 1 of the sorted samples.
inline double percentile(std::vector<double> samples, double part) {
  std::sort(samples.begin(), samples.end());
  return samples[static_cast<size_t>(std::lround(part * static_cast<double>(samples.size() - 1)))];
}
inline ordered_json summary(const std::vector<double>& samples) {
  return {{"samples", samples.size()},
          {"min", percentile(samples, 0)},
          {"p50", percentile(samples, 0.5)},
          {"p95", percentile(samples, 0.95)}};
}

inline mkrt::RankOptions cuda() {
  mkrt::RankOptions rank;
  rank.kind = MKRT_DEVICE_CUDA;
  return rank;
}

inline ordered_json describe(const mkrt::DeviceInfo& device) {
  return {{"name", device.name},
          {"target", device.target},
          {"sms", device.worker_count},
          {"memory_bytes", device.memory_bytes}};
}

// Runs `body`, prints what it returns; the program's exit status.
template <class Body>
int report(const char* program, Body body) {
  try {
    const ordered_json result = body();
    std::printf("%s\n", result.dump(2).c_str());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s: %s\n", program, failure.what());
    return 1;
  }
  return 0;
}

}  // namespace mkrt::bench
