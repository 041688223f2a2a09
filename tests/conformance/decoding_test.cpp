// From a model folder through compiler, loader and host device to logits.
#include "decoding.hpp"

namespace {

using namespace mkrt::test;

Target host() {
  mkrt::RankOptions rank;
  rank.kind = MKRT_DEVICE_HOST;
  rank.worker_count = 4;
  return {rank, kSanitized ? ways_with({1, 4}) : ways_with({1, 2, 3, 4}), {}};
}

}  // namespace

TEST_CASE("random models of every family decode as a float64 decoder does, whatever runs them") {
  for (const char* shape : {"tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"}) {
    for (const uint32_t batch : {1, 3, 16}) {
      for (const uint32_t splits : {1, 3}) check_random_model(host(), shape, batch, splits);
    }
  }
}

TEST_CASE(
    "attention biases, linear rotary scaling, unusual heads and vocabularies decode as the float64 decoder does") {
  check_unusual_models(host());
}

TEST_CASE("a real model gives the stored tokens and logits in both queue modes with 1 to 4 workers") {
  check_golden(host());
}

TEST_CASE("many steps in one execute choose the tokens that single steps choose") { check_steps_together(host()); }

TEST_CASE("a sequence stops at a stop token and at the end of its list, and the others go on") { check_stops(host()); }
