// Sums of products in GF(2^128), reduced once at the end. Bit k of the little-endian number is the
// coefficient of x^k; the modulus is x^128 + x^7 + x^2 + x + 1. Nothing branches on an element and
// no address depends on one.
#pragma once

#include <cstdint>
#include <cstring>

namespace fsl {
namespace {
namespace gf128 {

using Wide = unsigned __int128;

// Three carry-less sums of products of 64-bit halves: value low + middle x^64 + high x^128.
struct Halves {
  Wide low = 0;
  Wide middle = 0;
  Wide high = 0;
};

// XORs the element that `sum` stands for into the 16 bytes at `to`.
inline void reduce_into(const Halves& sum, std::uint8_t* to) {
  const Wide low = sum.low ^ (sum.middle << 64), high = sum.high ^ (sum.middle >> 64);
  // x^128 = x^7 + x^2 + x + 1; what that pushes beyond x^127 is folded in once more.
  const Wide beyond = (high >> 127) ^ (high >> 126) ^ (high >> 121);
  const Wide folded = high ^ beyond;
  Wide element;
  std::memcpy(&element, to, sizeof element);
  element ^= low ^ folded ^ (folded << 1) ^ (folded << 2) ^ (folded << 7);
  std::memcpy(to, &element, sizeof element);
}

// Bits c, c + 5, c + 10, ...
constexpr Wide every_fifth_bit(int c) {
  Wide bits = 0;
  for (int i = c; i < 128; i += 5) bits |= Wide{1} << i;
  return bits;
}

// Carry-less product by integer multiplication, which takes constant time on every CPU of this
// decade. Factors with only every fifth bit set give sums of at most 13 ones, whose carries do not
// reach the next bit of the class.
inline Wide multiply(std::uint64_t a, std::uint64_t b) {
  constexpr Wide kClass[5] = {every_fifth_bit(0), every_fifth_bit(1), every_fifth_bit(2),
                              every_fifth_bit(3), every_fifth_bit(4)};
  std::uint64_t x[5], y[5];
  for (int c = 0; c < 5; ++c) {
    x[c] = a & static_cast<std::uint64_t>(kClass[c]);
    y[c] = b & static_cast<std::uint64_t>(kClass[c]);
  }
  Wide result = 0;
  for (int c = 0; c < 5; ++c) {
    Wide sum = 0;
    for (int i = 0; i < 5; ++i) sum ^= Wide{x[i]} * y[(c + 5 - i) % 5];
    result |= sum & kClass[c];
  }
  return result;
}

}  // namespace gf128

// Sum of products of all blocks of registers, for any vector type.
template <class V>
class IntegerProducts {
 public:
  using R = typename V::R;

  // Out of line: 75 multiplications a block, of which a loop over leaves would have many copies.
  __attribute__((noinline)) void add(R a, R b) {
    std::uint64_t x[2 * V::kLanes], y[2 * V::kLanes];
    V::store(x, a);
    V::store(y, b);
    for (int i = 0; i < 2 * V::kLanes; i += 2) {
      const gf128::Wide low = gf128::multiply(x[i], y[i]);
      const gf128::Wide high = gf128::multiply(x[i + 1], y[i + 1]);
      sum_.low ^= low;
      sum_.high ^= high;
      sum_.middle ^= gf128::multiply(x[i] ^ x[i + 1], y[i] ^ y[i + 1]) ^ low ^ high;
    }
  }

  void reduce_into(std::uint8_t* to) const { gf128::reduce_into(sum_, to); }

 private:
  gf128::Halves sum_;
};

}  // namespace
}  // namespace fsl
