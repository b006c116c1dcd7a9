// Products in GF(2^128) by the carry-less multiplication of x86 or Arm, for the vector type of a
// path.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "gf128.h"

namespace fsl {
namespace {

// Halves `which` (0x01: upper of a, 0x10: upper of b) of every block, multiplied.
#if defined(__aarch64__)
template <int which>
inline uint64x2_t multiply_halves(uint64x2_t a, uint64x2_t b) {
  return vreinterpretq_u64_p128(vmull_p64(static_cast<poly64_t>(vgetq_lane_u64(a, which & 0x01)),
                                          static_cast<poly64_t>(vgetq_lane_u64(b, which >> 4))));
}
#else
template <int which>
inline __m128i multiply_halves(__m128i a, __m128i b) {
  return _mm_clmulepi64_si128(a, b, which);
}
#if defined(__VPCLMULQDQ__)
template <int which>
inline __m256i multiply_halves(__m256i a, __m256i b) {
  return _mm256_clmulepi64_epi128(a, b, which);
}
#if defined(__AVX512F__)
template <int which>
inline __m512i multiply_halves(__m512i a, __m512i b) {
  return _mm512_clmulepi64_epi128(a, b, which);
}
#endif
#endif
#endif

// As IntegerProducts.
template <class V>
class CarrylessProducts {
 public:
  using R = typename V::R;

  void add(R a, R b) {
    low_ = V::bit_xor(low_, multiply_halves<0x00>(a, b));
    middle_ = V::xor3(middle_, multiply_halves<0x01>(a, b), multiply_halves<0x10>(a, b));
    high_ = V::bit_xor(high_, multiply_halves<0x11>(a, b));
  }

  void reduce_into(std::uint8_t* to) const {
    gf128::reduce_into({sum(low_), sum(middle_), sum(high_)}, to);
  }

 private:
  static gf128::Wide sum(R blocks) {
    gf128::Wide lanes[V::kLanes], total = 0;
    V::store(lanes, blocks);
    for (const gf128::Wide lane : lanes) total ^= lane;
    return total;
  }

  R low_ = V::zero();
  R middle_ = V::zero();
  R high_ = V::zero();
};

}  // namespace
}  // namespace fsl
