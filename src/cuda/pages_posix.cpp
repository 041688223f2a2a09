#include <sys/mman.h>

#include <cstdint>

#include "cuda/pages.hpp"

namespace mkrt::cuda {

namespace {

// Of x86-64, and of AArch64 with base pages of 4 KB.
constexpr size_t huge_page = size_t{2} << 20;

}  // namespace

Pages::Pages(size_t bytes) noexcept {
  // Room to align in; what is never written to takes no memory.
  const size_t room = bytes < huge_page ? bytes : bytes + huge_page;
  void* memory = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t aligned = room == bytes ? address : (address + huge_page - 1) / huge_page * huge_page;
  mapping_ = memory;
  mapped_bytes_ = room;
  data_ = reinterpret_cast<std::byte*>(aligned);
  size_ = bytes;
  // Where these are not known or refused, the pages are ordinary ones.
#ifdef MADV_HUGEPAGE
  if (bytes >= huge_page) ::madvise(data_, bytes, MADV_HUGEPAGE);
#endif
#ifdef MADV_DONTFORK
  // A process that the application forks meanwhile would leave us a copy of each page that we write to, and the device
  // would go on reading the page that it was.
  ::madvise(data_, bytes, MADV_DONTFORK);
#endif
}

Pages::~Pages() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
}

}  // namespace mkrt::cuda
