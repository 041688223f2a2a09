#include "abi/handle.hpp"

namespace mkrt::abi {

const char* tag_name(Tag tag) noexcept {
  switch (tag) {
    case Tag::runtime: return "runtime";
    case Tag::mesh: return "mesh";
    case Tag::program: return "program";
    case Tag::executable: return "executable";
    case Tag::session: return "session";
    case Tag::exchange: return "exchange";
    case Tag::freed:
    case Tag::destroyed: break;
  }
  return nullptr;
}

mkrt_status report_handle(const void* handle, Tag wanted, mkrt_error* out_error) noexcept {
  const char* const name = tag_name(wanted);
  if (handle == nullptr) return base::report(out_error, MKRT_ERROR_HANDLE, "the %s handle is NULL", name);
  const Tag tag = tag_of(handle);
  if (tag == Tag::destroyed) {
    return base::report(out_error, MKRT_ERROR_HANDLE, "the %s handle was destroyed before this call", name);
  }
  if (const char* const other = tag_name(tag)) {
    return base::report(out_error, MKRT_ERROR_HANDLE, "the %s handle is of another type: it is a %s", name, other);
  }
  return base::report(out_error, MKRT_ERROR_HANDLE, "the %s handle does not point to an object of mkrt", name);
}

void Quarantine::free(ShellHeader* shell) const noexcept {
  // An empty shell's destructor would do nothing; only the tag matters, for whoever still holds the pointer.
  shell->tag.store(Tag::freed, std::memory_order_relaxed);
  hooks_->release(shell, shell_size, shell_alignment);
}

void Quarantine::put(ShellHeader* shell) noexcept {
  ShellHeader* oldest = nullptr;
  {
    const std::lock_guard lock(mutex_);
    oldest = std::exchange(shells_[next_], shell);
    next_ = (next_ + 1) % capacity;
  }
  if (oldest != nullptr) free(oldest);
}

Quarantine::~Quarantine() {
  for (ShellHeader* shell : shells_) {
    if (shell != nullptr) free(shell);
  }
}

}  // namespace mkrt::abi
