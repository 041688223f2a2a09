#include "host/llm/llm.hpp"

#include <array>
#include <utility>

#include "host/llm/move_instructions.hpp"
#include "host/llm/scratch.hpp"
#include "host/llm/token_instructions.hpp"
#include "host/llm/vector_instructions.hpp"
#include "mkrt_isa/llm.hpp"

namespace mkrt::host {
namespace {

using Instructions = std::array<mkrt_host_instruction, isa::llm::opcode_count>;

Instructions instructions_of(const llm::VectorInstructions& vector) noexcept {
  Instructions out{};
  out[isa::llm::opcode_embed] = llm::embed;
  out[isa::llm::opcode_rotation] = llm::rotation;
  out[isa::llm::opcode_linear] = vector.linear;
  out[isa::llm::opcode_linear_swiglu] = vector.linear_swiglu;
  out[isa::llm::opcode_linear_best] = vector.linear_best;
  out[isa::llm::opcode_attention] = vector.attention;
  out[isa::llm::opcode_choose] = llm::choose;
  out[isa::llm::opcode_sum_partials] = llm::sum_partials;
  out[isa::llm::opcode_copy] = llm::copy;
  out[isa::llm::opcode_reduce_f32] = llm::reduce_f32;
  out[isa::llm::opcode_reduce_f16] = llm::reduce_f16;
  out[isa::llm::opcode_reduce_bf16] = llm::reduce_bf16;
  return out;
}

constexpr mkrt_host_isa isa_of(const mkrt_host_instruction* instructions) noexcept {
  return {sizeof(mkrt_host_isa), isa::llm::opcode_count, isa::llm::fingerprint, "mkrt.llm",
          instructions,          sizeof(llm::Scratch)};
}

// The targets of this processor, with their tables. Made once, without memory from anywhere.
class Targets {
 public:
  static const Targets& get() noexcept {
    static const Targets targets;
    return targets;
  }

  std::span<const VectorTarget> all() const noexcept { return std::span(targets_).first(count_); }
  const Instructions& best() const noexcept { return instructions_[0]; }

 private:
  Targets() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
#endif
    for (const llm::VectorInstructions& vector : llm::vector_instructions()) {
      if (!vector.available() || count_ == most) continue;
      instructions_[count_] = instructions_of(vector);
      targets_[count_] = {vector.name, isa_of(instructions_[count_].data())};
      ++count_;
    }
  }

  static constexpr size_t most = 4;  // AVX3, AVX2, SSE4 and the compiler's baseline
  std::array<Instructions, most> instructions_{};
  std::array<VectorTarget, most> targets_{};
  size_t count_ = 0;
};

template <size_t opcode>
uint32_t run_on_best(const mkrt_host_tile* tile) {
  return Targets::get().best()[opcode](tile);
}

template <size_t... opcodes>
constexpr Instructions run_all_on_best(std::index_sequence<opcodes...>) noexcept {
  return {run_on_best<opcodes>...};
}

constexpr Instructions best_instructions = run_all_on_best(std::make_index_sequence<isa::llm::opcode_count>());

}  // namespace

constinit const mkrt_host_isa llm_isa = isa_of(best_instructions.data());

const char* vector_target() noexcept { return vector_targets().front().name; }

std::span<const VectorTarget> vector_targets() noexcept { return Targets::get().all(); }

}  // namespace mkrt::host
