// Names and the numbers that they stand for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace mkrt::package {

class NameIndex {
 public:
  // False where the name is there already.
  bool insert(std::string_view name, uint32_t number) { return numbers_.try_emplace(std::string(name), number).second; }
  std::optional<uint32_t> find(std::string_view name) const {
    const auto it = numbers_.find(name);
    if (it == numbers_.end()) return std::nullopt;
    return it->second;
  }
  void clear() { numbers_.clear(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
  };
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> numbers_;
};

}  // namespace mkrt::package
