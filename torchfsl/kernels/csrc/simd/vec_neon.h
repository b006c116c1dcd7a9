// Vector type of the Arm path: one block in a 128-bit register, AES by the crypto extensions.
// Members as in vec_portable.h.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aes_key.h"
#include "arena.h"

namespace fsl {
namespace {

struct Neon {
  static constexpr int kLanes = 1;
  static constexpr int kRegisters = 32;
  using R = uint64x2_t;
  using Packed = Neon;
  struct Key {
    R round[11];
  };

  static Key make_key(const KeySchedule& schedule) {
    Key key;
    for (int r = 0; r < 11; ++r) key.round[r] = load(schedule.round[r]);
    return key;
  }

  // AESE adds the round key first, so that the keys come one step earlier than in FIPS 197.
  template <int n>
  static FSL_INLINE void encrypt(const Key& key, R (&x)[n]) {
    FSL_UNROLL
    for (int r = 0; r < 9; ++r) {
      FSL_UNROLL
      for (int i = 0; i < n; ++i) x[i] = words(vaesmcq_u8(substitute(x[i], key.round[r])));
    }
    FSL_UNROLL
    for (int i = 0; i < n; ++i) {
      x[i] = bit_xor(words(substitute(x[i], key.round[9])), key.round[10]);
    }
  }

  static R load(const void* from) {
    return words(vld1q_u8(static_cast<const std::uint8_t*>(from)));
  }
  static void store(void* to, R r) { vst1q_u8(static_cast<std::uint8_t*>(to), bytes(r)); }
  template <int n>
  static R load_part(const void* from) {
    std::uint64_t two[2] = {};
    std::memcpy(two, from, n);
    return vld1q_u64(two);
  }
  template <int n>
  static void store_part(void* to, R r) {
    const std::uint64_t two[2] = {vgetq_lane_u64(r, 0), vgetq_lane_u64(r, 1)};
    std::memcpy(to, two, n);
  }
  template <int width, int n>
  static R load_packed(const std::uint8_t* from) {
    return permute(load_part<n>(from), spread_index<width>());
  }
  template <int width, int n>
  static void store_packed(std::uint8_t* to, R r) {
    store_part<n>(to, permute(r, join_index<width>()));
  }

  static R zero() { return vdupq_n_u64(0); }
  static R splat(std::uint64_t value) { return vdupq_n_u64(value); }
  static R lsb() { return pair(1, 0); }
  static R lsb_high() { return pair(0, 1); }
  static R counters(const std::uint64_t* low) { return pair(low[0], 0); }

  static R bit_xor(R a, R b) { return veorq_u64(a, b); }
  static R bit_and(R a, R b) { return vandq_u64(a, b); }
  static R bit_or(R a, R b) { return vorrq_u64(a, b); }
  static R clear(R a, R mask) { return vbicq_u64(a, mask); }
  static R xor3(R a, R b, R c) { return bit_xor(bit_xor(a, b), c); }
  static R xor_and(R a, R b, R c) { return bit_xor(a, bit_and(b, c)); }
  static R select(R mask, R a, R b) { return vbslq_u64(mask, a, b); }

  static R sigma(R x) {
    return bit_xor(vextq_u64(x, x, 1), bit_and(x, pair(0, ~std::uint64_t{0})));
  }
  static R spread_lsb(R x) { return vsubq_u64(zero(), bit_and(vdupq_laneq_u64(x, 0), splat(1))); }
  static R bit_mask(const std::uint64_t* values, unsigned shift) {
    return splat(0 - ((values[0] >> shift) & 1));
  }
  static R bits_from_bytes(const std::uint8_t* bytes) { return pair(bytes[0], 0); }
  static void bits_to_bytes(R x, std::uint8_t* bytes) {
    bytes[0] = static_cast<std::uint8_t>(vgetq_lane_u64(x, 0) & 1);
  }

  static void transpose(const R* rows, std::size_t, R* columns) { columns[0] = rows[0]; }
  template <int leaves>
  static R spread(const std::uint8_t* blocks) {
    return load(blocks);
  }

  template <int bytes>
  static R pack(R a, R b) {
    if constexpr (bytes == 8) return vuzp1q_u64(a, b);
    if constexpr (bytes == 4) {
      return vreinterpretq_u64_u32(vuzp1q_u32(vreinterpretq_u32_u64(a), vreinterpretq_u32_u64(b)));
    }
    if constexpr (bytes == 2) {
      return vreinterpretq_u64_u16(vuzp1q_u16(vreinterpretq_u16_u64(a), vreinterpretq_u16_u64(b)));
    }
  }

  template <int width>
  static R add(R a, R b) {
    if constexpr (width == 2) {
      return vreinterpretq_u64_u16(vaddq_u16(vreinterpretq_u16_u64(a), vreinterpretq_u16_u64(b)));
    }
    if constexpr (width == 4) {
      return vreinterpretq_u64_u32(vaddq_u32(vreinterpretq_u32_u64(a), vreinterpretq_u32_u64(b)));
    }
    if constexpr (width == 8) return vaddq_u64(a, b);
    if constexpr (width == 16) {
      const R sum = vaddq_u64(a, b);
      return vsubq_u64(sum, to_upper(vcltq_u64(sum, b)));
    }
  }
  template <int width>
  static R sub(R a, R b) {
    if constexpr (width == 2) {
      return vreinterpretq_u64_u16(vsubq_u16(vreinterpretq_u16_u64(a), vreinterpretq_u16_u64(b)));
    }
    if constexpr (width == 4) {
      return vreinterpretq_u64_u32(vsubq_u32(vreinterpretq_u32_u64(a), vreinterpretq_u32_u64(b)));
    }
    if constexpr (width == 8) return vsubq_u64(a, b);
    if constexpr (width == 16) return vaddq_u64(vsubq_u64(a, b), to_upper(vcltq_u64(a, b)));
  }

 private:
  static R words(uint8x16_t x) { return vreinterpretq_u64_u8(x); }
  static uint8x16_t bytes(R x) { return vreinterpretq_u8_u64(x); }
  static R pair(std::uint64_t low, std::uint64_t high) {
    return vcombine_u64(vcreate_u64(low), vcreate_u64(high));
  }
  static uint8x16_t substitute(R x, R round_key) { return vaeseq_u8(bytes(x), bytes(round_key)); }

  // The bytes of x at the given places, zero for a place of 16 or more.
  static R permute(R x, R places) { return words(vqtbl1q_u8(bytes(x), bytes(places))); }
  // Places that spread packed values over lanes, and that join them again.
  template <int width>
  static R spread_index() {
    if constexpr (width == 3) return pair(0x8005040380020100, 0x800b0a0980080706);
    if constexpr (width == 6) return pair(0x8080050403020100, 0x80800b0a09080706);
  }
  template <int width>
  static R join_index() {
    if constexpr (width == 3) return pair(0x0908060504020100, 0x808080800e0d0c0a);
    if constexpr (width == 6) return pair(0x0908050403020100, 0x808080800d0c0b0a);
  }

  // The lower word moves up, and zero follows.
  static R to_upper(R x) { return vextq_u64(zero(), x, 1); }
};

}  // namespace
}  // namespace fsl
