// SHA-256 by the instructions of x86 or Arm. This file has an instruction set of its own, as the
// paths have, so it uses raw memory alone.
#if defined(__x86_64__) || defined(__aarch64__)

#include "sha256_cpu.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

namespace fsl::client {
namespace {

#if defined(__aarch64__)

using Four = uint32x4_t;

Four load(const std::uint32_t* from) { return vld1q_u32(from); }
Four load_swapped(const std::uint8_t* from) {
  return vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(from)));
}
Four add(Four a, Four b) { return vaddq_u32(a, b); }
Four next_words(Four a, Four b, Four c, Four d) {
  return vsha256su1q_u32(vsha256su0q_u32(a, b), c, d);
}

struct State {
  explicit State(const std::uint32_t* words) : first(load(words)), second(load(words + 4)) {}
  void store(std::uint32_t* words) const {
    vst1q_u32(words, first);
    vst1q_u32(words + 4, second);
  }
  void four_rounds(Four words) {
    const Four before = first;
    first = vsha256hq_u32(first, second, words);
    second = vsha256h2q_u32(second, before, words);
  }
  Four first, second;
};

#else

using Four = __m128i;

Four load(const void* from) { return _mm_loadu_si128(static_cast<const Four*>(from)); }
Four load_swapped(const std::uint8_t* from) {
  const Four order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  return _mm_shuffle_epi8(load(from), order);
}
Four add(Four a, Four b) { return _mm_add_epi32(a, b); }
Four next_words(Four a, Four b, Four c, Four d) {
  return _mm_sha256msg2_epu32(add(_mm_sha256msg1_epu32(a, b), _mm_alignr_epi8(d, c, 4)), d);
}

// The words a, b, e, f and c, d, g, h, the highest first.
struct State {
  explicit State(const std::uint32_t* words) {
    const Four badc = _mm_shuffle_epi32(load(words), 0xb1);
    const Four hgfe = _mm_shuffle_epi32(load(words + 4), 0x1b);
    first = _mm_alignr_epi8(badc, hgfe, 8);
    second = _mm_blend_epi16(hgfe, badc, 0xf0);
  }
  void store(std::uint32_t* words) const {
    const Four abef = _mm_shuffle_epi32(first, 0x1b), dchg = _mm_shuffle_epi32(second, 0xb1);
    _mm_storeu_si128(reinterpret_cast<Four*>(words), _mm_blend_epi16(abef, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<Four*>(words + 4), _mm_alignr_epi8(dchg, abef, 8));
  }
  void four_rounds(Four words) {
    second = _mm_sha256rnds2_epu32(second, first, words);
    first = _mm_sha256rnds2_epu32(first, second, _mm_shuffle_epi32(words, 0x0e));
  }
  Four first, second;
};

#endif

}  // namespace

void compress_by_cpu(const std::uint32_t* constants, std::uint32_t* words, const std::uint8_t* data,
                     std::size_t num_blocks) {
  State state(words);
  for (; num_blocks; --num_blocks, data += 64) {
    const State before = state;
    Four w[4];
    for (int i = 0; i < 4; ++i) w[i] = load_swapped(data + 16 * i);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      state.four_rounds(add(w[i % 4], load(constants + 4 * i)));
      if (i < 12) w[i % 4] = next_words(w[i % 4], w[(i + 1) % 4], w[(i + 2) % 4], w[(i + 3) % 4]);
    }
    state.first = add(state.first, before.first);
    state.second = add(state.second, before.second);
  }
  state.store(words);
}

}  // namespace fsl::client

#endif
