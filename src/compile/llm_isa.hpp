// The text of isa/mkrt.llm.json, which the build copies into the compiler.
#pragma once

#include <string_view>

namespace mkrt::compile {

extern const std::string_view kLlmIsaJson;

}  // namespace mkrt::compile
