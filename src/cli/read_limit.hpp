// How fast this machine's threads can read memory: what a decoder, which reads all weights for each token, is held to.
#pragma once

#include <cstdint>
#include <memory>

namespace mkrt::cli {

// Bytes that all last-level caches of the machine hold together; 0 where the system does not say.
uint64_t last_level_cache_bytes();

// Measures again and again, as shared machines change their pace within seconds. Holds half a gigabyte of memory, or
// four times the last-level caches where that is more.
class ReadLimit {
 public:
  // Throws Error where that memory is not to be had.
  explicit ReadLimit(uint32_t threads);
  ~ReadLimit();
  ReadLimit(const ReadLimit&) = delete;
  ReadLimit& operator=(const ReadLimit&) = delete;

  // Bytes a second that the threads reach together, now, with a plain loop of vector loads over memory that no cache
  // holds; the best of a few passes. Takes about a tenth of a second.
  double measure();

 private:
  struct Buffer;
  uint32_t threads_;
  uint64_t slice_;  // bytes that each thread reads
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace mkrt::cli
