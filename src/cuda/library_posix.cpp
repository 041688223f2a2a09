#include <dlfcn.h>

#include "cuda/library.hpp"

namespace mkrt::cuda {

Library::~Library() {
  if (handle_ != nullptr) dlclose(handle_);
}

std::string Library::open_system_driver() {
  // Local: the driver's symbols stay out of the host application's way.
  handle_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) return {};
  const char* reason = dlerror();
  return reason != nullptr ? reason : "libcuda.so.1 cannot be opened";
}

void* Library::symbol(const char* name) const noexcept { return dlsym(handle_, name); }

}  // namespace mkrt::cuda
