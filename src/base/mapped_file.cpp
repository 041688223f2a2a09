// What is the same on every system; opening, unmapping and prefetching are in mapped_file_<system>.cpp.
#include "base/mapped_file.hpp"

#include <utility>

namespace mkrt::base {

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace mkrt::base
