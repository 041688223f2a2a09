#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/descriptor.hpp"

namespace mkrt::base {

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

uint32_t process_id() noexcept { return static_cast<uint32_t>(::getpid()); }

// A pidfd: unlike a process number it cannot come to mean another process, it means the same in another namespace, and
// unlike the end of a pipe it is not held open by children of the process. The C library's function for it is newer
// than the system call (Linux 5.3).
Descriptor watch_own_process() noexcept {
#if defined(SYS_pidfd_open)
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
#else
  return Descriptor();
#endif
}

bool process_ended(const Descriptor& watch) noexcept {
  if (!watch) return false;
  pollfd look{watch.get(), POLLIN, 0};
  return ::poll(&look, 1, 0) == 1 && (look.revents & POLLIN) != 0;
}

}  // namespace mkrt::base
