// A file mapped read-only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace mkrt::base {

class MappedFile {
 public:
  // Throws Failure(FILE) that names the path and the system's reason. An empty file maps to an empty span.
  explicit MappedFile(std::string path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const noexcept { return path_; }
  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  // Asks the system to make the pages of `range` present now.
  void prefetch(std::span<const std::byte> range) const noexcept;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mkrt::base
