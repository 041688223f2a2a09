#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "base/failure.hpp"
#include "base/mapped_file.hpp"

namespace mkrt::base {

namespace {

[[noreturn]] void fail(const std::string& path, const char* action, int error) {
  throw Failure(MKRT_ERROR_FILE,
                text(shown_path(path), ": cannot be ", action, ": ", std::generic_category().message(error)))
      .with_driver_code(error);
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer that may never come.
    do {
      number_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (number_ < 0 && errno == EINTR);
    if (number_ < 0) fail(path, "opened", errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }

  int number() const { return number_; }
  // The caller closes it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

size_t regular_file_size(const Descriptor& descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor.number(), &status) != 0) fail(path, "examined", errno);
  if (S_ISDIR(status.st_mode)) fail(path, "read", EISDIR);
  if (!S_ISREG(status.st_mode)) {
    throw Failure(MKRT_ERROR_FILE, text(shown_path(path), ": is not a regular file"));
  }
  if (static_cast<uint64_t>(status.st_size) > std::numeric_limits<size_t>::max() / 2) fail(path, "mapped", EFBIG);
  return static_cast<size_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  if (path_.find('\0') != std::string::npos) fail(path_, "opened", ENOENT);
  Descriptor descriptor(path_);
  const size_t size = regular_file_size(descriptor, path_);
  if (size == 0) return;  // mmap refuses a length of 0
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor.number(), 0);
  if (memory == MAP_FAILED) fail(path_, "mapped", errno);
  data_ = static_cast<const std::byte*>(memory);
  size_ = size;
  descriptor_ = descriptor.release();
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(descriptor_);
}

void MappedFile::read(std::span<const std::byte> range, std::byte* out) const {
  while (!range.empty()) {
    const auto offset = static_cast<off_t>(range.data() - data_);
    const ssize_t count = ::pread(descriptor_, out, range.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EFAULT) {
      // Some sandboxes keep their system calls out of memory that a driver gave; the processor gets there.
      std::memcpy(out, range.data(), range.size());
      return;
    }
    if (count < 0) fail(path_, "read", errno);
    if (count == 0) {
      throw Failure(MKRT_ERROR_FILE, text(shown_path(path_), ": ends at byte ", offset, " or before, and had ", size_,
                                          " bytes when it was opened"));
    }
    range = range.subspan(static_cast<size_t>(count));
    out += count;
  }
}

void MappedFile::prefetch(std::span<const std::byte> range) const noexcept {
  if (range.empty()) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t start = reinterpret_cast<uintptr_t>(range.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data() + range.size());
  void* address = reinterpret_cast<void*>(start);
#ifdef MADV_POPULATE_READ
  if (::madvise(address, end - start, MADV_POPULATE_READ) == 0) return;  // fails before Linux 5.14
#endif
  ::madvise(address, end - start, MADV_WILLNEED);
}

}  // namespace mkrt::base
