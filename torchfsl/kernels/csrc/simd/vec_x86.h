// Short loads and stores in xmm registers, for the ends of runs and for packed values.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace fsl {
namespace {
namespace x86 {

template <class T>
inline T read(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
inline void write(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// The first n bytes in the low end of a register, zero above.
template <int n>
inline __m128i load_part(const void* memory) {
  const auto* from = static_cast<const std::uint8_t*>(memory);
  if constexpr (n == 16) return _mm_loadu_si128(static_cast<const __m128i*>(memory));
  if constexpr (n == 12) {
    return _mm_insert_epi32(load_part<8>(from), read<std::int32_t>(from + 8), 2);
  }
  if constexpr (n == 9) return _mm_insert_epi8(load_part<8>(from), from[8], 8);
  if constexpr (n == 8) return _mm_loadl_epi64(static_cast<const __m128i*>(memory));
  if constexpr (n == 6) {
    return _mm_insert_epi16(load_part<4>(from), read<std::uint16_t>(from + 4), 2);
  }
  if constexpr (n == 4) return _mm_cvtsi32_si128(read<std::int32_t>(from));
  if constexpr (n == 3) return _mm_insert_epi8(load_part<2>(from), from[2], 2);
  if constexpr (n == 2) return _mm_cvtsi32_si128(read<std::uint16_t>(from));
  if constexpr (n == 1) return _mm_cvtsi32_si128(from[0]);
}

// Stores the low n bytes.
template <int n>
inline void store_part(void* memory, __m128i x) {
  auto* to = static_cast<std::uint8_t*>(memory);
  if constexpr (n == 16) _mm_storeu_si128(static_cast<__m128i*>(memory), x);
  // Not by _mm_storel_epi64, which GCC takes through a general register.
  if constexpr (n == 12 || n == 9 || n == 8) {
    _mm_storel_pi(static_cast<__m64*>(memory), _mm_castsi128_ps(x));
  }
  if constexpr (n == 12) write<std::int32_t>(to + 8, _mm_extract_epi32(x, 2));
  if constexpr (n == 9) to[8] = static_cast<std::uint8_t>(_mm_extract_epi8(x, 8));
  if constexpr (n == 6 || n == 4) write<std::int32_t>(to, _mm_cvtsi128_si32(x));
  if constexpr (n == 6) {
    write<std::uint16_t>(to + 4, static_cast<std::uint16_t>(_mm_extract_epi16(x, 2)));
  }
  if constexpr (n == 3 || n == 2) {
    write<std::uint16_t>(to, static_cast<std::uint16_t>(_mm_extract_epi16(x, 0)));
  }
  if constexpr (n == 3) to[2] = static_cast<std::uint8_t>(_mm_extract_epi8(x, 2));
  if constexpr (n == 1) to[0] = static_cast<std::uint8_t>(_mm_extract_epi8(x, 0));
}

}  // namespace x86
}  // namespace
}  // namespace fsl
