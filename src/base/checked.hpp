// Arithmetic on counts from files: 63-bit results or nothing.
#pragma once

#include <cassert>
#include <cstdint>

namespace mkrt::base {

// Largest byte and element count that the formats allow, so that differences fit in 64 bits too.
inline constexpr uint64_t max_count = INT64_MAX;

// Adds `other` to `value` and returns true, or returns false where the sum exceeds max_count. Both are counts already.
[[nodiscard]] constexpr bool checked_add(uint64_t& value, uint64_t other) noexcept {
  assert(value <= max_count && other <= max_count);
  if (other > max_count - value) return false;
  value += other;
  return true;
}

// The same for the product.
[[nodiscard]] constexpr bool checked_multiply(uint64_t& value, uint64_t other) noexcept {
  assert(value <= max_count && other <= max_count);
  if (other != 0 && value > max_count / other) return false;
  value *= other;
  return true;
}

}  // namespace mkrt::base
