// Vector type of the VAES-512 path: four blocks in a zmm register. Members as in vec_portable.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aes_key.h"
#include "arena.h"
#include "vec_aesni.h"

namespace fsl {
namespace {

struct Vaes512 {
  static constexpr int kLanes = 4;
  static constexpr int kRegisters = 32;
  using R = __m512i;
  using Packed = AesNi;
  struct Key {
    R round[11];
    R ends;  // rounds 0 and 10, added
  };

  static Key make_key(const KeySchedule& schedule) {
    Key key;
    for (int r = 0; r < 11; ++r) {
      key.round[r] = _mm512_broadcast_i32x4(
          _mm_load_si128(reinterpret_cast<const __m128i*>(schedule.round[r])));
    }
    key.ends = bit_xor(key.round[0], key.round[10]);
    return key;
  }

  template <int n>
  static FSL_INLINE void encrypt(const Key& key, R (&x)[n]) {
    FSL_UNROLL
    for (int i = 0; i < n; ++i) x[i] = bit_xor(x[i], key.round[0]);
    rounds<1, 10>(key, x);
    FSL_UNROLL
    for (int i = 0; i < n; ++i) x[i] = _mm512_aesenclast_epi128(x[i], key.round[10]);
  }

  // For hashes of whitened inputs, as in vec_vaes256.h.
  template <int first, int last, int n>
  static FSL_INLINE void rounds(const Key& key, R (&x)[n]) {
    FSL_UNROLL
    for (int r = first; r < last; ++r) {
      FSL_UNROLL
      for (int i = 0; i < n; ++i) x[i] = _mm512_aesenc_epi128(x[i], key.round[r]);
    }
  }
  template <int n>
  static FSL_INLINE void last_round(R (&x)[n], const R* keys) {
    FSL_UNROLL
    for (int i = 0; i < n; ++i) x[i] = _mm512_aesenclast_epi128(x[i], keys[i]);
  }
  static R doubled(const std::uint8_t* from) {
    return _mm512_castpd_si512(_mm512_movedup_pd(_mm512_loadu_pd(from)));
  }
  static R low_words(R a, R b) { return _mm512_unpacklo_epi64(a, b); }
  static R high_words(R a, R b) { return _mm512_unpackhi_epi64(a, b); }
  static R sigma_from(R low, R high) {
    return xor_and(high, low, _mm512_set_epi64(-1, 0, -1, 0, -1, 0, -1, 0));
  }
  static R sigma_of_seed_from(R low, R high) {
    return xor_and(high, low, _mm512_set_epi64(-2, 0, -2, 0, -2, 0, -2, 0));
  }
  // A mask register: to spread bits over a register by shifts would compete with AES on Intel's
  // CPUs.
  static __mmask8 control_from(R low) { return _mm512_test_epi64_mask(low, splat(1)); }

  static R load(const void* from) { return _mm512_loadu_si512(from); }
  static void store(void* to, R r) { _mm512_storeu_si512(to, r); }
  // What lies beyond the n bytes is undefined. Not by masked stores: a later load of bytes near by
  // would wait for them to reach the cache.
  template <int n>
  static R load_part(const void* from) {
    if constexpr (n == 32) {
      return _mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    } else {
      return _mm512_castsi128_si512(x86::load_part<n>(from));
    }
  }
  template <int n>
  static void store_part(void* to, R r) {
    if constexpr (n == 32) {
      _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_castsi512_si256(r));
    } else {
      x86::store_part<n>(to, _mm512_castsi512_si128(r));
    }
  }

  static R zero() { return _mm512_setzero_si512(); }
  static R splat(std::uint64_t value) { return _mm512_set1_epi64(static_cast<long long>(value)); }
  static R lsb() { return _mm512_set_epi64(0, 1, 0, 1, 0, 1, 0, 1); }
  static R lsb_high() { return _mm512_set_epi64(1, 0, 1, 0, 1, 0, 1, 0); }
  static R counters(const std::uint64_t* low) {
    return spread_low(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low)));
  }

  static R bit_xor(R a, R b) { return _mm512_xor_si512(a, b); }
  static R bit_and(R a, R b) { return _mm512_and_si512(a, b); }
  static R bit_or(R a, R b) { return _mm512_or_si512(a, b); }
  static R clear(R a, R mask) { return _mm512_andnot_si512(mask, a); }
  // Immediates are truth tables of (a, b, c) with a = 0xf0, b = 0xcc, c = 0xaa.
  static R xor3(R a, R b, R c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
  static R xor_and(R a, R b, R c) { return _mm512_ternarylogic_epi64(a, b, c, 0x78); }
  static R select(R mask, R a, R b) { return _mm512_ternarylogic_epi64(mask, a, b, 0xca); }

  static R sigma(R x) {
    const R upper = _mm512_set_epi64(-1, 0, -1, 0, -1, 0, -1, 0);
    return xor_and(_mm512_shuffle_epi32(x, _MM_PERM_BADC), x, upper);
  }
  static R spread_lsb(R x) {
    return _mm512_srai_epi32(_mm512_slli_epi32(_mm512_shuffle_epi32(x, _MM_PERM_AAAA), 31), 31);
  }
  static __mmask8 control_of_one(const std::uint8_t* state) {
    long long low;
    std::memcpy(&low, state, 8);
    return _mm512_test_epi64_mask(_mm512_set1_epi64(low), splat(1));
  }
  static R xor_chosen(R a, __mmask8 control, R b) {
    return _mm512_mask_xor_epi64(a, control, a, b);
  }
  static R bit_mask(const std::uint64_t* values, unsigned shift) {
    const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
    const __m256i moved = _mm256_srl_epi64(four, _mm_cvtsi32_si128(static_cast<int>(shift)));
    const R doubled = _mm512_permutexvar_epi64(_mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0),
                                               _mm512_castsi256_si512(moved));
    return _mm512_sub_epi64(zero(), bit_and(doubled, splat(1)));
  }
  static R bits_from_bytes(const std::uint8_t* bytes) {
    int four;
    std::memcpy(&four, bytes, 4);
    return spread_low(_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four)));
  }
  static void bits_to_bytes(R x, std::uint8_t* bytes) {
    const R low = _mm512_permutexvar_epi64(_mm512_set_epi64(0, 0, 0, 0, 6, 4, 2, 0), x);
    const __m256i bits = _mm256_and_si256(_mm512_castsi512_si256(low), _mm256_set1_epi64x(1));
    const int four = _mm_cvtsi128_si32(_mm256_cvtepi64_epi8(bits));
    std::memcpy(bytes, &four, 4);
  }

  static void transpose(const R* rows, std::size_t stride, R* columns) {
    const R a = rows[0], b = rows[stride], c = rows[2 * stride], d = rows[3 * stride];
    const R ab_low = _mm512_shuffle_i64x2(a, b, 0x44), ab_high = _mm512_shuffle_i64x2(a, b, 0xee);
    const R cd_low = _mm512_shuffle_i64x2(c, d, 0x44), cd_high = _mm512_shuffle_i64x2(c, d, 0xee);
    columns[0] = _mm512_shuffle_i64x2(ab_low, cd_low, 0x88);
    columns[1] = _mm512_shuffle_i64x2(ab_low, cd_low, 0xdd);
    columns[2] = _mm512_shuffle_i64x2(ab_high, cd_high, 0x88);
    columns[3] = _mm512_shuffle_i64x2(ab_high, cd_high, 0xdd);
  }
  template <int leaves>
  static R spread(const std::uint8_t* blocks) {
    if constexpr (leaves == 4) return load(blocks);
    const __m128i* block = reinterpret_cast<const __m128i*>(blocks);
    const R first = _mm512_broadcast_i32x4(_mm_loadu_si128(block));
    if constexpr (leaves == 1) return first;
    return _mm512_mask_broadcast_i32x4(first, 0xff00, _mm_loadu_si128(block + 1));
  }

  template <int bytes>
  static R pack(R a, R b) {
    if constexpr (bytes == 8) {
      const R even = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
      return _mm512_permutex2var_epi64(a, even, b);
    }
    if constexpr (bytes == 4) {
      const R even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
      return _mm512_permutex2var_epi32(a, even, b);
    }
    if constexpr (bytes == 2) {
      const R even =
          _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28,
                           26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
      return _mm512_permutex2var_epi16(a, even, b);
    }
  }

  template <int width>
  static R add(R a, R b) {
    if constexpr (width == 2) return _mm512_add_epi16(a, b);
    if constexpr (width == 4) return _mm512_add_epi32(a, b);
    if constexpr (width == 8) return _mm512_add_epi64(a, b);
    if constexpr (width == 16) {
      const R sum = _mm512_add_epi64(a, b);
      const __mmask8 carry = _mm512_cmplt_epu64_mask(sum, b);
      return _mm512_mask_add_epi64(sum, upper_of(carry), sum, splat(1));
    }
  }
  // Block `lane`, the other blocks undefined.
  template <int lane>
  static R block(R r) {
    return _mm512_castsi128_si512(_mm512_extracti32x4_epi32(r, lane));
  }
  // a + b in the blocks of the control bits, a elsewhere.
  template <int width>
  static R add_chosen(R a, R b, __mmask8 control) {
    if constexpr (width == 8) return _mm512_mask_add_epi64(a, control, a, b);
    return add<width>(a, _mm512_maskz_mov_epi64(control, b));
  }
  template <int width>
  static R sub(R a, R b) {
    if constexpr (width == 2) return _mm512_sub_epi16(a, b);
    if constexpr (width == 4) return _mm512_sub_epi32(a, b);
    if constexpr (width == 8) return _mm512_sub_epi64(a, b);
    if constexpr (width == 16) {
      const R difference = _mm512_sub_epi64(a, b);
      const __mmask8 borrow = _mm512_cmplt_epu64_mask(a, b);
      return _mm512_mask_sub_epi64(difference, upper_of(borrow), difference, splat(1));
    }
  }

 private:
  // Four words to the lower halves of the four blocks.
  static R spread_low(__m256i words) {
    return _mm512_maskz_permutexvar_epi64(0x55, _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0),
                                          _mm512_castsi256_si512(words));
  }
  // Carries out of the lower halves become carries into the upper halves.
  static __mmask8 upper_of(__mmask8 lower) { return static_cast<__mmask8>((lower & 0x55) << 1); }
};

}  // namespace
}  // namespace fsl
