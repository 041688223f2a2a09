// The instructions that have vector code, compiled for every kind of processor.
#pragma once

#include <span>

#include "mkrt/host_isa.h"

namespace mkrt::host::llm {

struct VectorInstructions {
  const char* name;     // of the target, as Highway names it
  bool (*available)();  // whether this processor has it
  mkrt_host_instruction linear;
  mkrt_host_instruction linear_swiglu;
  mkrt_host_instruction linear_best;
  mkrt_host_instruction attention;
};

// Every target that was compiled, best first; the last one is always available.
std::span<const VectorInstructions> vector_instructions() noexcept;

}  // namespace mkrt::host::llm
