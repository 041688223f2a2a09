// The oracle itself against logits that an independent implementation stored.
#include "reference_decoder.hpp"

#include <doctest/doctest.h>

using nlohmann::json;

TEST_CASE("the reference decoder gives the stored logits of a real model") {
  const std::string folder = std::string(MKRT_TEST_DATA) + "/novelist";
  std::ifstream file(folder + "/golden.json");
  const json golden = json::parse(file);
  mkrt::reference::Decoder decoder(folder);
  const json& full = golden["full_logits"];
  double largest = 0;
  for (size_t p = 0; p < full["prompt_ids"].size(); ++p) {
    const auto logits = decoder.step(full["prompt_ids"][p]);
    REQUIRE(logits.size() == full["logits"][p].size());
    for (size_t i = 0; i < logits.size(); ++i) {
      largest = std::max(largest, std::abs(logits[i] - full["logits"][p][i].get<double>()));
    }
  }
  MESSAGE("largest difference " << largest);
  // The file has four decimals of logits that were computed in float32.
  CHECK(largest < 1e-3);
}
