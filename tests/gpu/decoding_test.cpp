// Results: what tests/conformance asks of every device, and long runs.
#include "gpu.hpp"
#include "long_text.hpp"

using namespace mkrt::test;

TEST_CASE("a real model gives the stored tokens and logits in both queue modes on all, 64 and 1 SMs") {
  check_golden(gpu());
}

TEST_CASE("many steps in one execute choose the tokens that single steps choose") { check_steps_together(gpu()); }

TEST_CASE("a sequence stops at a stop token and at the end of its list, and the others go on") { check_stops(gpu()); }

TEST_CASE("random models of every family decode as a float64 decoder does, in every queue mode, on all, 64 and 1 SMs") {
  for (const char* shape : {"tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"}) {
    for (const uint32_t batch : {1, 3, 16}) {
      for (const uint32_t splits : {1, 3}) check_random_model(gpu(), shape, batch, splits);
    }
  }
}

TEST_CASE(
    "attention biases, linear rotary scaling, unusual heads and vocabularies decode as the float64 decoder does") {
  check_unusual_models(gpu());
}

TEST_CASE("10 000 tokens in a row are the same every time, in both queue modes") {
  const Novelist novelist;
  Model model(novelist.package(), gpu());
  const LongText first = write_long_text(model, {MKRT_QUEUE_DYNAMIC, 0}, 10'000);
  CHECK(first.tokens.size() >= 10'000);
  CHECK(first == write_long_text(model, {MKRT_QUEUE_DYNAMIC, 0}, 10'000));
  CHECK(first == write_long_text(model, {MKRT_QUEUE_STATIC, 0}, 10'000));
}
