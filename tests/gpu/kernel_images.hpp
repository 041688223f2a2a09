// The kernels that this build made, or those in the folder that MKRT_TEST_KERNELS of the environment names.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "compile/compile.hpp"

namespace mkrt::test {

// "mkrt_llm.sm_90a.cubin" in the kernel folder is an image of kernel mkrt_llm for target sm_90a.
inline std::vector<mkrt::compile::ImageFile> kernel_images(const std::string& kernel = "mkrt_llm") {
  std::vector<mkrt::compile::ImageFile> images;
  const char* const folder = std::getenv("MKRT_TEST_KERNELS");
  std::error_code missing;
  for (const auto& file : std::filesystem::directory_iterator(folder ? folder : MKRT_KERNEL_FOLDER, missing)) {
    const std::string name = file.path().filename().string(), prefix = kernel + ".", suffix = ".cubin";
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    images.push_back({name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()), file.path().string()});
  }
  return images;
}

}  // namespace mkrt::test
