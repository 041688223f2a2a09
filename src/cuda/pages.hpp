// Memory from the system, in whole pages that hold nothing else.
#pragma once

#include <cstddef>
#include <utility>

namespace mkrt::cuda {

// Not of the heap: what is registered with the driver shares no page with other objects, and the heap keeps none of it
// afterwards. `pages_posix.cpp` and `pages_windows.cpp` hold what differs between systems, the build picks one.
class Pages {
 public:
  Pages() noexcept = default;
  // Zeroed; each page comes into being when it is first written to. Huge pages, and aligned to them, where the system
  // has them and `bytes` fill one. Empty where the system gives no memory.
  explicit Pages(size_t bytes) noexcept;
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Pages();

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return data_ == nullptr; }

 private:
  void swap(Pages& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  void* mapping_ = nullptr;  // what the system gave, and how much
  size_t mapped_bytes_ = 0;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mkrt::cuda
