// Bit-sliced AES-128 of four blocks in eight 64-bit words: no table, no branch, any CPU.
//
// Plane b holds bit b of all 64 bytes. Byte (row r, column c) of block k sits at bit position
// 16 r + 4 c + k, so that ShiftRows is a rotation within 16 bits and a row step is one by 16.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace fsl {
namespace {
namespace bitsliced {

static_assert(std::endian::native == std::endian::little, "blocks are read as little-endian words");

struct Planes {
  std::uint64_t plane[8];
};

// Exchanges the bits of `a` under `mask << shift` with those of `b` under `mask`.
inline void swap_bits(std::uint64_t& a, std::uint64_t& b, std::uint64_t mask, int shift) {
  const std::uint64_t moved = ((a >> shift) ^ b) & mask;
  b ^= moved;
  a ^= moved << shift;
}

// Transposes bits between words: afterwards bit 8 i + j of word b is bit b of byte i of word j.
inline void transpose_bits(Planes& planes) {
  std::uint64_t* q = planes.plane;
  for (int i = 0; i < 8; i += 2) swap_bits(q[i], q[i + 1], 0x5555555555555555, 1);
  for (int i = 0; i < 8; i += 4) {
    swap_bits(q[i], q[i + 2], 0x3333333333333333, 2);
    swap_bits(q[i + 1], q[i + 3], 0x3333333333333333, 2);
  }
  for (int i = 0; i < 4; ++i) swap_bits(q[i], q[i + 4], 0x0f0f0f0f0f0f0f0f, 4);
}

// Moves the four bytes of `column` to the even bytes of a word, and back.
inline std::uint64_t spread(std::uint64_t column) {
  column = (column | (column << 16)) & 0x0000ffff0000ffff;
  return (column | (column << 8)) & 0x00ff00ff00ff00ff;
}
inline std::uint64_t unspread(std::uint64_t word) {
  word &= 0x00ff00ff00ff00ff;
  word = (word | (word >> 8)) & 0x0000ffff0000ffff;
  return (word | (word >> 16)) & 0x00000000ffffffff;
}

// `words`: four blocks, two little-endian words each.
inline Planes slice(const std::uint64_t* words) {
  Planes planes;
  for (int k = 0; k < 4; ++k) {
    const std::uint64_t low = words[2 * k];
    const std::uint64_t high = words[2 * k + 1];
    planes.plane[k] = spread(low & 0xffffffff) | (spread(high & 0xffffffff) << 8);
    planes.plane[4 + k] = spread(low >> 32) | (spread(high >> 32) << 8);
  }
  transpose_bits(planes);
  return planes;
}

inline void unslice(Planes planes, std::uint64_t* words) {
  transpose_bits(planes);
  for (int k = 0; k < 4; ++k) {
    const std::uint64_t even = planes.plane[k];
    const std::uint64_t odd = planes.plane[4 + k];
    words[2 * k] = unspread(even) | (unspread(odd) << 32);
    words[2 * k + 1] = unspread(even >> 8) | (unspread(odd >> 8) << 32);
  }
}

// The AES S-box as the 113-gate circuit of Boyar and Peralta, "A depth-16 circuit for the AES
// S-box" (ePrint 2011/332), with the paper's names.
inline void sub_bytes(Planes& planes) {
  std::uint64_t* q = planes.plane;
  const std::uint64_t x0 = q[7], x1 = q[6], x2 = q[5], x3 = q[4];
  const std::uint64_t x4 = q[3], x5 = q[2], x6 = q[1], x7 = q[0];

  const std::uint64_t y14 = x3 ^ x5, y13 = x0 ^ x6, y9 = x0 ^ x3, y8 = x0 ^ x5;
  const std::uint64_t t0 = x1 ^ x2;
  const std::uint64_t y1 = t0 ^ x7, y4 = y1 ^ x3, y12 = y13 ^ y14, y2 = y1 ^ x0;
  const std::uint64_t y5 = y1 ^ x6, y3 = y5 ^ y8;
  const std::uint64_t t1 = x4 ^ y12;
  const std::uint64_t y15 = t1 ^ x5, y20 = t1 ^ x1, y6 = y15 ^ x7, y10 = y15 ^ t0;
  const std::uint64_t y11 = y20 ^ y9, y7 = x7 ^ y11, y17 = y10 ^ y11, y19 = y10 ^ y8;
  const std::uint64_t y16 = t0 ^ y11, y21 = y13 ^ y16, y18 = x0 ^ y16;

  const std::uint64_t t2 = y12 & y15, t4 = (y3 & y6) ^ t2, t6 = (y4 & x7) ^ t2;
  const std::uint64_t t7 = y13 & y16, t9 = (y5 & y1) ^ t7, t11 = (y2 & y7) ^ t7;
  const std::uint64_t t12 = y9 & y11, t14 = (y14 & y17) ^ t12, t16 = (y8 & y10) ^ t12;
  const std::uint64_t t21 = t4 ^ t14 ^ y20, t22 = t6 ^ t16 ^ y19;
  const std::uint64_t t23 = t9 ^ t14 ^ y21, t24 = t11 ^ t16 ^ y18;
  const std::uint64_t t25 = t21 ^ t22, t26 = t21 & t23, t27 = t24 ^ t26;
  const std::uint64_t t29 = (t25 & t27) ^ t22, t30 = t23 ^ t24, t31 = t22 ^ t26;
  const std::uint64_t t33 = (t31 & t30) ^ t24, t34 = t23 ^ t33, t35 = t27 ^ t33;
  const std::uint64_t t36 = t24 & t35, t37 = t36 ^ t34, t38 = t27 ^ t36;
  const std::uint64_t t40 = t25 ^ (t29 & t38), t41 = t40 ^ t37, t42 = t29 ^ t33;
  const std::uint64_t t43 = t29 ^ t40, t44 = t33 ^ t37, t45 = t42 ^ t41;

  const std::uint64_t z0 = t44 & y15, z1 = t37 & y6, z2 = t33 & x7, z3 = t43 & y16;
  const std::uint64_t z4 = t40 & y1, z5 = t29 & y7, z6 = t42 & y11, z7 = t45 & y17;
  const std::uint64_t z8 = t41 & y10, z9 = t44 & y12, z10 = t37 & y3, z11 = t33 & y4;
  const std::uint64_t z12 = t43 & y13, z13 = t40 & y5, z14 = t29 & y2, z15 = t42 & y9;
  const std::uint64_t z16 = t45 & y14, z17 = t41 & y8;

  const std::uint64_t t46 = z15 ^ z16, t47 = z10 ^ z11, t48 = z5 ^ z13, t49 = z9 ^ z10;
  const std::uint64_t t50 = z2 ^ z12, t51 = z2 ^ z5, t52 = z7 ^ z8, t53 = z0 ^ z3;
  const std::uint64_t t54 = z6 ^ z7, t55 = z16 ^ z17, t56 = z12 ^ t48, t57 = t50 ^ t53;
  const std::uint64_t t58 = z4 ^ t46, t59 = z3 ^ t54, t60 = t46 ^ t57, t61 = z14 ^ t57;
  const std::uint64_t t62 = t52 ^ t58, t63 = t49 ^ t58, t64 = z4 ^ t59, t65 = t61 ^ t62;
  const std::uint64_t t66 = z1 ^ t63, t67 = t64 ^ t65, s3 = t53 ^ t66;

  q[7] = t59 ^ t63;
  q[6] = t64 ^ ~s3;
  q[5] = t55 ^ ~t67;
  q[4] = s3;
  q[3] = t51 ^ t66;
  q[2] = t47 ^ t65;
  q[1] = t56 ^ ~t62;
  q[0] = t48 ^ ~t60;
}

// Row r moves left by r columns: each 16-bit group rotates right by 4 r bits.
inline void shift_rows(Planes& planes) {
  for (std::uint64_t& x : planes.plane) {
    x = (x & 0x000000000000ffff) | ((x >> 4) & 0x000000000fff0000) |
        ((x << 12) & 0x00000000f0000000) | ((x >> 8) & 0x000000ff00000000) |
        ((x << 8) & 0x0000ff0000000000) | ((x >> 12) & 0x000f000000000000) |
        ((x << 4) & 0xfff0000000000000);
  }
}

// b_r = 2 (a_r + a_{r+1}) + a_{r+1} + a_{r+2} + a_{r+3}.
inline void mix_columns(Planes& planes) {
  std::uint64_t* q = planes.plane;
  std::uint64_t pair[8], rest[8];
  for (int b = 0; b < 8; ++b) {
    const std::uint64_t next = std::rotr(q[b], 16);
    pair[b] = q[b] ^ next;
    rest[b] = next ^ std::rotr(pair[b], 32);
  }
  for (int b = 0; b < 8; ++b) {
    const std::uint64_t doubled =
        (b ? pair[b - 1] : 0) ^ (b == 1 || b == 3 || b == 4 ? pair[7] : 0);
    q[b] = doubled ^ (b ? 0 : pair[7]) ^ rest[b];
  }
}

inline void add_key(Planes& planes, const Planes& key) {
  for (int b = 0; b < 8; ++b) planes.plane[b] ^= key.plane[b];
}

// Encrypts the four blocks at `words` in place under eleven sliced round keys.
inline void encrypt(const Planes* round_keys, std::uint64_t* words) {
  Planes planes = slice(words);
  add_key(planes, round_keys[0]);
  for (int r = 1; r < 10; ++r) {
    sub_bytes(planes);
    shift_rows(planes);
    mix_columns(planes);
    add_key(planes, round_keys[r]);
  }
  sub_bytes(planes);
  shift_rows(planes);
  add_key(planes, round_keys[10]);
  unslice(planes, words);
}

}  // namespace bitsliced
}  // namespace
}  // namespace fsl
