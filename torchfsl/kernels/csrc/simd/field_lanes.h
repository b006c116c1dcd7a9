// Pairs of 32-bit numbers in 64-bit words, for the products modulo 2^32 - 5 (field_products.h).
//
// A register holds words; a word holds an even number in its low half and an odd one in its high
// half. Which instructions are used follows from the flags of the path that includes this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "arena.h"

namespace fsl {
namespace {

// One word in a general register: any CPU, and what is left over at the end of a row.
struct OneWord {
  static constexpr std::size_t kNumbers = 2;
  using R = std::uint64_t;
  static R load(const std::uint32_t* from) { return from[0] | R{from[1]} << 32; }
  static void store(std::uint32_t* to, R x) {
    to[0] = static_cast<std::uint32_t>(x);
    to[1] = static_cast<std::uint32_t>(x >> 32);
  }
  static R splat(std::uint64_t x) { return x; }
  static R add(R a, R b) { return a + b; }
  static R subtract(R a, R b) { return a - b; }
  static R low(R a) { return a & 0xffffffffu; }
  static R high(R a) { return a >> 32; }
  static R raise(R a) { return a << 32; }
  static R times5(R a) { return (a << 2) + a; }
  static R multiply(R a, R b) { return low(a) * low(b); }  // low halves
};

#if defined(__AVX512F__)

struct FieldLanes {
  static constexpr std::size_t kNumbers = 16;
  static constexpr int kRows = 6;
  using R = __m512i;
  static FSL_INLINE R load(const std::uint32_t* from) { return _mm512_loadu_si512(from); }
  static FSL_INLINE void store(std::uint32_t* to, R x) { _mm512_storeu_si512(to, x); }
  static FSL_INLINE R splat(std::uint64_t x) {
    return _mm512_set1_epi64(static_cast<long long>(x));
  }
  static FSL_INLINE R add(R a, R b) { return _mm512_add_epi64(a, b); }
  static FSL_INLINE R subtract(R a, R b) { return _mm512_sub_epi64(a, b); }
  static FSL_INLINE R low(R a) { return _mm512_and_si512(a, splat(0xffffffffu)); }
  static FSL_INLINE R high(R a) { return _mm512_srli_epi64(a, 32); }
  static FSL_INLINE R raise(R a) { return _mm512_slli_epi64(a, 32); }
  static FSL_INLINE R times5(R a) { return add(_mm512_slli_epi64(a, 2), a); }
  static FSL_INLINE R multiply(R a, R b) { return _mm512_mul_epu32(a, b); }
};

#elif defined(__AVX2__)

struct FieldLanes {
  static constexpr std::size_t kNumbers = 8;
  static constexpr int kRows = 2;
  using R = __m256i;
  static FSL_INLINE R load(const std::uint32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static FSL_INLINE void store(std::uint32_t* to, R x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  }
  static FSL_INLINE R splat(std::uint64_t x) {
    return _mm256_set1_epi64x(static_cast<long long>(x));
  }
  static FSL_INLINE R add(R a, R b) { return _mm256_add_epi64(a, b); }
  static FSL_INLINE R subtract(R a, R b) { return _mm256_sub_epi64(a, b); }
  static FSL_INLINE R low(R a) { return _mm256_and_si256(a, splat(0xffffffffu)); }
  static FSL_INLINE R high(R a) { return _mm256_srli_epi64(a, 32); }
  static FSL_INLINE R raise(R a) { return _mm256_slli_epi64(a, 32); }
  static FSL_INLINE R times5(R a) { return add(_mm256_slli_epi64(a, 2), a); }
  static FSL_INLINE R multiply(R a, R b) { return _mm256_mul_epu32(a, b); }
};

#elif defined(__SSE2__)

struct FieldLanes {
  static constexpr std::size_t kNumbers = 4;
  static constexpr int kRows = 2;
  using R = __m128i;
  static FSL_INLINE R load(const std::uint32_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  static FSL_INLINE void store(std::uint32_t* to, R x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x);
  }
  static FSL_INLINE R splat(std::uint64_t x) { return _mm_set1_epi64x(static_cast<long long>(x)); }
  static FSL_INLINE R add(R a, R b) { return _mm_add_epi64(a, b); }
  static FSL_INLINE R subtract(R a, R b) { return _mm_sub_epi64(a, b); }
  static FSL_INLINE R low(R a) { return _mm_and_si128(a, splat(0xffffffffu)); }
  static FSL_INLINE R high(R a) { return _mm_srli_epi64(a, 32); }
  static FSL_INLINE R raise(R a) { return _mm_slli_epi64(a, 32); }
  static FSL_INLINE R times5(R a) { return add(_mm_slli_epi64(a, 2), a); }
  static FSL_INLINE R multiply(R a, R b) { return _mm_mul_epu32(a, b); }
};

#elif defined(__ARM_NEON)

struct FieldLanes {
  static constexpr std::size_t kNumbers = 4;
  static constexpr int kRows = 4;
  using R = uint64x2_t;
  static FSL_INLINE R load(const std::uint32_t* from) {
    return vreinterpretq_u64_u32(vld1q_u32(from));
  }
  static FSL_INLINE void store(std::uint32_t* to, R x) { vst1q_u32(to, vreinterpretq_u32_u64(x)); }
  static FSL_INLINE R splat(std::uint64_t x) { return vdupq_n_u64(x); }
  static FSL_INLINE R add(R a, R b) { return vaddq_u64(a, b); }
  static FSL_INLINE R subtract(R a, R b) { return vsubq_u64(a, b); }
  static FSL_INLINE R low(R a) { return vandq_u64(a, splat(0xffffffffu)); }
  static FSL_INLINE R high(R a) { return vshrq_n_u64(a, 32); }
  static FSL_INLINE R raise(R a) { return vshlq_n_u64(a, 32); }
  static FSL_INLINE R times5(R a) { return vaddq_u64(vshlq_n_u64(a, 2), a); }
  static FSL_INLINE R multiply(R a, R b) { return vmull_u32(vmovn_u64(a), vmovn_u64(b)); }
};

#else

struct FieldLanes : OneWord {
  static constexpr int kRows = 2;
};

#endif

}  // namespace
}  // namespace fsl
