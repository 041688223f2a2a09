// Conversions of single numbers. Packed weights and the key-value cache have vector code of their own.
#pragma once

#include <bit>
#include <cstdint>

namespace mkrt::host::llm {

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

inline float float_of_bf16(uint16_t bits) noexcept { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Nearest f16, ties to even; values beyond its range become ±65504, NaN stays NaN. Highway's emulation for processors
// without F16C truncates, so rows for the cache are rounded here: one row a step is no place to save time.
inline uint16_t f16_of_float(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  // 65504 is the largest f16.
  if (magnitude >= std::bit_cast<uint32_t>(65504.0f)) return static_cast<uint16_t>(sign | 0x7bff);
  if (magnitude < 0x38800000) {
    // Below 2^-14 an f16 counts multiples of 2^-24. Adding 0.5, whose last bit is 2^-24, rounds to them.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f)));
  }
  // Exponents differ by 127 - 15; 13 bits of the mantissa go.
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

// The same with infinity beyond the range, as IEEE 754 rounds: from 65520 on.
inline uint16_t f16_or_infinity_of_float(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  const bool beyond = magnitude >= std::bit_cast<uint32_t>(65520.0f) && magnitude <= 0x7f800000;
  return beyond ? static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7c00) : f16_of_float(value);
}

inline float float_of_f16(uint16_t bits) noexcept {
  const uint32_t sign = uint32_t{bits} << 16 & 0x80000000;
  const uint32_t exponent = bits >> 10 & 31;
  const uint32_t mantissa = bits & 0x3ff;
  // Below 2^-14 an f16 counts multiples of 2^-24.
  if (exponent == 0)
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f) | sign);
  // Exponents differ by 127 - 15; the largest stands for infinity and NaN.
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

// Nearest bf16, ties to even; NaN stays NaN.
inline uint16_t bf16_of_float(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace mkrt::host::llm
