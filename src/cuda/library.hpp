// A shared library of the system, opened at run time.
#pragma once

#include <string>

namespace mkrt::cuda {

class Library {
 public:
  Library() noexcept = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  // Opens the CUDA driver: libcuda.so.1, on Windows nvcuda.dll from the system folder and nowhere else. Returns "" or
  // why it could not.
  std::string open_system_driver();
  // Address of an exported function, or nullptr.
  void* symbol(const char* name) const noexcept;

 private:
  void* handle_ = nullptr;
};

}  // namespace mkrt::cuda
