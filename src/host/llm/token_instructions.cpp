#include "host/llm/token_instructions.hpp"

#include <algorithm>
#include <cmath>

#include "host/llm/numbers.hpp"
#include "host/llm/slices.hpp"
#include "mkrt_isa/llm.hpp"

namespace mkrt::host::llm {
namespace {

// A block of packed weights: 8 rows of 32 columns, 256 elements.
constexpr uint64_t block_rows = 8;
constexpr uint64_t block_columns = 32;
constexpr uint64_t block_elements = block_rows * block_columns;

// One past the last element of packed row `row`.
uint64_t packed_row_end(uint64_t row, uint64_t column_blocks) noexcept {
  return ((row / block_rows + 1) * column_blocks - 1) * block_elements + (row % block_rows + 1) * block_columns;
}

// Index of the largest value, the smallest index where values are equal; NaN never wins, and the first index is taken
// where nothing else is there.
int32_t best_of(const Slice& values, const Slice& indices) noexcept {
  const uint64_t count = std::min(values.count, indices.count);
  bool found = false;
  float best_value = 0;
  int32_t best_index = element<int32_t>(indices, 0, 0);
  for (uint64_t i = 0; i < count; ++i) {
    const float value = element<float>(values, 0, i);
    const int32_t index = element<int32_t>(indices, 0, i);
    if (std::isnan(value)) continue;
    if (!found || value > best_value || (value == best_value && index < best_index)) {
      found = true;
      best_value = value;
      best_index = index;
    }
  }
  return best_index;
}

bool is_stop_token(const mkrt_host_tile* tile, int32_t token) noexcept {
  namespace op = isa::llm::choose;
  const Slice stop_tokens = read_slice(tile, op::stop_tokens, sizeof(int32_t));
  const int32_t wanted = element<int32_t>(read_slice(tile, op::stop_count, sizeof(int32_t)), 0, 0);
  const uint64_t count = std::min<uint64_t>(static_cast<uint64_t>(std::max(wanted, 0)), stop_tokens.count);
  for (uint64_t i = 0; i < count; ++i) {
    if (element<int32_t>(stop_tokens, 0, i) == token) return true;
  }
  return false;
}

}  // namespace

uint32_t embed(const mkrt_host_tile* tile) noexcept {
  namespace op = isa::llm::embed;
  const Slice tokens = read_slice(tile, op::tokens, sizeof(int32_t));
  const Slice table = read_slice(tile, op::table, sizeof(uint16_t));
  const Destination out(tile, op::out, sizeof(float));
  const uint64_t columns = parameter_u32(tile, op::columns);
  const uint64_t column_blocks = round_up(columns, block_columns) / block_columns;

  const int32_t position = element<int32_t>(read_slice(tile, op::position, sizeof(int32_t)), 0, 0);
  if (position < 0 || static_cast<uint64_t>(position) >= tokens.count) {
    return op::fault_position_outside_token_list;
  }
  const int32_t token = element<int32_t>(tokens, 0, static_cast<uint64_t>(position));
  if (token < 0 || static_cast<uint32_t>(token) >= parameter_u32(tile, op::vocabulary) ||
      packed_row_end(static_cast<uint64_t>(token), column_blocks) > table.count) {
    return op::fault_token_outside_vocabulary;
  }

  const uint64_t row = static_cast<uint64_t>(token);
  const std::byte* source =
      table.row(0) + (row / block_rows * column_blocks * block_elements + row % block_rows * block_columns) * 2;
  for (uint64_t first = 0; first < columns; first += block_columns, source += block_elements * 2) {
    float values[block_columns];
    for (uint64_t i = 0; i < block_columns; ++i) values[i] = float_of_bf16(load<uint16_t>(source + 2 * i));
    out.store(0, first, values, std::min(block_columns, columns - first));
  }
  return op::fault_none;
}

uint32_t rotation(const mkrt_host_tile* tile) noexcept {
  namespace op = isa::llm::rotation;
  const Slice frequencies = read_slice(tile, op::frequencies, sizeof(float));
  const Destination out(tile, op::out, sizeof(float));
  const auto position = static_cast<float>(element<int32_t>(read_slice(tile, op::position, sizeof(int32_t)), 0, 0));
  for (uint64_t i = 0; i < frequencies.count; ++i) {
    const float angle = position * element<float>(frequencies, 0, i);
    const float pair[2] = {std::cos(angle), std::sin(angle)};
    out.store(0, 2 * i, pair, 2);
  }
  return op::fault_none;
}

uint32_t choose(const mkrt_host_tile* tile) noexcept {
  namespace op = isa::llm::choose;
  if (element<int32_t>(read_slice(tile, op::active, sizeof(int32_t)), 0, 0) == 0) return op::fault_none;
  const Destination tokens(tile, op::tokens, sizeof(int32_t));
  const int32_t position = element<int32_t>(read_slice(tile, op::position, sizeof(int32_t)), 0, 0);
  if (position < 0 || static_cast<uint64_t>(position) >= tokens.count()) {
    return op::fault_position_outside_token_list;
  }

  const uint64_t next = static_cast<uint64_t>(position) + 1;
  bool done = next == tokens.count();
  if (!done) {
    const int32_t prompt_length = element<int32_t>(read_slice(tile, op::prompt_length, sizeof(int32_t)), 0, 0);
    if (static_cast<int64_t>(next) >= prompt_length) {
      const int32_t token =
          best_of(read_slice(tile, op::best_value, sizeof(float)), read_slice(tile, op::best_index, sizeof(int32_t)));
      tokens.store(0, next, &token, 1);
      done = is_stop_token(tile, token);
    }
    const auto next_position = static_cast<int32_t>(next);
    Destination(tile, op::position, sizeof(int32_t)).store(0, 0, &next_position, 1);
  }
  if (done) {
    const int32_t inactive = 0;
    Destination(tile, op::active, sizeof(int32_t)).store(0, 0, &inactive, 1);
  }
  return op::fault_none;
}

uint32_t sum_partials(const mkrt_host_tile* tile) noexcept {
  namespace op = isa::llm::sum_partials;
  const Slice partial = read_slice(tile, op::partial, sizeof(float));
  const Slice residual = read_slice(tile, op::residual, sizeof(float));
  const Destination out(tile, op::out, sizeof(float));
  const uint64_t parts = parameter_u32(tile, op::parts);
  const uint64_t batch = parameter_u32(tile, op::batch);
  // A buffer at a time: sizes have no bound here, and `out` may be where `residual` is.
  constexpr uint64_t at_once = 256;
  for (uint64_t s = 0; s < batch; ++s) {
    for (uint64_t first = 0; first < out.count(); first += at_once) {
      const uint64_t count = std::min(at_once, out.count() - first);
      float sums[at_once];
      for (uint64_t i = 0; i < count; ++i) sums[i] = element<float>(residual, s, first + i);
      for (uint64_t p = 0; p < parts; ++p) {
        for (uint64_t i = 0; i < count; ++i) sums[i] += element<float>(partial, p * batch + s, first + i);
      }
      out.store(s, first, sums, count);
    }
  }
  return op::fault_none;
}

}  // namespace mkrt::host::llm
