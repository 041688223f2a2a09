#include "cli/images.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/path.hpp"
#include "cli/error.hpp"

namespace mkrt::cli {
namespace {

namespace fs = std::filesystem;

// What kernels/CMakeLists.txt calls them: KERNEL.TARGET.cubin.
constexpr std::string_view kSuffix = ".cubin";

// From the executable's folder. MKRT_INSTALLED_KERNELS is what cmake/mkrt_install.cmake makes of the prefix.
constexpr const char* kFolders[] = {"../kernels", MKRT_INSTALLED_KERNELS};

}  // namespace

std::vector<compile::ImageFile> find_images(const std::string& folder, const std::string& kernel) {
  const std::string prefix = kernel + ".";
  std::vector<compile::ImageFile> images;
  std::error_code error;
  for (fs::directory_iterator file(base::system_path(folder), error), end; !error && file != end;
       file.increment(error)) {
    std::string_view target;
    const std::string name = base::utf8_path(file->path().filename());
    if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
    target = name;
    target.remove_prefix(prefix.size());
    if (target.size() <= kSuffix.size()) continue;
    target.remove_suffix(kSuffix.size());
    images.push_back({std::string(target), base::utf8_path(file->path())});
  }
  if (error) throw Error(folder + ": " + error.message());
  std::sort(images.begin(), images.end(), [](const auto& a, const auto& b) { return a.target < b.target; });
  return images;
}

std::string own_image_folder(const std::string& kernel) {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  for (const char* folder : kFolders) {
    const fs::path candidate = (executable.parent_path() / folder).lexically_normal();
    if (!fs::is_directory(candidate, error)) continue;
    std::string path = base::utf8_path(candidate);
    if (!find_images(path, kernel).empty()) return path;
  }
  return {};
}

}  // namespace mkrt::cli
