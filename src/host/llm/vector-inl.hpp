// What the vector instructions share. Included once for each vector target (see vector_instructions.cpp), so it has a
// guard that Highway flips, and lives in the target's own namespace.
#if defined(MKRT_HOST_LLM_VECTOR_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef MKRT_HOST_LLM_VECTOR_INL_HPP
#undef MKRT_HOST_LLM_VECTOR_INL_HPP
#else
#define MKRT_HOST_LLM_VECTOR_INL_HPP
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mkrt::host::llm {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: the two halves of a block's row (32 columns) then fill a vector each.
using Floats = hn::CappedTag<float, 16>;
using Words = hn::RebindToUnsigned<Floats>;
using FloatVector = hn::Vec<Floats>;
using WordVector = hn::Vec<Words>;
constexpr size_t lanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;

// Vector registers of the target.
constexpr size_t registers = HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64 ? 32 : 16;

// Loads from any address; Highway's own unaligned loads still want whole elements to be aligned.
HWY_INLINE WordVector load_words(const std::byte* address) {
#if HWY_TARGET == HWY_SCALAR
  uint32_t word;
  std::memcpy(&word, address, sizeof word);
  return hn::Set(Words(), word);
#else
  const hn::Repartition<uint8_t, Words> bytes;
  return hn::BitCast(Words(), hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(address)));
#endif
}
HWY_INLINE FloatVector load_floats(const std::byte* address) { return hn::BitCast(Floats(), load_words(address)); }

// The even lanes of `low` and `high` after each other, and the odd ones.
HWY_INLINE FloatVector even_lanes(FloatVector low, FloatVector high) {
#if HWY_TARGET == HWY_SCALAR
  (void)high;
  return low;
#else
  return hn::ConcatEven(Floats(), high, low);
#endif
}
HWY_INLINE FloatVector odd_lanes(FloatVector low, FloatVector high) {
#if HWY_TARGET == HWY_SCALAR
  (void)low;
  return high;
#else
  return hn::ConcatOdd(Floats(), high, low);
#endif
}

// Sums of the lanes of each of 8 vectors, which lie `lanes` floats apart. Adding neighbours of two vectors at a time
// halves their number: 8 sums cost about 24 operations instead of 8 separate sums' 60.
HWY_INLINE void sum_lanes_of_8(const float* HWY_RESTRICT vectors, float* HWY_RESTRICT out) {
  const Floats d;
#if HWY_TARGET == HWY_SCALAR
  (void)d;
  for (size_t i = 0; i < 8; ++i) out[i] = vectors[i];
#else
  constexpr size_t at_once = lanes < 8 ? lanes : 8;
  for (size_t first = 0; first < 8; first += at_once) {
    FloatVector v[at_once];
    for (size_t i = 0; i < at_once; ++i) v[i] = hn::Load(d, vectors + (first + i) * lanes);
    for (size_t left = at_once / 2; left > 0; left /= 2) {
      for (size_t i = 0; i < left; ++i) {
        v[i] = hn::Add(even_lanes(v[2 * i], v[2 * i + 1]), odd_lanes(v[2 * i], v[2 * i + 1]));
      }
    }
    for (size_t parts = lanes / at_once; parts > 1; parts /= 2) {
      v[0] = hn::Add(even_lanes(v[0], v[0]), odd_lanes(v[0], v[0]));
    }
#if HWY_MAX_BYTES >= 64
    hn::StoreU(hn::LowerHalf(v[0]), hn::Half<Floats>(), out + first);
#else
    hn::StoreU(v[0], d, out + first);
#endif
  }
#endif
}

// e^x with an error of about 1 unit in the last place; 0 below -104, NaN for NaN.
HWY_INLINE FloatVector exponential(FloatVector x) {
  const Floats d;
  const auto is_nan = hn::IsNaN(x);
  // NaN is kept away from conversions to integers; beyond 104 Exp is not defined, and the result is infinite anyway.
  const FloatVector clamped = hn::Min(hn::IfThenZeroElse(is_nan, x), hn::Set(d, 104.0f));
  return hn::IfThenElse(is_nan, x, hn::Exp(d, clamped));
}

// One float for each of `lanes` f16 numbers.
HWY_INLINE FloatVector floats_of_f16(const std::byte* address) {
  const Floats d;
#if HWY_TARGET != HWY_AVX3 && HWY_TARGET != HWY_AVX2 && !HWY_ARCH_ARM_A64
  // No instruction for it, and Highway's emulation takes infinities for numbers. Moving an f16's bits into a float's
  // place makes a number that is 2^112 too small, subnormal ones too.
  const Words words;
#if HWY_TARGET == HWY_SCALAR
  uint16_t half;
  std::memcpy(&half, address, sizeof half);
  const WordVector bits = hn::Set(words, half);
#else
  const hn::Rebind<uint16_t, Floats> halves;
  const hn::Repartition<uint8_t, decltype(halves)> bytes;
  const WordVector bits =
      hn::PromoteTo(words, hn::BitCast(halves, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(address))));
#endif
  const WordVector magnitude = hn::And(bits, hn::Set(words, 0x7fff));
  const WordVector sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(words, 0x8000)));
  const FloatVector number = hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(magnitude)), hn::Set(d, 0x1p112f));
  const auto beyond = hn::Ge(number, hn::Set(d, 65536.0f));
  const WordVector fixed =
      hn::IfThenElse(hn::RebindMask(words, beyond), hn::Or(hn::BitCast(words, number), hn::Set(words, 0x7f800000)),
                     hn::BitCast(words, number));
  return hn::BitCast(d, hn::Or(fixed, sign));
#else
  const hn::Rebind<hwy::float16_t, Floats> halves;
  const hn::Repartition<uint8_t, decltype(halves)> bytes;
  return hn::PromoteTo(d, hn::BitCast(halves, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(address))));
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace mkrt::host::llm
HWY_AFTER_NAMESPACE();

#endif
