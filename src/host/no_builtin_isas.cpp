// Takes the place of builtin_isas.cpp in a build without mkrt.llm for host ranks.
#include "host/isa.hpp"

namespace mkrt::host {

std::span<const mkrt_host_isa* const> builtin_isas() noexcept { return {}; }

const char* builtin_target() noexcept { return "none"; }

}  // namespace mkrt::host
