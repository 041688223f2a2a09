#include "base/hooks.hpp"

#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "base/failure.hpp"

namespace mkrt::base {

namespace {

void* allocate_from_heap(void*, size_t size, size_t alignment) {
  return ::operator new(size, std::align_val_t{alignment}, std::nothrow);
}

void release_to_heap(void*, void* memory, size_t, size_t alignment) {
  ::operator delete(memory, std::align_val_t{alignment});
}

}  // namespace

Hooks::Hooks(const mkrt_runtime_desc* desc) noexcept
    : user_data_(desc != nullptr ? desc->user_data : nullptr),
      allocate_(desc != nullptr && desc->allocate != nullptr ? desc->allocate : allocate_from_heap),
      release_(desc != nullptr && desc->release != nullptr ? desc->release : release_to_heap),
      log_(desc != nullptr ? desc->log : nullptr),
      log_level_(desc != nullptr && desc->log_level != 0 ? desc->log_level : uint32_t{MKRT_LOG_WARNING}) {
  assert(desc == nullptr || (desc->allocate == nullptr) == (desc->release == nullptr));
}

void* Hooks::allocate(size_t size, size_t alignment, const char* what) const {
  assert(size > 0 && alignment > 0 && (alignment & (alignment - 1)) == 0);
  void* memory = allocate_(user_data_, size, alignment);
  if (memory == nullptr) {
    throw Failure(MKRT_ERROR_OUT_OF_MEMORY, text("no memory for ", size, " bytes of ", what));
  }
  return memory;
}

void Hooks::release(void* memory, size_t size, size_t alignment) const noexcept {
  if (memory != nullptr) release_(user_data_, memory, size, alignment);
}

void Hooks::log(uint32_t level, const char* message) const noexcept {
  if (log_ != nullptr && level <= log_level_) log_(user_data_, level, message);
}

Block::Block(std::shared_ptr<const Hooks> hooks, size_t size, size_t alignment, const char* what, Contents contents)
    : hooks_(std::move(hooks)), size_(size), alignment_(alignment) {
  if (size == 0) return;
  data_ = static_cast<std::byte*>(hooks_->allocate(size, alignment, what));
  if (contents == Contents::zero) std::memset(data_, 0, size);
}

Block::Block(Block&& other) noexcept
    : hooks_(std::move(other.hooks_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      alignment_(std::exchange(other.alignment_, 0)) {}

Block& Block::operator=(Block&& other) noexcept {
  std::swap(hooks_, other.hooks_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(alignment_, other.alignment_);
  return *this;
}

Block::~Block() {
  if (data_ != nullptr) hooks_->release(data_, size_, alignment_);
}

}  // namespace mkrt::base
