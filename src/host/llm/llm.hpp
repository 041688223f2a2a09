// The instruction set mkrt.llm, version 1, for host ranks.
#pragma once

#include <span>

#include "mkrt/host_isa.h"

namespace mkrt::host {

// Runs on the best vector target that this processor has.
extern const mkrt_host_isa llm_isa;

// Name of the target that llm_isa runs on, such as "AVX3".
const char* vector_target() noexcept;

// The same instruction set compiled for one kind of processor.
struct VectorTarget {
  const char* name;
  mkrt_host_isa isa;
};

// Every target that this processor has, best first and never empty. Tests run them all.
std::span<const VectorTarget> vector_targets() noexcept;

}  // namespace mkrt::host
