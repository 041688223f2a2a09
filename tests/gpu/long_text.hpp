// A long text of novelist, for tests that write one twice.
#pragma once

#include "gpu.hpp"

namespace mkrt::test {

// A text of more than `count` tokens, as many to an execute as the context holds; each stretch begins with the last
// tokens of the one before. Ends with the logits that followed.
struct LongText {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  bool operator==(const LongText& other) const { return tokens == other.tokens && same_bits({logits}, {other.logits}); }
};
inline LongText write_long_text(Model& model, const Way& way, size_t count) {
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

}  // namespace mkrt::test
