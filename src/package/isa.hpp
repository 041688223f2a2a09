// ISA definitions: instruction sets as data. src/package/README.md specifies their form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "package/json.hpp"
#include "package/program.hpp"

namespace mkrt::package {

// Translates the definition that `view` shows and computes its fingerprint. Throws base::Failure (FORMAT) that names
// the file and the JSON pointer.
IsaDefinition parse_isa(const JsonView& view);

// Reads a file that holds nothing but a definition. Throws base::Failure (FILE or FORMAT).
IsaDefinition read_isa(const std::string& path);

// Translates "weight.size == tile_rows * pad(columns, 32)" for an opcode whose operands and parameters are known.
// Throws base::Failure (FORMAT) whose sentence names only the constraint; parse_isa adds the place.
Constraint parse_constraint(std::string_view text, const OpcodeDefinition& opcode);

// FNV-1a (64 bits) over the definition, as specified; `isa.fingerprint` is not looked at.
uint64_t compute_fingerprint(const IsaDefinition& isa);

// The dtype that a package calls by `name` ("f32", "bf16", ...), if any, and the name of a dtype.
std::optional<Dtype> find_dtype(std::string_view name) noexcept;
std::string_view dtype_name(Dtype dtype) noexcept;

}  // namespace mkrt::package
