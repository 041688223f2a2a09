// How a model is divided over ranks (tensor parallelism): what each rank takes of every matrix.
//
// Programs are written once for all ranks, so all ranks' parts have one size. Where a size does not divide evenly,
// ranks with less are filled up with zeros; they wait for the others anyway.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/model.hpp"

namespace mkrt::compile {

// Part of one dimension of a tensor: elements [first, first + count), then zeros up to `size`.
struct Share {
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t size = 0;
};
constexpr Share whole(uint64_t size) { return {0, size, size}; }

// Each rank's share of a dimension, all of one size.
using Shares = std::vector<Share>;

// A rank's part of the model, in units that its name says. With one rank everything is whole.
class Split {
 public:
  // Throws base::Failure (ARGUMENT) where the model has fewer query heads than ranks.
  Split(const ModelDescription& model, uint32_t ranks);

  uint32_t ranks() const { return ranks_; }

  // A rank has some key-value heads and the same number of query heads, `group`, for each. Up to as many ranks as
  // key-value heads share these out; beyond, several ranks have the same one and share its query heads out.
  uint64_t kv_heads() const { return kv_heads_.front().size; }
  uint64_t group() const { return query_heads_.front().size / kv_heads(); }
  const Shares& kv_head_shares() const { return kv_heads_; }
  const Shares& query_head_shares() const { return query_heads_; }

  // Rows of gate and up, columns of down.
  uint64_t feed_forward() const { return feed_forward_.front().size; }
  const Shares& feed_forward_shares() const { return feed_forward_; }

  // Columns of the token table. Rank r's stand at r * embedding_columns() of the hidden state, whose rows have room for
  // all of them.
  uint64_t embedding_columns() const { return embedding_.front().size; }
  const Shares& embedding_shares() const { return embedding_; }

  // Rows of the LM head in tiles of `tile_rows`: as many whole tiles as every rank can have. What is left over, less
  // than a tile a rank, each rank has as well.
  Shares vocabulary_shares(uint64_t tile_rows) const;
  Share vocabulary_rest(uint64_t tile_rows) const;

 private:
  void divide_heads(const ModelDescription& model);

  uint32_t ranks_;
  uint64_t vocabulary_;
  Shares kv_heads_, query_heads_, feed_forward_, embedding_;
};

// Heads as the rows or columns that they take.
Shares scaled(const Shares& shares, uint64_t factor);

}  // namespace mkrt::compile
