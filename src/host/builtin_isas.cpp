// In a file of its own, so that a program that links the host device without its instruction set need not have it.
#include "host/isa.hpp"
#include "host/llm/llm.hpp"

namespace mkrt::host {

std::span<const mkrt_host_isa* const> builtin_isas() noexcept {
  static constexpr const mkrt_host_isa* isas[] = {&llm_isa};
  return isas;
}

const char* builtin_target() noexcept { return vector_target(); }

}  // namespace mkrt::host
