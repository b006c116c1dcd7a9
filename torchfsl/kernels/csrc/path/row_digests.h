// Digests of rows: BLAKE2s of RFC 7693 with 16-byte digests under a 16-byte key, a row a lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "arena.h"
#include "check_path.h"

namespace fsl {
namespace {
namespace blake2s {

inline constexpr std::size_t kBlock = 64;
inline constexpr std::uint32_t kStart[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
inline constexpr std::uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

template <int by, class W>
FSL_INLINE void turn(W& x) {
  x = x >> by | x << (32 - by);
}

template <int by, int then, class W>
FSL_INLINE void mix_one(W& a, W& b, W& c, W& d, const W& x) {
  a += b + x;
  d ^= a;
  turn<by>(d);
  c += d;
  b ^= c;
  turn<then>(b);
}

template <class W>
FSL_INLINE void mix(W& a, W& b, W& c, W& d, const W& x, const W& y) {
  mix_one<16, 12>(a, b, c, d, x);
  mix_one<8, 7>(a, b, c, d, y);
}

// Takes in the block `m`, after which `end` bytes have been taken in, into the state `h`. W is a
// 32-bit word, or a vector of those of several messages.
template <class W>
FSL_INLINE void compress(W (&h)[8], const W (&m)[16], std::uint64_t end, bool last) {
  W v[16];
  FSL_UNROLL
  for (int i = 0; i < 8; ++i) {
    v[i] = h[i];
    v[i + 8] = W{} + kStart[i];
  }
  v[12] ^= static_cast<std::uint32_t>(end);
  v[13] ^= static_cast<std::uint32_t>(end >> 32);
  v[14] ^= last ? ~std::uint32_t{0} : 0;
  FSL_UNROLL
  for (int round = 0; round < 10; ++round) {
    const std::uint8_t* const s = kOrder[round];
    FSL_UNROLL
    for (int i = 0; i < 4; ++i) {
      mix(v[i], v[i + 4], v[i + 8], v[i + 12], m[s[2 * i]], m[s[2 * i + 1]]);
    }
    FSL_UNROLL
    for (int i = 0; i < 4; ++i) {
      mix(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4], m[s[8 + 2 * i]],
          m[s[9 + 2 * i]]);
    }
  }
  FSL_UNROLL
  for (int i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

}  // namespace blake2s

// The words of as many messages as a register has lanes of 32 bits.
template <std::size_t bytes>
struct Words;
template <>
struct Words<16> {
  typedef std::uint32_t Vector __attribute__((vector_size(16)));
};
template <>
struct Words<32> {
  typedef std::uint32_t Vector __attribute__((vector_size(32)));
};
template <>
struct Words<64> {
  typedef std::uint32_t Vector __attribute__((vector_size(64)));
};

template <std::size_t bytes>
struct RowLanes {
  using W = typename Words<bytes>::Vector;
  static constexpr std::size_t kRows = bytes / 4;

  // `count` <= kRows rows from `rows` on; other lanes repeat the last.
  static FSL_INLINE void digest(const RowDigestArgs& args, const std::uint8_t* rows,
                                std::size_t count, std::uint8_t* out) {
    W h[8], m[16];
    FSL_UNROLL
    for (int i = 0; i < 8; ++i) h[i] = W{} + args.state[i];
    const std::size_t size = args.row_bytes;
    for (std::size_t at = 0; at < size; at += blake2s::kBlock) {
      const bool last = size - at <= blake2s::kBlock;
      load(rows + at, size, last ? size - at : blake2s::kBlock, count, m);
      const std::size_t end = blake2s::kBlock + (last ? size : at + blake2s::kBlock);
      blake2s::compress(h, m, end, last);
    }
    alignas(64) std::uint32_t words[4][kRows];
    std::memcpy(words, h, sizeof words);
    for (std::size_t row = 0; row < count; ++row) {
      for (int i = 0; i < 4; ++i) std::memcpy(out + 16 * row + 4 * i, &words[i][row], 4);
    }
  }

 private:
  static FSL_INLINE void load(const std::uint8_t* rows, std::size_t stride, std::size_t size,
                              std::size_t count, W (&m)[16]) {
    alignas(64) std::uint32_t words[16][kRows];
    for (std::size_t row = 0; row < kRows; ++row) {
      const std::uint8_t* from = rows + (row < count ? row : count - 1) * stride;
      std::uint32_t padded[16];
      if (size < blake2s::kBlock) {
        std::memset(padded, 0, sizeof padded);
        std::memcpy(padded, from, size);
        from = reinterpret_cast<const std::uint8_t*>(padded);
      }
      for (int i = 0; i < 16; ++i) std::memcpy(&words[i][row], from + 4 * i, 4);
    }
    std::memcpy(m, words, sizeof words);
  }
};

// The rows [begin, end).
template <std::size_t bytes>
void row_digests(const RowDigestArgs& args, std::size_t begin, std::size_t end) {
  using Lanes = RowLanes<bytes>;
  for (std::size_t row = begin; row < end; row += Lanes::kRows) {
    const std::size_t count = end - row < Lanes::kRows ? end - row : Lanes::kRows;
    Lanes::digest(args, args.rows + row * args.row_bytes, count, args.out + 16 * row);
  }
}

}  // namespace
}  // namespace fsl
