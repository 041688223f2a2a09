// Kernel images: those that were built or installed with the tool, or that a folder of the user's has.
#pragma once

#include <string>
#include <vector>

#include "compile/compile.hpp"

namespace mkrt::cli {

// Those that packages get, and those that measure the memory.
inline constexpr const char* kLlmKernel = "mkrt_llm";
inline constexpr const char* kReadKernel = "mkrt_read";

// Every <kernel>.<target>.cubin of a folder, by target. Throws Error where `folder` cannot be read.
std::vector<compile::ImageFile> find_images(const std::string& folder, const std::string& kernel);

// The folder with images of `kernel` that belongs to this very executable: beside it in a build, below the prefix where
// it is installed. Empty where there is none.
std::string own_image_folder(const std::string& kernel);

}  // namespace mkrt::cli
