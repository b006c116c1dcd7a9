// Arithmetic modulo p = 2^128 - 7 * 2^66 + 1, without branches. Elements are below p.
#pragma once

#include <cstdint>

namespace fsl::field128 {

using u64 = std::uint64_t;
using u128 = unsigned __int128;

inline constexpr u64 kUpper = 0xffffffffffffffe4ull;  // p = kUpper * 2^64 + 1
inline constexpr u128 kModulus = (u128{kUpper} << 64) | 1;

// All ones where `bit` is 1, in a way that no compiler turns into a branch.
inline u128 spread(u64 bit) {
  u64 mask = u64{0} - bit;
  __asm__("" : "+r"(mask));
  return (u128{mask} << 64) | mask;
}

inline u64 borrow_of(u128 a, u128 b, u128 difference) {
  return static_cast<u64>(((~a & b) | ((~a | b) & difference)) >> 127);
}

// (carry * 2^128 + value) modulo p, for numbers below 2 p.
inline u128 reduced(u128 value, u64 carry) {
  const u128 less = value - kModulus;
  const u128 keep = spread(borrow_of(value, kModulus, less) & (carry ^ 1));
  return (value & keep) | (less & ~keep);
}

inline u128 add(u128 a, u128 b) {
  const u128 sum = a + b;
  return reduced(sum, static_cast<u64>(((a & b) | ((a | b) & ~sum)) >> 127));
}

inline u128 subtract(u128 a, u128 b) {
  const u128 difference = a - b;
  return difference + (kModulus & spread(borrow_of(a, b, difference)));
}

// 1 unless the word is 0.
inline u64 not_zero(u64 word) { return (word | (u64{0} - word)) >> 63; }

// a * b / 2^128 modulo p (Montgomery). p = 1 modulo 2^64, so a multiplier of p is a negation.
inline u128 multiply(u128 a, u128 b) {
  const u64 a0 = static_cast<u64>(a), a1 = static_cast<u64>(a >> 64);
  const u64 b0 = static_cast<u64>(b), b1 = static_cast<u64>(b >> 64);
  u128 x = u128{a0} * b0;
  const u64 t0 = static_cast<u64>(x);
  x = u128{a1} * b0 + static_cast<u64>(x >> 64);
  const u64 t1 = static_cast<u64>(x), t2 = static_cast<u64>(x >> 64);
  x = u128{u64{0} - t0} * kUpper + t1 + not_zero(t0);
  const u64 s0 = static_cast<u64>(x);
  u128 y = u128{t2} + static_cast<u64>(x >> 64);
  const u64 s1 = static_cast<u64>(y), s2 = static_cast<u64>(y >> 64);
  x = u128{a0} * b1 + s0;
  const u64 v0 = static_cast<u64>(x);
  x = u128{a1} * b1 + s1 + static_cast<u64>(x >> 64);
  const u64 v1 = static_cast<u64>(x);
  y = u128{s2} + static_cast<u64>(x >> 64);
  const u64 v2 = static_cast<u64>(y), v3 = static_cast<u64>(y >> 64);
  x = u128{u64{0} - v0} * kUpper + v1 + not_zero(v0);
  y = u128{v2} + static_cast<u64>(x >> 64);
  const u64 carry = v3 + static_cast<u64>(y >> 64);
  return reduced((u128{static_cast<u64>(y)} << 64) | static_cast<u64>(x), carry);
}

// 2^256 modulo p.
inline u128 radix_squared() {
  u128 value = u128{0} - kModulus;  // 2^128 - p
  for (int i = 0; i < 128; ++i) value = add(value, value);
  return value;
}

inline u128 element(const u64* words) { return (u128{words[1]} << 64) | words[0]; }

inline void store_element(u128 value, u64* words) {
  words[0] = static_cast<u64>(value);
  words[1] = static_cast<u64>(value >> 64);
}

}  // namespace fsl::field128
