// Vector type of the VAES-256 path: two blocks in a ymm register. Members as in vec_portable.h.
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

struct Vaes256 {
  static constexpr int kLanes = 2;
  static constexpr int kRegisters = 16;
  using R = __m256i;
  using Packed = AesNi;
  struct Key {
    R round[11];
    R ends;  // rounds 0 and 10, added
  };

  static Key make_key(const KeySchedule& schedule) {
    Key key;
    for (int r = 0; r < 11; ++r) {
      key.round[r] = _mm256_broadcastsi128_si256(
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
    for (int i = 0; i < n; ++i) x[i] = _mm256_aesenclast_epi128(x[i], key.round[10]);
  }

  // For hashes of whitened inputs: rounds [first, last) of 1 to 9, and the last one with a key for
  // each register.
  template <int first, int last, int n>
  static FSL_INLINE void rounds(const Key& key, R (&x)[n]) {
    FSL_UNROLL
    for (int r = first; r < last; ++r) {
      FSL_UNROLL
      for (int i = 0; i < n; ++i) x[i] = _mm256_aesenc_epi128(x[i], key.round[r]);
    }
  }
  template <int n>
  static FSL_INLINE void last_round(R (&x)[n], const R* keys) {
    FSL_UNROLL
    for (int i = 0; i < n; ++i) x[i] = _mm256_aesenclast_epi128(x[i], keys[i]);
  }

  // The low words of two blocks in memory, each twice, and that of one block, four times. These are
  // loads alone, while shuffles compete with AES for execution ports.
  static R doubled(const std::uint8_t* from) {
    return _mm256_castpd_si256(
        _mm256_movedup_pd(_mm256_loadu_pd(reinterpret_cast<const double*>(from))));
  }
  static R fourfold(const std::uint8_t* from) { return splat(x86::read<std::uint64_t>(from)); }
  // The low, or high, words of the blocks of a and b, beside each other.
  static R low_words(R a, R b) { return _mm256_unpacklo_epi64(a, b); }
  static R high_words(R a, R b) { return _mm256_unpackhi_epi64(a, b); }
  // From the words of a state, each twice: sigma of it, sigma of its seed, a mask of its control
  // bit.
  static R sigma_from(R low, R high) {
    return bit_xor(high, bit_and(low, _mm256_set_epi64x(-1, 0, -1, 0)));
  }
  static R sigma_of_seed_from(R low, R high) {
    return bit_xor(high, bit_and(low, _mm256_set_epi64x(-2, 0, -2, 0)));
  }
  static R control_from(R low) { return _mm256_sub_epi64(zero(), bit_and(low, splat(1))); }

  static R load(const void* from) { return _mm256_loadu_si256(static_cast<const R*>(from)); }
  static void store(void* to, R r) { _mm256_storeu_si256(static_cast<R*>(to), r); }
  template <int n>
  static R load_part(const void* from) {
    return _mm256_zextsi128_si256(x86::load_part<n>(from));
  }
  template <int n>
  static void store_part(void* to, R r) {
    x86::store_part<n>(to, _mm256_castsi256_si128(r));
  }

  static R zero() { return _mm256_setzero_si256(); }
  static R splat(std::uint64_t value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }
  static R lsb() { return _mm256_set_epi64x(0, 1, 0, 1); }
  static R lsb_high() { return _mm256_set_epi64x(1, 0, 1, 0); }
  static R counters(const std::uint64_t* low) {
    return _mm256_set_epi64x(0, static_cast<long long>(low[1]), 0, static_cast<long long>(low[0]));
  }

  static R bit_xor(R a, R b) { return _mm256_xor_si256(a, b); }
  static R bit_and(R a, R b) { return _mm256_and_si256(a, b); }
  static R bit_or(R a, R b) { return _mm256_or_si256(a, b); }
  static R clear(R a, R mask) { return _mm256_andnot_si256(mask, a); }
  static R xor3(R a, R b, R c) { return bit_xor(bit_xor(a, b), c); }
  static R xor_and(R a, R b, R c) { return bit_xor(a, bit_and(b, c)); }
  static R select(R mask, R a, R b) { return bit_or(bit_and(mask, a), clear(b, mask)); }

  static R sigma(R x) {
    return bit_xor(_mm256_shuffle_epi32(x, 0x4e), clear(x, _mm256_set_epi64x(0, -1, 0, -1)));
  }
  static R spread_lsb(R x) {
    return _mm256_srai_epi32(_mm256_slli_epi32(_mm256_shuffle_epi32(x, 0), 31), 31);
  }
  static R bit_mask(const std::uint64_t* values, unsigned shift) {
    const __m128i pair = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    const __m128i moved = _mm_srl_epi64(pair, _mm_cvtsi32_si128(static_cast<int>(shift)));
    const R doubled = _mm256_permute4x64_epi64(_mm256_castsi128_si256(moved), 0x50);
    return _mm256_sub_epi64(zero(), bit_and(doubled, splat(1)));
  }
  static R bits_from_bytes(const std::uint8_t* bytes) {
    const std::uint32_t pair = x86::read<std::uint16_t>(bytes);
    const std::uint32_t apart = (pair | pair << 8) & 0x00ff00ff;
    return _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(static_cast<int>(apart)));
  }
  static void bits_to_bytes(R x, std::uint8_t* bytes) {
    bytes[0] = static_cast<std::uint8_t>(_mm256_extract_epi64(x, 0) & 1);
    bytes[1] = static_cast<std::uint8_t>(_mm256_extract_epi64(x, 2) & 1);
  }

  static void transpose(const R* rows, std::size_t stride, R* columns) {
    const R a = rows[0], b = rows[stride];
    columns[0] = _mm256_permute2x128_si256(a, b, 0x20);
    columns[1] = _mm256_permute2x128_si256(a, b, 0x31);
  }
  template <int leaves>
  static R spread(const std::uint8_t* blocks) {
    if constexpr (leaves == 2) return load(blocks);
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks)));
  }

  template <int bytes>
  static R pack(R a, R b) {
    R mixed;
    if constexpr (bytes == 8) mixed = _mm256_unpacklo_epi64(a, b);
    if constexpr (bytes == 4) {
      mixed = _mm256_castps_si256(
          _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88));
    }
    if constexpr (bytes == 2) {
      const R mask = _mm256_set1_epi32(0xffff);
      mixed = _mm256_packus_epi32(bit_and(a, mask), bit_and(b, mask));
    }
    return _mm256_permute4x64_epi64(mixed, 0xd8);
  }

  template <int width>
  static R add(R a, R b) {
    if constexpr (width == 2) return _mm256_add_epi16(a, b);
    if constexpr (width == 4) return _mm256_add_epi32(a, b);
    if constexpr (width == 8) return _mm256_add_epi64(a, b);
    if constexpr (width == 16) {
      const R sum = _mm256_add_epi64(a, b);
      return _mm256_sub_epi64(sum, _mm256_slli_si256(less(sum, b), 8));
    }
  }
  template <int width>
  static R sub(R a, R b) {
    if constexpr (width == 2) return _mm256_sub_epi16(a, b);
    if constexpr (width == 4) return _mm256_sub_epi32(a, b);
    if constexpr (width == 8) return _mm256_sub_epi64(a, b);
    if constexpr (width == 16) {
      return _mm256_add_epi64(_mm256_sub_epi64(a, b), _mm256_slli_si256(less(a, b), 8));
    }
  }

 private:
  // All ones in the 64-bit lanes where a < b, unsigned.
  static R less(R a, R b) {
    const R top = splat(std::uint64_t{1} << 63);
    return _mm256_cmpgt_epi64(bit_xor(b, top), bit_xor(a, top));
  }
};

}  // namespace
}  // namespace fsl
