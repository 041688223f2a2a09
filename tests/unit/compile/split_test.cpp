// How models are divided: everything is somewhere, heads have their key-value heads, all parts have one size.
#include "compile/split.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "base/failure.hpp"

using namespace mkrt::compile;

namespace {

ModelDescription model_of(uint64_t heads, uint64_t kv_heads, uint64_t feed_forward, uint64_t hidden,
                          uint64_t vocabulary) {
  ModelDescription model;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.feed_forward = feed_forward;
  model.hidden = hidden;
  model.vocabulary = vocabulary;
  model.head_size = 64;
  return model;
}

// Whether the shares follow each other without gap from 0 to `size`, and have room for what they take.
bool covers(const Shares& shares, uint64_t size) {
  uint64_t end = 0;
  for (const Share& share : shares) {
    if (share.first != end || share.count > share.size || share.size != shares.front().size) return false;
    end += share.count;
  }
  return end == size;
}

uint64_t largest_count(const Shares& shares) { return std::ranges::max_element(shares, {}, &Share::count)->count; }

void check_division(const ModelDescription& model, uint32_t ranks) {
  CAPTURE(model.heads);
  CAPTURE(model.kv_heads);
  CAPTURE(model.feed_forward);
  CAPTURE(model.hidden);
  CAPTURE(model.vocabulary);
  CAPTURE(ranks);
  const Split split(model, ranks);
  const uint64_t group = model.heads / model.kv_heads;
  REQUIRE(split.query_head_shares().size() == ranks);
  REQUIRE(split.kv_head_shares().size() == ranks);
  CHECK(covers(split.query_head_shares(), model.heads));
  CHECK(covers(split.feed_forward_shares(), model.feed_forward));
  CHECK(covers(split.embedding_shares(), model.hidden));
  CHECK(largest_count(split.query_head_shares()) == split.query_head_shares().front().size);
  CHECK(largest_count(split.kv_head_shares()) == split.kv_heads());
  CHECK(split.kv_heads() * split.group() == split.query_head_shares().front().size);

  size_t without_own = 0, idle = 0;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const Share queries = split.query_head_shares()[rank], keys = split.kv_head_shares()[rank];
    idle += queries.count == 0;
    for (uint64_t i = 0; i < queries.count; ++i) {
      // The instruction set has local query head i use local key-value head i / group.
      const uint64_t local = i / split.group();
      without_own += local >= keys.count || keys.first + local != (queries.first + i) / group;
    }
    CHECK(split.embedding_shares()[rank].first == std::min(rank * split.embedding_columns(), model.hidden));
  }
  CHECK(without_own == 0);
  CHECK(idle == 0);

  for (const uint64_t tile_rows : {16, 32, 48}) {
    const Shares rows = split.vocabulary_shares(tile_rows);
    const Share rest = split.vocabulary_rest(tile_rows);
    CHECK(covers(rows, rest.first));
    CHECK(rest.first + rest.count == model.vocabulary);
    CHECK(rest.count == rest.size);
    CHECK(rest.count < std::max<uint64_t>(ranks > 1 ? ranks * tile_rows : 1, 1));
    CHECK((ranks == 1 || rows.front().size % tile_rows == 0));
  }
}

}  // namespace

TEST_CASE("one rank has all of everything as it is") {
  const ModelDescription model = model_of(6, 2, 301, 171, 517);
  const Split split(model, 1);
  CHECK(split.kv_heads() == 2);
  CHECK(split.group() == 3);
  CHECK(split.feed_forward() == 301);
  CHECK(split.embedding_columns() == 171);
  CHECK(split.vocabulary_shares(16).front().size == 517);
  CHECK(split.vocabulary_rest(16).count == 0);
}

TEST_CASE("known models divide as expected") {
  const ModelDescription llama_8b = model_of(32, 8, 14336, 4096, 128256);
  const Split eight(llama_8b, 8);
  CHECK(eight.kv_heads() == 1);
  CHECK(eight.group() == 4);
  CHECK(eight.feed_forward() == 1792);
  CHECK(eight.embedding_columns() == 512);
  CHECK(eight.vocabulary_shares(32).front().size == 16032);
  CHECK(eight.vocabulary_rest(32).count == 0);
  const Split sixteen(llama_8b, 16);  // two ranks share a key-value head
  CHECK(sixteen.kv_heads() == 1);
  CHECK(sixteen.group() == 2);
  CHECK(sixteen.kv_head_shares()[5].first == 2);
  CHECK(sixteen.query_head_shares()[5].first == 10);
  const Split three(llama_8b, 3);
  CHECK(three.kv_heads() == 3);
  CHECK(three.group() == 4);
  CHECK(three.kv_head_shares()[0].count == 2);
  CHECK(three.kv_head_shares()[2].count == 3);
  const Split qwen(model_of(14, 2, 4864, 896, 151936), 4);  // groups of 7 in 3 and 4
  CHECK(qwen.kv_heads() == 1);
  CHECK(qwen.group() == 4);
  CHECK(qwen.query_head_shares()[0].count == 3);
  CHECK(qwen.query_head_shares()[1].count == 4);
}

TEST_CASE("random models divide over every number of ranks without gap, and query heads keep their key-value heads") {
  std::mt19937_64 random(std::random_device{}());
  const auto below = [&](uint64_t bound) { return 1 + random() % bound; };
  for (int round = 0; round < 500; ++round) {
    const uint64_t kv_heads = below(20);
    const ModelDescription model = model_of(kv_heads * below(12), kv_heads, below(5000), below(5000), below(200'000));
    check_division(model, static_cast<uint32_t>(below(std::min<uint64_t>(model.heads, 64))));
  }
}

TEST_CASE("more ranks than query heads are refused by name") {
  const ModelDescription model = model_of(6, 2, 300, 172, 517);
  CHECK_NOTHROW(Split(model, 6));
  try {
    const Split split(model, 7);
    FAIL("not refused");
  } catch (const mkrt::base::Failure& failure) {
    CHECK(failure.status() == MKRT_ERROR_ARGUMENT);
    CHECK(failure.message().find("ranks is 7") != std::string::npos);
    CHECK(failure.message().find("num_attention_heads is 6") != std::string::npos);
  }
}
