// Models divided over several ranks, on the host device: every number of ranks must decode as one does.
#include "decoding.hpp"

namespace {

using namespace mkrt::test;

// Few workers a rank: what matters here is between ranks.
Target host_ranks(uint32_t ranks) {
  mkrt::RankOptions rank;
  rank.kind = MKRT_DEVICE_HOST;
  rank.worker_count = 2;
  return {rank, kSanitized ? ways_with({2}) : ways_with({1, 2}), {}, ranks};
}

// Enough heads for eight ranks, in every way to divide them.
struct Heads {
  const char* shape;
  uint32_t heads, kv_heads;
};
void set_heads(nlohmann::ordered_json& config, const Heads& of) {
  config["num_attention_heads"] = of.heads;
  config["num_key_value_heads"] = of.kv_heads;
}
constexpr Heads kHeads[] = {
    {"tiny-llama", 8, 2},    // fewer key-value heads than ranks from 3 on
    {"tiny-mistral", 9, 9},  // one query head each; 2, 4 and 8 ranks do not divide them
    {"tiny-qwen2", 14, 2},   // groups of 7, which do not divide
    {"tiny-qwen3", 12, 4},
};

}  // namespace

TEST_CASE("random models of every family decode on 2, 3, 4 and 8 ranks as a float64 decoder does") {
  for (const Heads& of : kHeads) {
    for (const uint32_t ranks : {2, 3, 4, 8}) {
      check_random_model(host_ranks(ranks), of.shape, 3, ranks == 3 ? 2 : 1,
                         [&](auto& config) { set_heads(config, of); });
    }
  }
}

TEST_CASE("random models of every family have the logits of one rank on 2, 3, 4 and 8 ranks") {
  for (const Heads& of : kHeads) {
    for (const uint32_t ranks : {2, 3, 4, 8}) {
      for (const uint32_t batch : {1, 3, 16}) {
        // Sequences are not divided: as many as there may be on one number of ranks, which has to do for all.
        if (batch == 16 && ranks != 3) continue;
        check_against_one_rank(host_ranks(ranks), of.shape, batch, [&](auto& config) { set_heads(config, of); });
      }
    }
  }
}

TEST_CASE("biases, tied and untied heads, and vocabularies smaller and much larger than the ranks' tiles are divided") {
  check_random_model(host_ranks(3), "tiny-llama", 2, 0, [](auto& config) { config["attention_bias"] = true; });
  check_random_model(host_ranks(4), "tiny-qwen3", 1, 2, [](auto& config) {
    config["attention_bias"] = true;
    config["tie_word_embeddings"] = true;
    config["vocab_size"] = 50;  // fewer rows than four tiles
  });
  check_random_model(host_ranks(2), "tiny-mistral", 1, 0, [](auto& config) {
    config["head_dim"] = 2;
    config["vocab_size"] = 20011;  // larger tiles, and rows left over
  });
  check_random_model(host_ranks(7), "tiny-qwen2", 1, 0, [](auto& config) { config["intermediate_size"] = 9; });
}

TEST_CASE("a real model gives the stored tokens and logits on 2, 3 and 4 ranks, and the logits of one") {
  for (const uint32_t ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    check_golden(host_ranks(ranks));
    // Sanitizers have seen all of it by then, and are slow.
    if (!kSanitized) check_golden_against_one_rank(host_ranks(ranks));
  }
}

TEST_CASE("many steps in one execute choose on 2 and 3 ranks the tokens that single steps choose") {
  check_steps_together(host_ranks(2));
  check_steps_together(host_ranks(3));
}

TEST_CASE("on 2 and 4 ranks a sequence stops at a stop token and at the end of its list, and the others go on") {
  check_stops(host_ranks(2));
  check_stops(host_ranks(4));
}
