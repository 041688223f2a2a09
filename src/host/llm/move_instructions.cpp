#include "host/llm/move_instructions.hpp"

#include <algorithm>

#include "host/llm/numbers.hpp"
#include "host/llm/slices.hpp"
#include "mkrt_isa/llm.hpp"

namespace mkrt::host::llm {
namespace {

// The four opcodes have one form.
namespace form = isa::llm::copy;
constexpr bool has_form(uint32_t in, uint32_t out) noexcept { return in == form::in && out == form::out; }
static_assert(has_form(isa::llm::reduce_f32::in, isa::llm::reduce_f32::out));
static_assert(has_form(isa::llm::reduce_f16::in, isa::llm::reduce_f16::out));
static_assert(has_form(isa::llm::reduce_bf16::in, isa::llm::reduce_bf16::out));

// What a tile moves: `bytes` from each of some ranks to each of others.
struct Move {
  uintptr_t in = 0;  // own-rank addresses
  uintptr_t out = 0;
  uint64_t bytes = 0;
  uint32_t first_source = 0;
  uint32_t sources = 0;
  uint32_t first_destination = 0;
  uint32_t destinations = 0;

  explicit Move(const mkrt_host_tile* tile) noexcept
      : in(reinterpret_cast<uintptr_t>(mkrt_host_operand(tile, form::in))),
        out(reinterpret_cast<uintptr_t>(mkrt_host_operand(tile, form::out))),
        bytes(std::min(mkrt_host_operand_size(tile, form::in), mkrt_host_operand_size(tile, form::out))) {
    mkrt_host_operand_ranks(tile, form::in, &first_source, &sources);
    mkrt_host_operand_ranks(tile, form::out, &first_destination, &destinations);
  }

  // Some rank's output would overwrite input that is still to be read.
  bool overlaps() const noexcept {
    const bool common_rank =
        std::max(first_source, first_destination) < std::min(first_source + sources, first_destination + destinations);
    return common_rank && in != out && in < out + bytes && out < in + bytes;
  }
};

const std::byte* source_of(const mkrt_host_tile* tile, const Move& move, uint32_t number) noexcept {
  const auto delta = static_cast<uintptr_t>(tile->rank_delta[move.first_source + number]);
  return reinterpret_cast<const std::byte*>(move.in + delta);
}
std::byte* destination_of(const mkrt_host_tile* tile, const Move& move, uint32_t number) noexcept {
  const auto delta = static_cast<uintptr_t>(tile->rank_delta[move.first_destination + number]);
  return reinterpret_cast<std::byte*>(move.out + delta);
}

// Elements in memory and as numbers.
struct F32 {
  using Bits = float;
  static float number(Bits bits) noexcept { return bits; }
  static Bits rounded(float value) noexcept { return value; }
};
struct F16 {
  using Bits = uint16_t;
  static float number(Bits bits) noexcept { return float_of_f16(bits); }
  static Bits rounded(float value) noexcept { return f16_or_infinity_of_float(value); }
};
struct Bf16 {
  using Bits = uint16_t;
  static float number(Bits bits) noexcept { return float_of_bf16(bits); }
  static Bits rounded(float value) noexcept { return bf16_of_float(value); }
};

// Adds in the order of ranks, one rounding to f32 each, so that results are the same whoever computes them. A buffer is
// read from every rank before it is written to any: the output may be where the input is.
template <class Element>
uint32_t reduce(const mkrt_host_tile* tile) noexcept {
  using Bits = typename Element::Bits;
  const Move move(tile);
  if (move.overlaps()) return form::fault_input_and_output_overlap_without_being_same;
  constexpr uint64_t at_once = 256;
  const uint64_t elements = move.bytes / sizeof(Bits);
  for (uint64_t first = 0; first < elements; first += at_once) {
    const uint64_t count = std::min(at_once, elements - first);
    float sums[at_once];
    Bits rounded[at_once];
    for (uint32_t s = 0; s < move.sources; ++s) {
      const std::byte* source = source_of(tile, move, s) + first * sizeof(Bits);
      for (uint64_t i = 0; i < count; ++i) {
        const float value = Element::number(load<Bits>(source + i * sizeof(Bits)));
        sums[i] = s == 0 ? value : sums[i] + value;
      }
    }
    for (uint64_t i = 0; i < count; ++i) rounded[i] = Element::rounded(sums[i]);
    for (uint32_t d = 0; d < move.destinations; ++d) {
      std::memcpy(destination_of(tile, move, d) + first * sizeof(Bits), rounded, count * sizeof(Bits));
    }
  }
  return form::fault_none;
}

}  // namespace

uint32_t copy(const mkrt_host_tile* tile) noexcept {
  const Move move(tile);
  if (move.overlaps()) return form::fault_input_and_output_overlap_without_being_same;
  const std::byte* source = source_of(tile, move, 0);
  for (uint32_t d = 0; d < move.destinations; ++d) {
    std::byte* destination = destination_of(tile, move, d);
    if (destination != source) std::memcpy(destination, source, move.bytes);
  }
  return form::fault_none;
}

uint32_t reduce_f32(const mkrt_host_tile* tile) noexcept { return reduce<F32>(tile); }
uint32_t reduce_f16(const mkrt_host_tile* tile) noexcept { return reduce<F16>(tile); }
uint32_t reduce_bf16(const mkrt_host_tile* tile) noexcept { return reduce<Bf16>(tile); }

}  // namespace mkrt::host::llm
