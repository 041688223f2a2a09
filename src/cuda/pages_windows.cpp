#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "cuda/pages.hpp"

namespace mkrt::cuda {

// Huge pages need a privilege that applications do not have.
Pages::Pages(size_t bytes) noexcept : mapping_(VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE)) {
  if (mapping_ == nullptr) return;
  mapped_bytes_ = bytes;
  data_ = static_cast<std::byte*>(mapping_);
  size_ = bytes;
}

Pages::~Pages() {
  if (mapping_ != nullptr) VirtualFree(mapping_, 0, MEM_RELEASE);
}

}  // namespace mkrt::cuda
