// Which instruction set runs a program on host ranks.
#pragma once

#include <span>

#include "mkrt/host_isa.h"
#include "package/program.hpp"

namespace mkrt::host {

// mkrt.llm: what every mesh can run without being given anything. Nothing in a build without Highway.
std::span<const mkrt_host_isa* const> builtin_isas() noexcept;
// Vector target that these run on, such as "AVX3"; "none" where there are none.
const char* builtin_target() noexcept;

// The instruction set of `isas` with the definition's name and fingerprint. Throws Failure(UNSUPPORTED) with what was
// found and what was wanted where there is none.
const mkrt_host_isa& find_isa(std::span<const mkrt_host_isa* const> isas, const package::IsaDefinition& definition);

}  // namespace mkrt::host
