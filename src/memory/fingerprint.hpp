// A number by which processes tell whether they loaded the same program.
#pragma once

#include <cstdint>

#include "package/program.hpp"

namespace mkrt::memory {

// FNV-1a (64 bits) of what decides how a program runs and lies in memory: ISA, tensors, entries and encoded records.
// Not of the weights' bytes: they are most of a package, and a process has only those of its own ranks in memory.
uint64_t program_fingerprint(const package::Program& program);

}  // namespace mkrt::memory
