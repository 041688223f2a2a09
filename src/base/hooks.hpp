// The host application's hooks: memory and log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "mkrt/mkrt.h"

namespace mkrt::base {

// Owned by the runtime; every object that holds hook memory keeps the runtime's Hooks alive.
class Hooks {
 public:
  // Defaults where `desc` is NULL or its functions are.
  explicit Hooks(const mkrt_runtime_desc* desc) noexcept;

  // Throws Failure(OUT_OF_MEMORY) that names the size and `what` when the hook returns NULL.
  void* allocate(size_t size, size_t alignment, const char* what) const;
  void release(void* memory, size_t size, size_t alignment) const noexcept;
  // Drops messages above the host's level.
  void log(uint32_t level, const char* message) const noexcept;

 private:
  void* user_data_;
  mkrt_allocate_function allocate_;
  mkrt_release_function release_;
  mkrt_log_function log_;
  uint32_t log_level_;
};

// What a new block holds. Memory that is not cleared takes no pages of the system until somebody uses them.
enum class Contents { zero, arbitrary };

// A block of hook memory that gives itself back.
class Block {
 public:
  Block() noexcept = default;
  Block(std::shared_ptr<const Hooks> hooks, size_t size, size_t alignment, const char* what,
        Contents contents = Contents::zero);
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }

 private:
  std::shared_ptr<const Hooks> hooks_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t alignment_ = 0;
};

}  // namespace mkrt::base
