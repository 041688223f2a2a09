// Paths are UTF-8 strings everywhere; only calls into std::filesystem convert them.
#pragma once

#include <filesystem>
#include <string>

namespace mkrt::base {

inline std::filesystem::path system_path(const std::string& utf8) {
  return std::filesystem::path(std::u8string(utf8.begin(), utf8.end()));
}

inline std::string utf8_path(const std::filesystem::path& path) {
  const std::u8string out = path.u8string();
  return std::string(out.begin(), out.end());
}

}  // namespace mkrt::base
