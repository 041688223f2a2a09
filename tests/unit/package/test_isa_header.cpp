// The generated header must number things as the definition does.
#include <doctest/doctest.h>

#include "mkrt_isa/llm.hpp"
#include "package/isa.hpp"

namespace llm = mkrt::isa::llm;
using namespace mkrt::package;

TEST_CASE("the header of mkrt.llm has the definition's numbers and fingerprint") {
  const IsaDefinition isa = read_isa(MKRT_SOURCE_DIR "/isa/mkrt.llm.json");
  CHECK(llm::fingerprint == isa.fingerprint);
  REQUIRE(llm::opcode_count == isa.opcodes.size());
  CHECK(isa.opcodes[llm::opcode_attention].name == "attention");
  CHECK(isa.opcodes[llm::opcode_choose].name == "choose");
  const OpcodeDefinition& attention = isa.opcodes[llm::opcode_attention];
  CHECK(attention.operands.size() == llm::attention::operand_count);
  CHECK(attention.operands[llm::attention::workspace].name == "workspace");
  CHECK(attention.parameters.size() == llm::attention::parameter_count);
  CHECK(attention.parameters[llm::attention::epsilon].name == "epsilon");
  CHECK(llm::attention::fault_none == 0);
  CHECK(attention.faults[llm::attention::fault_position_outside_cache - 1] == "the position is outside the cache");
  CHECK(isa.opcodes[llm::opcode_embed].faults[llm::embed::fault_token_outside_vocabulary - 1] ==
        "the token is outside the vocabulary");
}
