#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "base/failure.hpp"
#include "cuda/library.hpp"

namespace mkrt::cuda {

Library::~Library() {
  if (handle_ != nullptr) FreeLibrary(static_cast<HMODULE>(handle_));
}

std::string Library::open_system_driver() {
  // Only the system's folder: a nvcuda.dll beside the application or on the PATH is not the driver.
  handle_ = LoadLibraryExW(L"nvcuda.dll", nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (handle_ != nullptr) return {};
  return base::text("nvcuda.dll cannot be opened (Windows error ", GetLastError(), ")");
}

void* Library::symbol(const char* name) const noexcept {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
}

}  // namespace mkrt::cuda
