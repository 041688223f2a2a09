// Places in a schedule, and the sentences that name them.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "package/program.hpp"

namespace mkrt::verify {

using Indices = std::array<uint32_t, MKRT_TILE_DIMENSIONS>;

// The entry that is being checked.
struct Context {
  const package::Program& program;
  const package::Entry& entry;

  uint32_t rank_count() const { return program.rank_count; }
  const package::OpcodeDefinition& opcode(uint32_t record) const {
    return program.isa.opcodes[entry.records[record].opcode];
  }
};

uint64_t tile_number(const package::Record& record, const Indices& indices);
Indices tile_indices(const package::Record& record, uint64_t tile);

// record 3 ("l0.qkv")
std::string record_text(const Context& context, uint32_t record);
// tile 5 [0, 5] of record 3 ("l0.qkv") on rank 0
std::string tile_text(const Context& context, uint32_t record, uint64_t tile, uint32_t rank);
// counter "l0.qkv"[2]
std::string counter_text(const Context& context, uint32_t counter);

// Throw a base::Failure whose sentence starts with the place and goes on with `problem`.
[[noreturn]] void fail_record(const Context& context, uint32_t record, const std::string& problem);
[[noreturn]] void fail_tile(const Context& context, uint32_t record, uint64_t tile, uint32_t rank,
                            const std::string& problem);

}  // namespace mkrt::verify
