// Vector type of the AES-NI path: one block in an xmm register. Members as in vec_portable.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aes_key.h"
#include "arena.h"
#include "vec_x86.h"

namespace fsl {
namespace {

struct AesNi {
  static constexpr int kLanes = 1;
  static constexpr int kRegisters = 16;
  using R = __m128i;
  using Packed = AesNi;
  struct Key {
    R round[11];
    R ends;  // rounds 0 and 10, added
  };

  static Key make_key(const KeySchedule& schedule) {
    Key key;
    for (int r = 0; r < 11; ++r) key.round[r] = load(schedule.round[r]);
    key.ends = bit_xor(key.round[0], key.round[10]);
    return key;
  }

  template <int n>
  static FSL_INLINE void encrypt(const Key& key, R (&x)[n]) {
    FSL_UNROLL
    for (int i = 0; i < n; ++i) x[i] = bit_xor(x[i], key.round[0]);
    rounds<1, 10>(key, x);
    FSL_UNROLL
    for (int i = 0; i < n; ++i) x[i] = _mm_aesenclast_si128(x[i], key.round[10]);
  }

  // For hashes of whitened inputs, as in vec_vaes256.h.
  template <int first, int last, int n>
  static FSL_INLINE void rounds(const Key& key, R (&x)[n]) {
    FSL_UNROLL
    for (int r = first; r < last; ++r) {
      FSL_UNROLL
      for (int i = 0; i < n; ++i) x[i] = _mm_aesenc_si128(x[i], key.round[r]);
    }
  }
  template <int n>
  static FSL_INLINE void last_round(R (&x)[n], const R* keys) {
    FSL_UNROLL
    for (int i = 0; i < n; ++i) x[i] = _mm_aesenclast_si128(x[i], keys[i]);
  }
  static R doubled(const std::uint8_t* from) {
    return _mm_castpd_si128(_mm_loaddup_pd(reinterpret_cast<const double*>(from)));
  }
  static R low_words(R a, R b) { return _mm_unpacklo_epi64(a, b); }
  static R high_words(R a, R b) { return _mm_unpackhi_epi64(a, b); }
  static R sigma_from(R low, R high) { return bit_xor(high, bit_and(low, _mm_set_epi64x(-1, 0))); }
  static R sigma_of_seed_from(R low, R high) {
    return bit_xor(high, bit_and(low, _mm_set_epi64x(-2, 0)));
  }
  static R control_from(R low) { return _mm_sub_epi64(zero(), bit_and(low, splat(1))); }

  static R load(const void* from) { return _mm_loadu_si128(static_cast<const R*>(from)); }
  static void store(void* to, R r) { _mm_storeu_si128(static_cast<R*>(to), r); }
  template <int n>
  static R load_part(const void* from) {
    return x86::load_part<n>(from);
  }
  template <int n>
  static void store_part(void* to, R r) {
    x86::store_part<n>(to, r);
  }
  template <int width, int n>
  static R load_packed(const std::uint8_t* from) {
    return _mm_shuffle_epi8(x86::load_part<n>(from), spread_index<width>());
  }
  template <int width, int n>
  static void store_packed(std::uint8_t* to, R r) {
    x86::store_part<n>(to, _mm_shuffle_epi8(r, join_index<width>()));
  }

  static R zero() { return _mm_setzero_si128(); }
  static R splat(std::uint64_t value) { return _mm_set1_epi64x(static_cast<long long>(value)); }
  static R lsb() { return _mm_set_epi64x(0, 1); }
  static R lsb_high() { return _mm_set_epi64x(1, 0); }
  static R counters(const std::uint64_t* low) {
    return _mm_set_epi64x(0, static_cast<long long>(low[0]));
  }

  static R bit_xor(R a, R b) { return _mm_xor_si128(a, b); }
  static R bit_and(R a, R b) { return _mm_and_si128(a, b); }
  static R bit_or(R a, R b) { return _mm_or_si128(a, b); }
  static R clear(R a, R mask) { return _mm_andnot_si128(mask, a); }
  static R xor3(R a, R b, R c) { return bit_xor(bit_xor(a, b), c); }
  static R xor_and(R a, R b, R c) { return bit_xor(a, bit_and(b, c)); }
  static R select(R mask, R a, R b) { return bit_or(bit_and(mask, a), clear(b, mask)); }

  static R sigma(R x) {
    return bit_xor(_mm_shuffle_epi32(x, 0x4e), clear(x, _mm_set_epi64x(0, -1)));
  }
  static R spread_lsb(R x) {
    return _mm_srai_epi32(_mm_slli_epi32(_mm_shuffle_epi32(x, 0), 31), 31);
  }
  static R bit_mask(const std::uint64_t* values, unsigned shift) {
    return splat(0 - ((values[0] >> shift) & 1));
  }
  static R bits_from_bytes(const std::uint8_t* bytes) { return _mm_set_epi64x(0, bytes[0]); }
  static void bits_to_bytes(R x, std::uint8_t* bytes) {
    bytes[0] = static_cast<std::uint8_t>(_mm_cvtsi128_si64(x) & 1);
  }

  static void transpose(const R* rows, std::size_t, R* columns) { columns[0] = rows[0]; }
  template <int leaves>
  static R spread(const std::uint8_t* blocks) {
    return load(blocks);
  }

  template <int bytes>
  static R pack(R a, R b) {
    if constexpr (bytes == 8) return _mm_unpacklo_epi64(a, b);
    if constexpr (bytes == 4) {
      return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0x88));
    }
    if constexpr (bytes == 2) {
      const R mask = _mm_set1_epi32(0xffff);
      return _mm_packus_epi32(bit_and(a, mask), bit_and(b, mask));
    }
  }

  template <int width>
  static R add(R a, R b) {
    if constexpr (width == 2) return _mm_add_epi16(a, b);
    if constexpr (width == 4) return _mm_add_epi32(a, b);
    if constexpr (width == 8) return _mm_add_epi64(a, b);
    if constexpr (width == 16) {
      const R sum = _mm_add_epi64(a, b);
      return _mm_sub_epi64(sum, _mm_slli_si128(less(sum, b), 8));
    }
  }
  template <int width>
  static R sub(R a, R b) {
    if constexpr (width == 2) return _mm_sub_epi16(a, b);
    if constexpr (width == 4) return _mm_sub_epi32(a, b);
    if constexpr (width == 8) return _mm_sub_epi64(a, b);
    if constexpr (width == 16) {
      return _mm_add_epi64(_mm_sub_epi64(a, b), _mm_slli_si128(less(a, b), 8));
    }
  }

 private:
  // Byte positions that spread packed values over lanes, and that join them again. Functions and
  // not constants: no code of a path may run before the CPU is known.
  template <int width>
  static R spread_index() {
    if constexpr (width == 3) return bytes(0x80020100, 0x80050403, 0x80080706, 0x800b0a09);
    if constexpr (width == 6) return bytes(0x03020100, 0x80800504, 0x09080706, 0x80800b0a);
  }
  template <int width>
  static R join_index() {
    if constexpr (width == 3) return bytes(0x04020100, 0x09080605, 0x0e0d0c0a, 0x80808080);
    if constexpr (width == 6) return bytes(0x03020100, 0x09080504, 0x0d0c0b0a, 0x80808080);
  }
  static R bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    return _mm_setr_epi32(static_cast<int>(a), static_cast<int>(b), static_cast<int>(c),
                          static_cast<int>(d));
  }

  // All ones in the 64-bit lanes where a < b, unsigned.
  static R less(R a, R b) {
    const R top = splat(std::uint64_t{1} << 63);
    return _mm_cmpgt_epi64(bit_xor(b, top), bit_xor(a, top));
  }
};

}  // namespace
}  // namespace fsl
