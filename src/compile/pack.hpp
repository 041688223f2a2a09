// Packing: the checkpoint's tensors become the package's weight file, in the order that kernels read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compile/checkpoint.hpp"
#include "compile/lower.hpp"

namespace mkrt::compile {

// A weight of the plan and the checked tensors that it is made of.
struct BoundWeight {
  const Weight* weight = nullptr;
  std::vector<SourceTensor> sources;  // one for each of weight->sources
};

// Nearest bf16 of an f32, halfway cases to the even one. NaN stays NaN; what is beyond the range becomes infinite.
uint16_t round_to_bf16(float value) noexcept;
// The value of a stored f16; every one is an f32.
float widen_f16(uint16_t bits) noexcept;
float widen_bf16(uint16_t bits) noexcept;

// Blocks of 8 rows [first_block, first_block + blocks) of a packed matrix, each padded_columns * 8 elements.
void pack_blocks(const BoundWeight& matrix, uint64_t first_block, uint64_t blocks, uint16_t* out);
// A vector's elements as f32.
void pack_vector(const BoundWeight& vector, float* out);

// Writes the weights, in this order, as a safetensors file of `path`, piece by piece. `progress` is called in the
// caller's thread. Throws base::Failure (FILE).
void write_weights(const std::vector<BoundWeight>& weights, const std::string& path,
                   const std::function<void(uint64_t done_bytes, uint64_t total_bytes)>& progress);

}  // namespace mkrt::compile
