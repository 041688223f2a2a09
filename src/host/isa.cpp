#include "host/isa.hpp"

#include <cinttypes>
#include <cstdio>
#include <string>

#include "base/failure.hpp"

namespace mkrt::host {

namespace {

std::string hexadecimal(uint64_t fingerprint) {
  char digits[19];
  std::snprintf(digits, sizeof(digits), "0x%016" PRIx64, fingerprint);
  return digits;
}

// The definition's fingerprint covers its opcodes, so only code that lies about itself fails here.
void check_opcodes(const mkrt_host_isa& isa, const package::IsaDefinition& definition) {
  if (isa.opcode_count != definition.opcodes.size()) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                        base::text("the host code of ", base::quoted(definition.name), " has ", isa.opcode_count,
                                   " instructions, its definition has ", definition.opcodes.size(), " opcodes"));
  }
}

}  // namespace

const mkrt_host_isa& find_isa(std::span<const mkrt_host_isa* const> isas, const package::IsaDefinition& definition) {
  std::string found;
  for (const mkrt_host_isa* isa : isas) {
    if (definition.name != isa->name) continue;
    if (isa->fingerprint == definition.fingerprint) {
      check_opcodes(*isa, definition);
      return *isa;
    }
    found += (found.empty() ? "" : " and ") + hexadecimal(isa->fingerprint);
  }
  const std::string wanted = base::text("the program needs instruction set ", base::quoted(definition.name),
                                        " with fingerprint ", hexadecimal(definition.fingerprint));
  if (!found.empty()) {
    throw base::Failure(MKRT_ERROR_UNSUPPORTED, wanted + "; the host code of that name has fingerprint " + found);
  }
  const bool left_out = builtin_isas().empty() && definition.name == "mkrt.llm";
  throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                      wanted + (left_out ? "; this build of mkrt has no host code of mkrt.llm, only CUDA devices run it"
                                         : "; no host code of that name is registered"));
}

}  // namespace mkrt::host
