#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cassert>
#include <cerrno>
#include <system_error>

#include "base/failure.hpp"
#include "host/shared_memory.hpp"

namespace mkrt::host {

namespace {

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

[[noreturn]] void refuse(const char* what, uint64_t bytes) {
  const int error = errno;
  throw base::Failure(MKRT_ERROR_OUT_OF_MEMORY, base::text("the system has no ", bytes, " bytes of shared memory for ",
                                                           what, ": ", std::generic_category().message(error)))
      .with_driver_code(error);
}

bool is_shared_memory(const base::Descriptor& memory, uint64_t bytes) {
  struct stat file {};
  const int found = ::fcntl(memory.get(), F_GET_SEALS);
  return found >= 0 && (found & seals) == seals && ::fstat(memory.get(), &file) == 0 &&
         static_cast<uint64_t>(file.st_size) == bytes;
}

}  // namespace

base::Descriptor create_shared_memory(uint64_t bytes, const char* what) {
  assert(bytes % part_alignment == 0);
  base::Descriptor memory(::memfd_create("mkrt", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) refuse(what, bytes);
  int result = 0;
  do {
    result = ::fallocate(memory.get(), 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0 || ::fcntl(memory.get(), F_ADD_SEALS, seals) != 0) refuse(what, bytes);
  return memory;
}

SharedRange::SharedRange(uint64_t bytes) : bytes_(bytes) {
  void* range = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) refuse("the ranks of all processes", bytes);
  data_ = static_cast<std::byte*>(range);
}

SharedRange::~SharedRange() { ::munmap(data_, bytes_); }

void SharedRange::map(const base::Descriptor& memory, uint64_t offset, uint64_t bytes) {
  assert(offset % part_alignment == 0 && bytes % part_alignment == 0 && offset + bytes <= bytes_);
  if (!is_shared_memory(memory, bytes)) {
    throw base::Failure(MKRT_ERROR_PEER,
                        base::text("another process gave something else than ", bytes, " bytes of shared memory"));
  }
  void* part = ::mmap(data_ + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.get(), 0);
  if (part == MAP_FAILED) refuse("a part of another process", bytes);
}

}  // namespace mkrt::host
