// How the vector instructions divide a worker's scratch memory.
#pragma once

#include <cstdint>

namespace mkrt::host::llm {

constexpr uint64_t max_batch = 16;       // of the definition's constraints
constexpr uint64_t max_lanes = 16;       // floats of the widest vector
constexpr uint64_t max_head_size = 256;  // of the definition's constraints

// Which inputs `LinearScratch::x` holds. The execute's number tells them from any that another execute, or another
// instruction set, left here; inside one step the inputs of one record's tile at one address do not change, since
// whoever writes them is ordered before or after all tiles of the record.
struct PreparedInput {
  uint64_t execute_serial;
  uint64_t step;
  uint64_t record;
  uint64_t x;  // addresses; x is never 0 where something is held
  uint64_t norm;

  bool operator==(const PreparedInput&) const = default;
};

// Blocks of 8 rows that share the inputs of a chunk where these do not fit `x` as a whole.
constexpr uint64_t strip_blocks = 4;

// 1 MiB: the inputs of 16 sequences of 16384 columns, or of one of 262144. What is larger is prepared in chunks, again
// for every strip of 32 rows.
constexpr uint64_t prepared_floats = 262144;

struct LinearScratch {
  alignas(64) PreparedInput prepared;
  alignas(64) float scales[max_batch];
  alignas(64) float sums[strip_blocks * max_batch * 8 * max_lanes];
  alignas(64) float x[prepared_floats];
};

// Heads that share one pass over the cache; a larger group takes several.
constexpr uint64_t heads_at_once = 8;
// Positions whose keys and values are turned into floats at a time: 32 KiB for the largest head, so that they stay in
// the first caches until every head has used them.
constexpr uint64_t positions_at_once = 32;

struct AttentionScratch {
  alignas(64) float q[heads_at_once][max_head_size];
  alignas(64) float out[heads_at_once][max_head_size];
  alignas(64) float rows[positions_at_once][max_head_size];
  alignas(64) float weights[heads_at_once][positions_at_once];
  alignas(64) float sums[8 * max_lanes];
};

struct Scratch {
  LinearScratch linear;
  AttentionScratch attention;
};

}  // namespace mkrt::host::llm
