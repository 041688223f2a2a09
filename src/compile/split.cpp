#include "compile/split.hpp"

#include <algorithm>

#include "base/failure.hpp"
#include "compile/lower.hpp"

namespace mkrt::compile {
namespace {

constexpr uint64_t divide_up(uint64_t value, uint64_t divisor) { return (value + divisor - 1) / divisor; }

// Piece `number` of `count` pieces of `units`, which differ by one at most.
Share piece(uint64_t units, uint64_t count, uint64_t number) {
  const uint64_t first = number * units / count;
  return {first, (number + 1) * units / count - first, divide_up(units, count)};
}

// Pieces of `size` elements in blocks, the last block perhaps cut.
Shares divide_blocks(uint64_t size, uint64_t block, uint32_t ranks) {
  Shares shares;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const Share blocks = piece(divide_up(size, block), ranks, rank);
    const uint64_t first = std::min(blocks.first * block, size);
    shares.push_back({first, std::min(blocks.count * block, size - first), blocks.size * block});
  }
  return shares;
}

// Pieces that stand at multiples of their size.
Shares divide_equally(uint64_t size, uint64_t piece_size, uint32_t ranks) {
  Shares shares;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const uint64_t first = std::min(rank * piece_size, size);
    shares.push_back({first, std::min(piece_size, size - first), piece_size});
  }
  return shares;
}

}  // namespace

Split::Split(const ModelDescription& model, uint32_t ranks) : ranks_(ranks), vocabulary_(model.vocabulary) {
  if (ranks > model.heads) {
    throw base::Failure(MKRT_ERROR_ARGUMENT,
                        base::text("ranks is ", ranks,
                                   ", and each needs a query head: the model's num_attention_heads is ", model.heads));
  }
  divide_heads(model);
  if (ranks == 1) {
    feed_forward_ = {whole(model.feed_forward)};
    embedding_ = {whole(model.hidden)};
    return;
  }
  feed_forward_ = divide_blocks(model.feed_forward, kBlockRows, ranks);
  const uint64_t columns = divide_up(divide_up(model.hidden, ranks), kBlockColumns) * kBlockColumns;
  embedding_ = divide_equally(model.hidden, columns, ranks);
}

void Split::divide_heads(const ModelDescription& model) {
  const uint64_t group = model.heads / model.kv_heads;
  for (uint64_t rank = 0; rank < ranks_; ++rank) {
    if (ranks_ <= model.kv_heads) {
      const Share heads = piece(model.kv_heads, ranks_, rank);
      kv_heads_.push_back(heads);
      query_heads_.push_back({heads.first * group, heads.count * group, heads.size * group});
      continue;
    }
    // Key-value head k belongs to piece k of the ranks; those share its group out. The smallest piece has the largest
    // shares, which are everybody's size.
    const uint64_t head = divide_up((rank + 1) * model.kv_heads, ranks_) - 1;
    const Share members = piece(ranks_, model.kv_heads, head);
    const Share heads = piece(group, members.count, rank - members.first);
    kv_heads_.push_back({head, 1, 1});
    query_heads_.push_back({head * group + heads.first, heads.count, divide_up(group, ranks_ / model.kv_heads)});
  }
}

Shares Split::vocabulary_shares(uint64_t tile_rows) const {
  if (ranks_ == 1) return {whole(vocabulary_)};
  return divide_equally(vocabulary_, vocabulary_ / (ranks_ * tile_rows) * tile_rows, ranks_);
}

Share Split::vocabulary_rest(uint64_t tile_rows) const {
  const uint64_t first = ranks_ * vocabulary_shares(tile_rows).front().size;
  return {first, vocabulary_ - first, vocabulary_ - first};
}

Shares scaled(const Shares& shares, uint64_t factor) {
  Shares out;
  for (const Share& share : shares) out.push_back({share.first * factor, share.count * factor, share.size * factor});
  return out;
}

}  // namespace mkrt::compile
