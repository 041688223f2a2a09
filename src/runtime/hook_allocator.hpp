// A standard allocator that takes memory from the host application's hooks.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/hooks.hpp"

namespace mkrt::runtime {

template <class T>
struct HookAllocator {
  using value_type = T;

  // By value: five words that outlive whatever owned the hooks, even when the object allocated is the Hooks itself.
  base::Hooks hooks;

  explicit HookAllocator(const base::Hooks& source) noexcept : hooks(source) {}
  template <class Other>
  HookAllocator(const HookAllocator<Other>& other) noexcept : hooks(other.hooks) {}

  T* allocate(size_t count) {
    return static_cast<T*>(hooks.allocate(count * sizeof(T), alignof(T), "an object of the runtime"));
  }
  void deallocate(T* memory, size_t count) noexcept { hooks.release(memory, count * sizeof(T), alignof(T)); }

  // Memory of one runtime goes back to it from any copy; objects of two runtimes are never mixed.
  template <class Other>
  bool operator==(const HookAllocator<Other>&) const noexcept {
    return true;
  }
};

// A shared object in the hooks' memory.
template <class T, class... Arguments>
std::shared_ptr<T> make_object(const base::Hooks& hooks, Arguments&&... arguments) {
  return std::allocate_shared<T>(HookAllocator<T>(hooks), std::forward<Arguments>(arguments)...);
}

}  // namespace mkrt::runtime
