// The package that a GPU's read limit is measured with: one record of the instruction set mkrt.read, whose tiles read
// an input tensor from front to back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "compile/compile.hpp"

namespace mkrt::cli {

// The text of isa/mkrt.read.json, which the build copies into the tool.
extern const std::string_view kReadIsaJson;

// Writes program.json into `folder`, and links to the images beside it: they must be in place as long as the package
// is. The input, tensor 0, is of u32 and has `bytes`, a multiple of 16 KB, on each rank. Throws Error.
void write_read_package(const std::filesystem::path& folder, uint64_t bytes, uint32_t rank_count,
                        const std::vector<compile::ImageFile>& images);

}  // namespace mkrt::cli
