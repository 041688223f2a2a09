// One process's share of a model's ranks.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "decoding.hpp"
#include "outcome.hpp"
#include "process.hpp"

namespace mkrt::test {

// Ranks of each process.
using Division = std::vector<uint32_t>;

// The exchange and the model of process `number` of a division; two workers a rank.
struct Share {
  Share(const std::string& package, const std::string& address, const Division& division, uint32_t number)
      : exchange(runtime, address, number, static_cast<uint32_t>(division.size())),
        extension(exchange.extension()),
        model(package, target(division[number], &extension.base)) {}

  static Target target(uint32_t ranks, const mkrt_extension* extensions) {
    mkrt::RankOptions rank;
    rank.kind = MKRT_DEVICE_HOST;
    rank.worker_count = 2;
    return {rank, ways_with({1, 2}), {}, ranks, 1, extensions};
  }

  mkrt::Runtime runtime;
  mkrt::Exchange exchange;
  mkrt_process_extension extension;
  Model model;
};

// A package for so many ranks.
class Novelist {
 public:
  explicit Novelist(uint32_t ranks = 2, uint32_t context = 0) {
    compile_novelist(Share::target(ranks, nullptr), folder_.path("package"), 1, context);
  }
  std::string path() const { return folder_.path("package"); }

 private:
  TemporaryFolder folder_;
};

inline uint32_t ranks_of(const Division& division) { return std::accumulate(division.begin(), division.end(), 0u); }

}  // namespace mkrt::test
