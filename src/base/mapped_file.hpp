// A file mapped read-only, and open as long as it is mapped.
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
  // Copies `range`, a part of bytes(), to `out`. Throws Failure(FILE) where the file has become shorter since it was
  // opened (a read through bytes() would raise SIGBUS) and where the device below it fails. No page is mapped for it,
  // which is most of the time that the first read through bytes() takes. Any thread.
  void read(std::span<const std::byte> range, std::byte* out) const;
  // Asks the system to make the pages of `range` present now.
  void prefetch(std::span<const std::byte> range) const noexcept;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int descriptor_ = -1;  // of the open file, for read(); not used on Windows
};

}  // namespace mkrt::base
