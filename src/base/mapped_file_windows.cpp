#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "base/failure.hpp"
#include "base/mapped_file.hpp"

namespace mkrt::base {

namespace {

[[noreturn]] void fail(const std::string& path, const char* action, DWORD error) {
  const std::string reason = std::system_category().message(static_cast<int>(error));
  throw Failure(MKRT_ERROR_FILE, text(shown_path(path), ": cannot be ", action, ": ", reason))
      .with_driver_code(static_cast<int32_t>(error));
}

std::wstring wide(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos || path.size() > 32767) {
    fail(path, "opened", ERROR_INVALID_NAME);
  }
  const int bytes = static_cast<int>(path.size());
  const int size = ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, nullptr, 0);
  if (size == 0) fail(path, "opened", ::GetLastError());
  std::wstring out(static_cast<size_t>(size), L'\0');
  ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path.data(), bytes, out.data(), size);
  return out;
}

class Handle {
 public:
  explicit Handle(HANDLE handle) : handle_(handle) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (valid()) ::CloseHandle(handle_);
  }
  // CreateFile and CreateFileMapping mark failure differently.
  bool valid() const { return handle_ != nullptr && handle_ != INVALID_HANDLE_VALUE; }
  HANDLE get() const { return handle_; }

 private:
  HANDLE handle_;
};

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const Handle file(::CreateFileW(wide(path_).c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr, OPEN_EXISTING,
                                  FILE_ATTRIBUTE_NORMAL, nullptr));
  if (!file.valid()) fail(path_, "opened", ::GetLastError());
  if (::GetFileType(file.get()) != FILE_TYPE_DISK) {
    throw Failure(MKRT_ERROR_FILE, text(shown_path(path_), ": is not a regular file"));
  }
  LARGE_INTEGER size{};
  if (!::GetFileSizeEx(file.get(), &size)) fail(path_, "examined", ::GetLastError());
  if (size.QuadPart == 0) return;  // CreateFileMapping refuses an empty file
  if (static_cast<uint64_t>(size.QuadPart) > std::numeric_limits<size_t>::max() / 2) {
    fail(path_, "mapped", ERROR_FILE_TOO_LARGE);
  }
  const Handle mapping(::CreateFileMappingW(file.get(), nullptr, PAGE_READONLY, 0, 0, nullptr));
  if (!mapping.valid()) fail(path_, "mapped", ::GetLastError());
  const void* memory = ::MapViewOfFile(mapping.get(), FILE_MAP_READ, 0, 0, 0);
  if (memory == nullptr) fail(path_, "mapped", ::GetLastError());
  data_ = static_cast<const std::byte*>(memory);
  size_ = static_cast<size_t>(size.QuadPart);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::UnmapViewOfFile(data_);
}

void MappedFile::read(std::span<const std::byte> range, std::byte* out) const {
  // The system does not let anybody shorten a file that is mapped, and lets reads of one handle run one at a time.
  std::memcpy(out, range.data(), range.size());
}

void MappedFile::prefetch(std::span<const std::byte> range) const noexcept {
  if (range.empty()) return;
  WIN32_MEMORY_RANGE_ENTRY entry{const_cast<std::byte*>(range.data()), range.size()};
  ::PrefetchVirtualMemory(::GetCurrentProcess(), 1, &entry, 0);
}

}  // namespace mkrt::base
