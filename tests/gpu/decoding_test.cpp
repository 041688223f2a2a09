// Results: what tests/conformance asks of every device, and long runs.
#include "gpu.hpp"

namespace {

using namespace mkrt::test;

// A text of more than `count` tokens, as many to an execute as the context holds; each stretch begins with the last
// tokens of the one before. Ends with the logits that followed.
struct LongText {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  bool operator==(const LongText& other) const { return tokens == other.tokens && same_bits({logits}, {other.logits}); }
};
LongText write_long_text(Model& model, const Way& way, size_t count) {
  constexpr size_t carried = 8;
  LongText text;
  std::vector<int32_t> prompt = read_golden().front().prompt_ids;
  const uint32_t tokens = model.program().find_tensor("tokens");
  model.reset();
  while (text.tokens.size() < count) {
    model.set("positions", 0, 0);
    model.start(0, prompt);
    model.step(way, static_cast<uint32_t>(model.context - 1));
    std::vector<int32_t> list(model.context, -1);
    model.session().read<int32_t>(tokens, list);
    text.tokens.insert(text.tokens.end(), list.begin() + static_cast<ptrdiff_t>(prompt.size()), list.end());
    prompt.assign(list.end() - carried, list.end());
  }
  text.logits = model.logits(0);
  return text;
}

}  // namespace

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
    "attention biases, linear rotary scaling, wide heads and a large vocabulary decode as the float64 decoder does") {
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
