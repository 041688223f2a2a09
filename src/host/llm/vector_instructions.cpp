// Compiles the vector instructions once for each target, by including itself again and again (Highway's scheme), and
// lists the results. Highway is used for its headers only: its library, which would choose targets, is not linked, so
// that a host need not ship it.
#include "host/llm/vector_instructions.hpp"

// Highway's debug assertions would need its library.
#define HWY_IS_DEBUG_BUILD 0
// SSSE3 adds nothing for the few processors that have no SSE4; SVE's vectors have no size at compile time, which
// arrays of them need: NEON serves those processors.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/llm/vector_instructions.cpp"
#include "hwy/foreach_target.h"
// Highway wants to be included after foreach_target.h.
#include "host/llm/attention-inl.hpp"
#include "host/llm/linear-inl.hpp"
#include "hwy/highway.h"

#if HWY_ONCE

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

#include <array>

namespace mkrt::host::llm {
namespace {

#if HWY_ARCH_X86
// A name that clang's __builtin_cpu_supports does not know before version 18.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
// What Highway lets the compiler use for each target. A target that the compiler may use anyway is not asked for.
[[maybe_unused]] bool has_sse4() {
  return __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
         __builtin_cpu_supports("aes");
}
[[maybe_unused]] bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma") && has_f16c();
}
[[maybe_unused]] bool has_avx3() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}
#endif
bool always() { return true; }

}  // namespace

#define MKRT_TARGET(name, space, available) \
  VectorInstructions { name, available, space::linear, space::linear_swiglu, space::linear_best, space::attention }

std::span<const VectorInstructions> vector_instructions() noexcept {
  // It takes the braces for a block of statements.
  // clang-format off
  static const std::array targets{
#if HWY_TARGETS & HWY_AVX3 & ~HWY_STATIC_TARGET
      MKRT_TARGET("AVX3", N_AVX3, has_avx3),
#endif
#if HWY_TARGETS & HWY_AVX2 & ~HWY_STATIC_TARGET
      MKRT_TARGET("AVX2", N_AVX2, has_avx2),
#endif
#if HWY_TARGETS & HWY_SSE4 & ~HWY_STATIC_TARGET
      MKRT_TARGET("SSE4", N_SSE4, has_sse4),
#endif
      // What the compiler may use anywhere; the only one where there is no choice, such as NEON.
      MKRT_TARGET(hwy::TargetName(HWY_STATIC_TARGET), HWY_NAMESPACE, always),
  };
  // clang-format on
  return targets;
}

}  // namespace mkrt::host::llm

#endif  // HWY_ONCE
