// Vector type of the portable path: four blocks as eight 64-bit words, bit-sliced AES.
//
// Every vec_*.h defines one type V with the same members; the kernels are templates over V.
//   R               a register of kLanes AES blocks, one tree (or one leaf) a lane
//   kRegisters      vector registers that code may count on
//   lsb, lsb_high   constants with bit 0 of every block, or bit 0 of its upper half, set
//   spread_lsb      all ones in the blocks whose bit 0 is set: the control bit as a mask
//   spread<n>       n blocks from memory, each kLanes / n times
//   transpose       kLanes registers of kLanes blocks, rows to columns
//   pack<B>         the low B bytes of every 2B-byte element of two registers, in order
//   add<B>, sub<B>  lanes of B bytes, modulo 2^(8B)
//   load_part<n>    n bytes, zero above; store_part<n> stores the low n bytes
//   Packed          type whose load_packed<B, n> spreads n bytes of B-byte values (B = 3 or 6, n up
//                   to 12) over lanes of 4 or 8 bytes, and whose store_packed<B, n> packs them
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aes_bitsliced.h"
#include "aes_key.h"

namespace fsl {
namespace {

struct Portable {
  static constexpr int kLanes = 4;
  static constexpr int kRegisters = 32;
  static constexpr bool kOutOfLine = true;  // encryption is a call
  using Packed = Portable;
  struct R {
    std::uint64_t word[2 * kLanes];
  };
  struct Key {
    bitsliced::Planes round[11];
  };

  static Key make_key(const KeySchedule& schedule) {
    Key key;
    for (int r = 0; r < 11; ++r) {
      R copies;
      for (int lane = 0; lane < kLanes; ++lane) {
        std::memcpy(copies.word + 2 * lane, schedule.round[r], 16);
      }
      key.round[r] = bitsliced::slice(copies.word);
    }
    return key;
  }

  template <int n>
  static void encrypt(const Key& key, R (&x)[n]) {
    encrypt_registers(key, x, n);
  }
  // Out of line: inlined into every kernel, the circuit takes minutes to compile and gains nothing.
  __attribute__((noinline)) static void encrypt_registers(const Key& key, R* x, int count) {
    for (int i = 0; i < count; ++i) bitsliced::encrypt(key.round, x[i].word);
  }

  static R load(const void* from) {
    R r;
    std::memcpy(&r, from, sizeof r);
    return r;
  }
  static void store(void* to, R r) { std::memcpy(to, &r, sizeof r); }
  template <int n>
  static R load_part(const void* from) {
    R r = {};
    std::memcpy(&r, from, n);
    return r;
  }
  template <int n>
  static void store_part(void* to, R r) {
    std::memcpy(to, &r, n);
  }
  template <int width, int n>
  static R load_packed(const std::uint8_t* from) {
    constexpr int lane = width == 3 ? 4 : 8;
    R r = {};
    auto* bytes = reinterpret_cast<std::uint8_t*>(&r);
    for (int i = 0; i < n; ++i) bytes[i / width * lane + i % width] = from[i];
    return r;
  }
  template <int width, int n>
  static void store_packed(std::uint8_t* to, R r) {
    constexpr int lane = width == 3 ? 4 : 8;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&r);
    for (int i = 0; i < n; ++i) to[i] = bytes[i / width * lane + i % width];
  }

  template <class F>
  static R each(F f) {
    R r;
    for (int i = 0; i < 2 * kLanes; ++i) r.word[i] = f(i);
    return r;
  }
  static R zero() { return R{}; }
  static R splat(std::uint64_t value) {
    return each([&](int) { return value; });
  }
  static R lsb() {
    return each([](int i) -> std::uint64_t { return i % 2 == 0; });
  }
  static R lsb_high() {
    return each([](int i) -> std::uint64_t { return i % 2; });
  }
  static R counters(const std::uint64_t* low) {
    return each([&](int i) { return i % 2 ? 0 : low[i / 2]; });
  }

  static R bit_xor(R a, R b) {
    return each([&](int i) { return a.word[i] ^ b.word[i]; });
  }
  static R bit_and(R a, R b) {
    return each([&](int i) { return a.word[i] & b.word[i]; });
  }
  static R bit_or(R a, R b) {
    return each([&](int i) { return a.word[i] | b.word[i]; });
  }
  static R clear(R a, R mask) {
    return each([&](int i) { return a.word[i] & ~mask.word[i]; });
  }
  static R xor3(R a, R b, R c) { return bit_xor(bit_xor(a, b), c); }
  static R xor_and(R a, R b, R c) { return bit_xor(a, bit_and(b, c)); }
  static R select(R mask, R a, R b) { return bit_xor(b, bit_and(mask, bit_xor(a, b))); }

  static R sigma(R x) {
    return each([&](int i) { return i % 2 ? x.word[i] ^ x.word[i - 1] : x.word[i + 1]; });
  }
  static R spread_lsb(R x) {
    return each([&](int i) { return 0 - (x.word[i & ~1] & 1); });
  }
  static R bit_mask(const std::uint64_t* values, unsigned shift) {
    return each([&](int i) { return 0 - ((values[i / 2] >> shift) & 1); });
  }
  static R bits_from_bytes(const std::uint8_t* bytes) {
    return each([&](int i) -> std::uint64_t { return i % 2 ? 0 : bytes[i / 2]; });
  }
  static void bits_to_bytes(R x, std::uint8_t* bytes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      bytes[lane] = static_cast<std::uint8_t>(x.word[2 * lane] & 1);
    }
  }

  static void transpose(const R* rows, std::size_t stride, R* columns) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < kLanes; ++j) {
        columns[i].word[2 * j] = rows[j * stride].word[2 * i];
        columns[i].word[2 * j + 1] = rows[j * stride].word[2 * i + 1];
      }
    }
  }
  template <int leaves>
  static R spread(const std::uint8_t* blocks) {
    R r;
    for (int i = 0; i < kLanes; ++i) {
      std::memcpy(r.word + 2 * i, blocks + i * leaves / kLanes * 16, 16);
    }
    return r;
  }

  template <int bytes>
  static R pack(R a, R b) {
    std::uint8_t out[sizeof(R)];
    const std::uint8_t* from[2] = {reinterpret_cast<const std::uint8_t*>(&a),
                                   reinterpret_cast<const std::uint8_t*>(&b)};
    for (std::size_t i = 0; i < sizeof(R) / bytes; ++i) {
      const std::size_t half = sizeof(R) / bytes / 2;
      std::memcpy(out + i * bytes, from[i / half] + (i % half) * 2 * bytes, bytes);
    }
    return load(out);
  }

  template <class Lane, class F>
  static R lanes(R a, R b, F f) {
    Lane x[sizeof(R) / sizeof(Lane)], y[sizeof(R) / sizeof(Lane)];
    std::memcpy(x, &a, sizeof a);
    std::memcpy(y, &b, sizeof b);
    for (std::size_t i = 0; i < sizeof(R) / sizeof(Lane); ++i)
      x[i] = static_cast<Lane>(f(x[i], y[i]));
    return load(x);
  }
  template <int width>
  static R add(R a, R b) {
    const auto plus = [](auto x, auto y) { return x + y; };
    if constexpr (width == 2) return lanes<std::uint16_t>(a, b, plus);
    if constexpr (width == 4) return lanes<std::uint32_t>(a, b, plus);
    if constexpr (width == 8) return lanes<std::uint64_t>(a, b, plus);
    if constexpr (width == 16) return lanes<unsigned __int128>(a, b, plus);
  }
  template <int width>
  static R sub(R a, R b) {
    const auto minus = [](auto x, auto y) { return x - y; };
    if constexpr (width == 2) return lanes<std::uint16_t>(a, b, minus);
    if constexpr (width == 4) return lanes<std::uint32_t>(a, b, minus);
    if constexpr (width == 8) return lanes<std::uint64_t>(a, b, minus);
    if constexpr (width == 16) return lanes<unsigned __int128>(a, b, minus);
  }
};

}  // namespace
}  // namespace fsl
