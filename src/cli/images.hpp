// The kernel images that packages get: those that were built or installed with the tool.
#pragma once

#include <string>
#include <vector>

#include "compile/compile.hpp"

namespace mkrt::cli {

// Every mkrt_llm.<target>.cubin of a folder, by target. Throws Error where `folder` cannot be read.
std::vector<compile::ImageFile> find_images(const std::string& folder);

// The folder that belongs to this very executable: beside it in a build, below the prefix where it is installed. Empty
// where there is none.
std::string own_image_folder();

}  // namespace mkrt::cli
