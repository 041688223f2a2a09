// A libcuda.so.1 that tests put first on the search path: it tells what it was asked for, and lacks what it is told to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cuda/driver_api.hpp"

namespace mkrt::cuda::test {

// The library exports one, `mkrt_fake_library`, which no real driver has.
struct FakeLibrary {
  struct Symbol {
    int version;  // of CUDA, at which it came
    void* address;
  };
  struct LookUp {
    std::string symbol;
    int version;
    uint64_t flags;
  };

  std::map<std::string, Symbol> symbols = {};   // everything in the table of driver.hpp
  int version = 13000;                          // what came later is not found
  std::string missing = {};                     // nor is this symbol
  Result result_of_missing = result_not_found;  // which says so
  Result result_of_initialize = result_success;
  std::vector<LookUp> look_ups = {};  // so far
};

}  // namespace mkrt::cuda::test
