// The instruction set as a whole: what it exports, and that every vector target of this processor is there.
#include <doctest/doctest.h>

#include <cstring>
#include <set>
#include <string>

#include "host/llm/llm.hpp"
#include "mkrt_isa/llm.hpp"

namespace {

using mkrt::host::llm_isa;
using mkrt::host::vector_target;
using mkrt::host::vector_targets;

TEST_CASE("the instruction set states its definition and has every instruction") {
  CHECK(llm_isa.struct_size == sizeof(mkrt_host_isa));
  CHECK(std::string(llm_isa.name) == "mkrt.llm");
  CHECK(llm_isa.fingerprint == mkrt::isa::llm::fingerprint);
  REQUIRE(llm_isa.opcode_count == mkrt::isa::llm::opcode_count);
  for (uint32_t i = 0; i < llm_isa.opcode_count; ++i) CHECK(bool(llm_isa.instructions[i]));
}

TEST_CASE("all targets have the same set with code of their own, and the best one is used") {
  REQUIRE(!vector_targets().empty());
  CHECK(std::string(vector_target()) == vector_targets().front().name);
  std::set<std::string> names;
  std::set<mkrt_host_instruction> linear;
  for (const auto& target : vector_targets()) {
    CHECK(names.insert(target.name).second);
    CHECK(target.isa.fingerprint == llm_isa.fingerprint);
    CHECK(target.isa.scratch_size == llm_isa.scratch_size);
    CHECK(linear.insert(target.isa.instructions[mkrt::isa::llm::opcode_linear]).second);
    for (uint32_t i = 0; i < target.isa.opcode_count; ++i) CHECK(bool(target.isa.instructions[i]));
  }
}

// With flags such as -march=native the compiler's baseline is a target itself, and replaces those below it.
#if defined(__x86_64__) && !defined(__SSE4_2__)
TEST_CASE("a processor with AVX-512 or AVX2 gets code for it") {
  __builtin_cpu_init();
  std::set<std::string> names;
  for (const auto& target : vector_targets()) names.insert(target.name);
  CHECK(names.count("SSE4") == (__builtin_cpu_supports("sse4.2") ? 1 : 0));
  CHECK(names.count("AVX2") == (__builtin_cpu_supports("avx2") ? 1 : 0));
  CHECK(names.count("AVX3") == (__builtin_cpu_supports("avx512bw") ? 1 : 0));
}
#endif

}  // namespace
